#include "tensor/arena.h"

#include <algorithm>

#include "base/checked_math.h"

namespace foresail {
namespace {
constexpr size_t kAlignmentBytes = 64;
constexpr size_t kFirstBlockBytes = 1u << 20;
}  // namespace

std::byte* Arena::allocate(size_t size_bytes) {
  size_bytes = round_up(std::max<size_t>(size_bytes, 1), kAlignmentBytes);
  while (block_ < blocks_.size() && offset_bytes_ + size_bytes > blocks_[block_].size_bytes()) {
    ++block_;
    offset_bytes_ = 0;
  }
  if (block_ == blocks_.size()) {
    const size_t doubled = blocks_.empty() ? kFirstBlockBytes : 2 * blocks_.back().size_bytes();
    blocks_.emplace_back(std::max(size_bytes, std::min<size_t>(doubled, 64u << 20)), *memory_);
    offset_bytes_ = 0;
  }
  std::byte* memory = blocks_[block_].data() + offset_bytes_;
  offset_bytes_ += size_bytes;
  return memory;
}

void Arena::reset() {
  block_ = 0;
  offset_bytes_ = 0;
}

size_t Arena::size_bytes() const {
  size_t total = 0;
  for (const Buffer& block : blocks_) total += block.size_bytes();
  return total;
}

}  // namespace foresail
