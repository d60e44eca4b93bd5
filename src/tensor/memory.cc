#include "tensor/memory.h"

#include <sys/mman.h>

#include <cstring>

#include "base/error.h"

namespace foresail {
namespace {

constexpr size_t kHugePageBytes = 2u << 20;

class HostMemory final : public Memory {
 public:
  std::byte* allocate(size_t size_bytes) override {
    void* memory =
        ::mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
      throw_error(ErrorCode::kDevice, "not enough memory: an allocation of {:.2f} GiB failed",
                  static_cast<double>(size_bytes) / (1ull << 30));
    if (size_bytes >= kHugePageBytes) ::madvise(memory, size_bytes, MADV_HUGEPAGE);
    return static_cast<std::byte*>(memory);
  }
  void release(std::byte* data, size_t size_bytes) noexcept override { ::munmap(data, size_bytes); }
  bool is_host() const override { return true; }
  Memory& staging() override { return *this; }
  void upload(void* to, const void* from, size_t size_bytes) override {
    std::memcpy(to, from, size_bytes);
  }
  void download(void* to, const void* from, size_t size_bytes) override {
    std::memcpy(to, from, size_bytes);
  }
  void zero(void* data, size_t size_bytes) override { std::memset(data, 0, size_bytes); }
  void wait() override {}
};

}  // namespace

Memory& host_memory() {
  // Never destroyed: a static model gives its memory back later than any static made after it.
  static HostMemory& memory = *new HostMemory;
  return memory;
}

}  // namespace foresail
