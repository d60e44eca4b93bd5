// Grow-only scratch memory by purpose: no allocation once the largest call has been seen.
// A slot's memory is valid until the slot is asked for again.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "tensor/buffer.h"

namespace foresail {

enum class Scratch {
  kPackedRows,
  kGemmPartial,
  kExpertRows,
  kExpertWeights,
  kExpertHidden,
  kExpertGateUp,
  kExpertParts,
  kExpertOrder,
  kExpertActive,
  kRoute,
  kSlots,
  kDecoded,
  kGroups,
  kQueries,
  kKeys,
  kKeyRows,
  kValues,
  kTotals,
  kParts,
  kThread,
  kCount
};

class Workspace {
 public:
  template <typename T>
  T* get(Scratch slot, int64_t count) {
    Buffer& buffer = buffers_[static_cast<size_t>(slot)];
    const size_t wanted = static_cast<size_t>(count) * sizeof(T);
    // A quarter more than asked: lengths that grow by one do not allocate each time.
    if (buffer.size_bytes() < wanted) buffer = Buffer(wanted + wanted / 4);
    return buffer.as<T>();
  }
  uint64_t size_bytes() const {
    uint64_t total = 0;
    for (const Buffer& buffer : buffers_) total += buffer.size_bytes();
    return total;
  }

 private:
  std::array<Buffer, static_cast<size_t>(Scratch::kCount)> buffers_;
};

}  // namespace foresail
