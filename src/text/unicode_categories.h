// Unicode 15.1 general categories, Script=Han and White_Space as sorted ranges of code points.
// Constant tables; any thread may read them.
#pragma once

#include <cstdint>
#include <span>

namespace foresail {

enum class Category : uint8_t {
  kCn,
  kLu,
  kLl,
  kLt,
  kLm,
  kLo,
  kMn,
  kMc,
  kMe,
  kNd,
  kNl,
  kNo,
  kPc,
  kPd,
  kPs,
  kPe,
  kPi,
  kPf,
  kPo,
  kSm,
  kSc,
  kSk,
  kSo,
  kZs,
  kZl,
  kZp,
  kCc,
  kCf,
  kCo,
};

struct CodePointRange {
  char32_t first, last;  // inclusive
  friend bool operator==(const CodePointRange&, const CodePointRange&) = default;
};

struct CategoryRange {
  char32_t first, last;  // inclusive
  Category category;
};

std::span<const CategoryRange> category_ranges();
std::span<const CodePointRange> han_ranges();
std::span<const CodePointRange> white_space_ranges();

}  // namespace foresail
