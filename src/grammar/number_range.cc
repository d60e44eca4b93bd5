#include "grammar/number_range.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <tuple>

#include "base/json.h"

namespace foresail {
namespace {

// All decimals y >= 0 with least <= y <= most; a missing bound is none.
class Magnitudes {
 public:
  Magnitudes(GrammarBuilder& builder, bool integers, const NumberBound* least,
             const NumberBound* most)
      : builder_(builder), integers_(integers), least_(least), most_(most) {}

  int32_t write(int32_t from) {
    end_ = builder_.state();
    for (int length = 1; length <= kMaxDigits; ++length) {
      const int least_length = least_ == nullptr ? 0 : digits(*least_);
      const int most_length = most_ == nullptr ? kMaxDigits + 1 : digits(*most_);
      if (length < least_length || length > most_length) continue;
      const bool at_least = least_ != nullptr && length == least_length;
      const bool at_most = most_ != nullptr && length == most_length;
      builder_.skip(from, whole(length, 0, at_least, at_most));
    }
    return end_;
  }

 private:
  static int digits(const NumberBound& bound) {
    return std::max<int>(1, static_cast<int>(bound.whole.size()));
  }
  static int digit(const std::string& text, int at) {
    return at < static_cast<int>(text.size()) ? text[at] - '0' : 0;
  }

  // Edges for the next digit: what equals a bound's digit stays at that bound.
  template <typename Next>
  void add_digits(int32_t from, int first, bool at_least, bool at_most, int least_digit,
                  int most_digit, Next next) {
    const int low = at_least ? std::max(first, least_digit) : first;
    const int high = at_most ? most_digit : 9;
    for (int d = low; d <= high;) {
      const bool stays_low = at_least && d == least_digit, stays_high = at_most && d == most_digit;
      int end = d;  // digits that lead to the same state
      if (!stays_low && !stays_high)
        while (end < high && !(at_most && end + 1 == most_digit)) ++end;
      builder_.symbols(from, '0' + d, '0' + end, next(stays_low, stays_high));
      d = end + 1;
    }
  }

  // `at` of `length` digits before the point have been written.
  int32_t whole(int length, int at, bool at_least, bool at_most) {
    if (at == length) return point(at_least, at_most);
    const bool free = !at_least && !at_most;
    // Free digits depend on nothing but how many are to come.
    const auto key = std::tuple(free && at > 0 ? length - at : -length, free && at > 0 ? 0 : at,
                                at_least, at_most);
    const auto [found, is_new] = whole_.try_emplace(key, 0);
    if (!is_new) return found->second;
    const int32_t state = builder_.state();
    whole_[key] = state;
    const int first = at == 0 && length > 1 ? 1 : 0;
    add_digits(state, first, at_least, at_most, at_least ? digit(least_->whole, at) : 0,
               at_most ? digit(most_->whole, at) : 0,
               [&](bool low, bool high) { return whole(length, at + 1, low, high); });
    return state;
  }

  int32_t point(bool at_least, bool at_most) {
    const int32_t state = builder_.state();
    stop(state, 0, at_least, at_most);
    if (!integers_) builder_.symbols(state, '.', '.', fraction(0, at_least, at_most));
    return state;
  }

  int32_t fraction(int at, bool at_least, bool at_most) {
    int32_t& known = fraction_[(at * 2 + (at_least ? 1 : 0)) * 2 + (at_most ? 1 : 0)];
    if (known != 0) return known;
    const int32_t state = known = builder_.state();
    if (at > 0) stop(state, at, at_least, at_most);
    if (at == kMaxDigits) return state;
    add_digits(state, 0, at_least, at_most, at_least ? digit(least_->fraction, at) : 0,
               at_most ? digit(most_->fraction, at) : 0,
               [&](bool low, bool high) { return fraction(at + 1, low, high); });
    return state;
  }

  // May the number end after so many digits of its fraction?
  void stop(int32_t state, int at, bool at_least, bool at_most) {
    const auto rest_is_zero = [&](const NumberBound& bound) {
      return static_cast<int>(bound.fraction.size()) <= at;
    };
    if (at_least && (!rest_is_zero(*least_) || least_->exclusive)) return;
    if (at_most && rest_is_zero(*most_) && most_->exclusive) return;
    builder_.skip(state, end_);
  }

  GrammarBuilder& builder_;
  bool integers_;
  const NumberBound *least_, *most_;
  int32_t end_ = 0;
  std::map<std::tuple<int, int, bool, bool>, int32_t> whole_;
  std::array<int32_t, (kMaxDigits + 1) * 4> fraction_{};  // 0: not yet; state 0 is a rule's start
};

}  // namespace

NumberBound number_bound(const OrderedJson& number, bool exclusive) {
  NumberBound bound{.exclusive = exclusive};
  std::string digits;
  int exponent = 0;  // the value is 0.digits * 10^exponent
  if (number.is_number_integer()) {
    digits = json_text(number);
    bound.negative = digits[0] == '-';
    if (bound.negative) digits.erase(0, 1);
    exponent = static_cast<int>(digits.size());
  } else {
    // Shortest digits that read back as the same double: d.ddde-xx
    std::array<char, 64> text;
    const auto [end, error] = std::to_chars(text.data(), text.data() + text.size(),
                                            number.get<double>(), std::chars_format::scientific);
    std::string shown(text.data(), end);
    bound.negative = shown[0] == '-';
    if (bound.negative) shown.erase(0, 1);
    const size_t e = shown.find('e');
    exponent = std::stoi(shown.substr(e + 1)) + 1;
    for (const char c : shown.substr(0, e))
      if (c != '.') digits += c;
  }
  const size_t first = digits.find_first_not_of('0');
  if (first == std::string::npos) return {.exclusive = exclusive};
  exponent -= static_cast<int>(first);
  digits.erase(0, first);
  digits.erase(digits.find_last_not_of('0') + 1);
  const int fraction_digits = static_cast<int>(digits.size()) - exponent;
  if (exponent > kMaxDigits || fraction_digits > kMaxDigits)
    refuse_grammar(fmt::format("of {} has more than {} digits before or after the point",
                               json_text(number), kMaxDigits));
  if (exponent > 0) {
    bound.whole = digits.substr(0, exponent);
    bound.whole.resize(exponent, '0');
  }
  if (fraction_digits > 0)
    bound.fraction =
        std::string(std::max(0, -exponent), '0') + digits.substr(std::max(0, exponent));
  return bound;
}

int32_t add_number_range(GrammarBuilder& builder, int32_t from, bool integers,
                         const std::optional<NumberBound>& least,
                         const std::optional<NumberBound>& most) {
  const int32_t to = builder.state();
  if (!most || !most->negative) {
    const bool bounded = least && !least->negative;
    builder.skip(Magnitudes(builder, integers, bounded ? &*least : nullptr, most ? &*most : nullptr)
                     .write(from),
                 to);
  }
  if (!least || least->negative) {
    // Nearer to zero than the greatest, and never "-0".
    NumberBound nearest{.exclusive = true};
    if (most && most->negative) nearest = *most;
    builder.skip(Magnitudes(builder, integers, &nearest, least ? &*least : nullptr)
                     .write(builder.symbol(from, '-', '-')),
                 to);
  }
  return to;
}

}  // namespace foresail
