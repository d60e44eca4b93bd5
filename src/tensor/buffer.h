// Owned memory, 64-byte aligned, zero-filled; of the host unless another memory is named, which
// must outlive it. Throws Error{kDevice} naming the size when there is not enough.
#pragma once

#include <cstddef>
#include <span>
#include <utility>

#include "tensor/memory.h"

namespace foresail {

class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(size_t size_bytes, Memory& memory = host_memory())
      : data_(size_bytes == 0 ? nullptr : memory.allocate(size_bytes)),
        size_bytes_(size_bytes),
        memory_(&memory) {}
  ~Buffer() {
    if (data_ != nullptr) memory_->release(data_, size_bytes_);
  }
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    swap(other);
    return *this;
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  std::byte* data() const { return data_; }
  size_t size_bytes() const { return size_bytes_; }
  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }
  template <typename T>
  std::span<T> span() const {
    return {as<T>(), size_bytes_ / sizeof(T)};
  }

 private:
  void swap(Buffer& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_bytes_, other.size_bytes_);
    std::swap(memory_, other.memory_);
  }
  std::byte* data_ = nullptr;
  size_t size_bytes_ = 0;
  Memory* memory_ = nullptr;
};

// The same bytes in `memory`: the buffer itself where that is the host's.
inline Buffer moved_to(Memory& memory, Buffer host) {
  if (memory.is_host()) return host;
  Buffer moved(host.size_bytes(), memory);
  memory.upload(moved.data(), host.data(), host.size_bytes());
  return moved;
}

}  // namespace foresail
