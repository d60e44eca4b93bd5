#include "tensor/buffer.h"

#include <sys/mman.h>

#include "base/error.h"

namespace foresail {
namespace {
constexpr size_t kHugePageBytes = 2u << 20;
}

Buffer::Buffer(size_t size_bytes) : size_bytes_(size_bytes) {
  if (size_bytes == 0) return;
  void* memory =
      ::mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED)
    throw_error(ErrorCode::kDevice, "not enough memory: an allocation of {:.2f} GiB failed",
                static_cast<double>(size_bytes) / (1ull << 30));
  if (size_bytes >= kHugePageBytes) ::madvise(memory, size_bytes, MADV_HUGEPAGE);
  data_ = static_cast<std::byte*>(memory);
}

Buffer::~Buffer() {
  if (data_ != nullptr) ::munmap(data_, size_bytes_);
}

}  // namespace foresail
