// Strong ids and units: a slot is not a page, a page is not a token. Conversions have names.
// Plain values, owned by whoever holds them.
// Any thread.
#pragma once

#include <algorithm>
#include <compare>
#include <cstdint>
#include <functional>

#include "base/checked_math.h"
#include "base/error.h"

namespace foresail {

template <typename Tag, typename Rep>
struct Id {
  Rep value = 0;

  constexpr Id() = default;
  constexpr explicit Id(Rep v) : value(v) {}
  constexpr auto operator<=>(const Id&) const = default;
};

using SlotId = Id<struct SlotTag, int32_t>;        // row of a running request
using PageId = Id<struct PageTag, int32_t>;        // physical page; 0 is the reserved sink
using RequestId = Id<struct RequestTag, int64_t>;  // never reused

inline constexpr PageId kSinkPage{0};

template <typename Tag>
struct Quantity {
  int64_t value = 0;

  constexpr Quantity() = default;
  constexpr explicit Quantity(int64_t v) : value(v) {}
  constexpr auto operator<=>(const Quantity&) const = default;
  constexpr Quantity& operator+=(Quantity other) { return value += other.value, *this; }
  constexpr Quantity& operator-=(Quantity other) { return value -= other.value, *this; }
  friend constexpr Quantity operator+(Quantity a, Quantity b) { return a += b; }
  friend constexpr Quantity operator-(Quantity a, Quantity b) { return a -= b; }
};

using Tokens = Quantity<struct TokensTag>;
using Pages = Quantity<struct PagesTag>;
using Pairs =
    Quantity<struct PairsTag>;  // (token p, token p+1): what one drafter KV entry depends on

// Tokens per page: 1, 16, 32 or 64. Throws Error{kUsage} on anything else.
class PageSize {
 public:
  explicit PageSize(int32_t tokens) : tokens_(tokens) {
    if (tokens != 1 && tokens != 16 && tokens != 32 && tokens != 64) {
      throw_error(ErrorCode::kUsage, "options.page_size {}: use 1, 16, 32 or 64", tokens);
    }
  }
  int32_t tokens() const { return tokens_; }
  bool operator==(const PageSize&) const = default;

 private:
  int32_t tokens_;
};

inline Pages pages_holding(Tokens tokens, PageSize size) {
  return Pages{ceil_div<int64_t>(tokens.value, size.tokens())};
}
inline Pages full_pages(Tokens tokens, PageSize size) {
  return Pages{tokens.value / size.tokens()};
}
inline Tokens tokens_in(Pages pages, PageSize size) {
  return Tokens{pages.value * size.tokens()};
}
inline Pairs pairs_of(Tokens tokens) {
  return Pairs{std::max<int64_t>(tokens.value - 1, 0)};
}

// The one place that turns a page and a token place in it into bytes. 64-bit throughout.
inline int64_t byte_offset(PageId page, int32_t token_in_page, PageSize size, int64_t row_bytes) {
  return (int64_t{page.value} * size.tokens() + token_in_page) * row_bytes;
}

}  // namespace foresail

template <typename Tag, typename Rep>
struct std::hash<foresail::Id<Tag, Rep>> {
  size_t operator()(foresail::Id<Tag, Rep> id) const { return std::hash<Rep>{}(id.value); }
};
