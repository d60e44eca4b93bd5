// What a flag's value may be. The message says what to choose; the help shows the same words.
#pragma once

#include <string>
#include <vector>

#include "apps/command_line.h"

namespace foresail {

// Both ends included; the largest number of the type means that there is no upper end. The types
// are listed at the end of flag_checks.cc.
template <typename Number>
FlagCheck number_in(Number low, Number high);

FlagCheck one_of(const std::vector<std::string>& names);

}  // namespace foresail
