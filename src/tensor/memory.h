// Where bytes live that a device works on: the host, or a device that the host cannot read.
// Everything a device is asked to do, copies included, happens in the order it was asked.
// Owner: the kernel set (host_memory(): the process). Thread rule: one caller; host_memory(): any.
#pragma once

#include <cstddef>
#include <cstdint>

namespace foresail {

class Memory {
 public:
  virtual ~Memory() = default;
  // Zero-filled, 64-byte aligned. Throws Error{kDevice} naming the size when there is not enough.
  virtual std::byte* allocate(size_t size_bytes) = 0;
  virtual void release(std::byte* data, size_t size_bytes) noexcept = 0;

  // Whether the host may read and write it in place. Nothing below is needed then.
  virtual bool is_host() const = 0;
  // Host memory from which copies to and from this memory are fast.
  virtual Memory& staging() = 0;
  // `from` may be changed as soon as it returns.
  virtual void upload(void* to, const void* from, size_t size_bytes) = 0;
  // Waits until `to` holds the bytes.
  virtual void download(void* to, const void* from, size_t size_bytes) = 0;
  // A download that is queued: `to`, of staging(), holds the bytes once finish_download() of the
  // number that this gives has returned. At most four are under way.
  virtual uint64_t start_download(void* to, const void* from, size_t size_bytes) {
    download(to, from, size_bytes);
    return 0;
  }
  virtual void finish_download(uint64_t number) { (void)number; }
  virtual void zero(void* data, size_t size_bytes) = 0;
  // Returns when everything asked for before is done.
  virtual void wait() = 0;
};

// Anonymous pages, huge ones when large.
Memory& host_memory();

}  // namespace foresail
