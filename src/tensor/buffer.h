// Owned host memory, 64-byte aligned, zero-filled, from anonymous pages (huge pages when large).
// Throws Error{kDevice} naming the size when the machine has not enough.
#pragma once

#include <cstddef>
#include <span>
#include <utility>

namespace foresail {

class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(size_t size_bytes);
  ~Buffer();
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
  }
  std::byte* data_ = nullptr;
  size_t size_bytes_ = 0;
};

}  // namespace foresail
