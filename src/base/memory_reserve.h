// Memory kept back for when there is none: what must not fail draws on it. While one exists, an
// operator new that fails gives it to the system and tries again, so small allocations go on and
// large ones still throw. Who drew on it sees that afterwards, and gives up what it was doing if
// there is no memory to fill it again.
// Owner: the program, one at a time (libraries install no handlers). Thread rule: static members
// from any thread.
#pragma once

#include <cstddef>
#include <cstdint>

namespace foresail {

class MemoryReserve {
 public:
  // Address space that nothing touches: it counts for limits, not as resident. Throws
  // std::bad_alloc.
  explicit MemoryReserve(size_t bytes);
  ~MemoryReserve();
  MemoryReserve(const MemoryReserve&) = delete;
  MemoryReserve& operator=(const MemoryReserve&) = delete;

  // Since it was made, on this thread.
  class Watch {
   public:
    bool drew() const { return draws_before_ != draws_of_this_thread(); }

   private:
    uint64_t draws_before_ = draws_of_this_thread();
  };

  // Takes as much as there is, if something is missing. False when less than a quarter could be
  // had; true where there is no reserve.
  static bool fill() noexcept;
  // How often all threads drew on it.
  static uint64_t draws() noexcept;

 private:
  static uint64_t draws_of_this_thread() noexcept;
};

}  // namespace foresail
