// Decimal numbers between two bounds, digit by digit. Any thread.
#pragma once

#include <optional>
#include <string>

#include "base/json_types.h"
#include "grammar/grammar.h"

namespace foresail {

struct NumberBound {
  bool negative = false;
  std::string whole;     // digits without leading zeros; zero is empty
  std::string fraction;  // digits without trailing zeros
  bool exclusive = false;

  bool is_zero() const { return whole.empty() && fraction.empty(); }
};

// Throws GrammarFault for what has more digits before or after the point than are generated.
NumberBound number_bound(const OrderedJson& number, bool exclusive);

// Most digits before and after the point: what a double holds, so no reader rounds it.
inline constexpr int kMaxDigits = 15;

// The path of all numbers in the range, as plain decimals without a superfluous zero in front.
int32_t add_number_range(GrammarBuilder& builder, int32_t from, bool integers,
                         const std::optional<NumberBound>& least,
                         const std::optional<NumberBound>& most);

}  // namespace foresail
