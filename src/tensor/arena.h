// Scratch memory of one forward pass: bump allocation, everything returned at once by reset().
// Grow-only, so a steady state allocates nothing. Owner: the model. Thread rule: one caller.
#pragma once

#include <cstddef>
#include <vector>

#include "tensor/buffer.h"

namespace foresail {

class Arena {
 public:
  explicit Arena(Memory& memory = host_memory()) : memory_(&memory) {}

  // 64-byte aligned, contents undefined.
  std::byte* allocate(size_t size_bytes);
  void reset();
  size_t size_bytes() const;

  // Returns what was allocated since its construction; blocks stay for reuse.
  class Scope {
   public:
    explicit Scope(Arena& arena)
        : arena_(arena), block_(arena.block_), offset_(arena.offset_bytes_) {}
    ~Scope() {
      arena_.block_ = block_;
      arena_.offset_bytes_ = offset_;
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Arena& arena_;
    size_t block_;
    size_t offset_;
  };

 private:
  Memory* memory_;
  std::vector<Buffer> blocks_;
  size_t block_ = 0;
  size_t offset_bytes_ = 0;
};

}  // namespace foresail
