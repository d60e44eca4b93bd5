// What a client may cost before it is refused, and what was refused. Atomics only: read at any
// time.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>

namespace foresail {

// Comes in and goes out however much others hold, and is answered at once.
constexpr size_t kSmallBodyBytes = 64 << 10;

struct HttpLimits {
  uint64_t max_body_bytes = 32ull << 20;
  // Of all bodies that are coming in, where one of more than 64 KiB is to take more.
  uint64_t max_incoming_bytes = 512ull << 20;
  // Of all answers that their clients have not read, where one of more than 64 KiB is to be added.
  uint64_t max_waiting_bytes = 512ull << 20;
  // More would never find room.
  uint64_t longest_body_bytes() const { return std::min(max_body_bytes, max_incoming_bytes); }
  uint32_t max_header_bytes = 64 << 10;  // request line and fields together
  int max_header_fields = 100;
  uint32_t max_header_line_bytes = 8 << 10;
  uint64_t max_unsent_bytes = 1 << 20;  // of a streamed answer
  // So long may more be unsent: one event can be larger than the limit.
  std::chrono::milliseconds unsent_grace{1'000};
  int max_connections = 8192;
  std::chrono::milliseconds header_timeout{10'000};       // from the first byte to the last
  std::chrono::milliseconds body_timeout{60'000};         // between bytes
  std::chrono::milliseconds write_timeout{60'000};        // between bytes
  std::chrono::milliseconds keep_alive_timeout{120'000};  // between requests
};

struct HttpCounters {
  std::atomic<int64_t> connections{0};      // open now
  std::atomic<int64_t> busy{0};             // of them, with a request under way
  std::atomic<uint64_t> incoming_bytes{0};  // of bodies that are not parsed yet
  std::atomic<int64_t> over_incoming_total{0};
  std::atomic<uint64_t> waiting_bytes{0};  // of answers that their clients have not read
  std::atomic<int64_t> over_waiting_total{0};
  std::atomic<int64_t> accepted_total{0};
  std::atomic<int64_t> over_connections_total{0};
  std::atomic<int64_t> header_too_large_total{0};
  std::atomic<int64_t> body_too_large_total{0};
  std::atomic<int64_t> malformed_total{0};
  std::atomic<int64_t> header_timeout_total{0};
  std::atomic<int64_t> body_timeout_total{0};
  std::atomic<int64_t> slow_reader_total{0};  // dropped: too much unsent, or no byte taken in time
  std::atomic<int64_t> disconnects_total{0};  // left before the end of an answer
  std::atomic<int64_t> out_of_memory_total{0};  // connections ended because memory ran out
};

}  // namespace foresail
