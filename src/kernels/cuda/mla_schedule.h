// How a batch of key ranges is cut over thread blocks: the arithmetic only, for host and device.
// Owned by nobody (pure functions). The kernel evaluates it per block; there is no plan in memory.
//
// Words. Each request has unit_count(key_len) units of `unit` keys. The units of all requests, one
// request after the other, form a flat list of `total` units. Block i of `blocks` takes
// [cut_begin(i), cut_begin(i + 1)): contiguous, every unit exactly once, lengths differ by <= 1.
#pragma once

#include <bit>
#include <cstdint>

#ifdef __CUDACC__
#define FORESAIL_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define FORESAIL_HOST_DEVICE inline
#endif

namespace foresail::cuda {

// Division by a number that the host knows: exact for every dividend below 2^32 (Granlund and
// Montgomery's round-up). A division by a number in a register takes 30 instructions.
struct Divider {
  uint32_t multiplier = 1;
  uint32_t shift = 0;
};

inline Divider divider(uint32_t divisor) {
  Divider d;
  while ((uint64_t{1} << d.shift) < divisor) ++d.shift;
  d.multiplier = static_cast<uint32_t>(
      ((uint64_t{1} << 32) * ((uint64_t{1} << d.shift) - divisor)) / divisor + 1);
  return d;
}

FORESAIL_HOST_DEVICE int divide(uint32_t dividend, Divider by) {
  const uint64_t high = (uint64_t{dividend} * by.multiplier) >> 32;
  return static_cast<int>((high + dividend) >> by.shift);
}

// Number of keys visible to the last query row, never negative. key_end may come from a device
// counter that a draft loop has not advanced yet: `added` is that loop's step.
FORESAIL_HOST_DEVICE int visible_keys(int key_end, int added) {
  const int keys = key_end + added;
  return keys > 0 ? keys : 0;
}

// A request without keys still owns one (empty) unit: some block must write its output.
FORESAIL_HOST_DEVICE int unit_count(int key_len, int unit_log2) {
  const int units = (key_len + (1 << unit_log2) - 1) >> unit_log2;
  return units > 0 ? units : 1;
}

// log2 of the keys a unit where the cut of a request must not depend on the rest of the batch: the
// least, from `least_log2` on, that cuts it into at most 2^splits_log2 units.
FORESAIL_HOST_DEVICE int fixed_unit_log2(int key_len, int least_log2, int splits_log2) {
  const int last = key_len > 1 ? key_len - 1 : 0;
#ifdef __CUDA_ARCH__
  const int bits = 32 - __clz(last);
#else
  const int bits = std::bit_width(static_cast<unsigned>(last));
#endif
  return bits - splits_log2 > least_log2 ? bits - splits_log2 : least_log2;
}

// Blocks that receive work: no more than units, so that no block is empty.
FORESAIL_HOST_DEVICE int blocks_used(int total, int blocks) {
  return total < blocks ? total : blocks;
}

// Blocks to launch when `most` can run at once: a multiple of the number of requests if that costs
// at most a tenth of them. Requests of one length are then cut at their borders, so that a block
// leaves one partial result, not two: for 64 rows a pair of them weighs as much as 450 keys.
FORESAIL_HOST_DEVICE int balanced_blocks(int requests, int most) {
  if (requests >= most) return most;
  const int multiple = most / requests * requests;
  return 10 * multiple >= 9 * most ? multiple : most;
}

// Schedules of a call whose requests are cut into `row_blocks` each: one of all of them, or one for
// each row block with as many blocks each, if at least nine tenths of `most` have work then. The
// row blocks of a request read the same keys at about the same time then, and memory once.
FORESAIL_HOST_DEVICE int row_sets_of(int row_blocks, int most) {
  const int used = most / row_blocks * row_blocks;
  return 10 * used >= 9 * most ? row_blocks : 1;
}

// dividend / divisor, where that is less than 2^13 (here a block): float is off by less than one.
FORESAIL_HOST_DEVICE int small_quotient(uint32_t dividend, uint32_t divisor) {
#ifdef __CUDA_ARCH__
  const float about = __fdividef(static_cast<float>(dividend), static_cast<float>(divisor));
#else
  const float about = static_cast<float>(dividend) / static_cast<float>(divisor);
#endif
  const int quotient = static_cast<int>(about);
  const int rest = static_cast<int>(dividend - static_cast<uint32_t>(quotient) * divisor);
  return quotient - (rest < 0 ? 1 : 0) + (rest >= static_cast<int>(divisor) ? 1 : 0);
}

// First unit of block i, 0 <= i <= blocks. Requires total * blocks < 2^32.
FORESAIL_HOST_DEVICE int cut_begin(int block, int total, int blocks) {
  return static_cast<int>(static_cast<unsigned>(block) * static_cast<unsigned>(total) /
                          static_cast<unsigned>(blocks));
}

// The block whose range contains `unit`: the inverse of cut_begin.
// cut_begin(c) <= unit  <=>  c * total / blocks < unit + 1  <=>  c < (unit + 1) * blocks / total.
FORESAIL_HOST_DEVICE int block_of_unit(int unit, int total, int blocks) {
  return small_quotient(static_cast<unsigned>(unit + 1) * static_cast<unsigned>(blocks) - 1u,
                        static_cast<unsigned>(total));
}

// The blocks that share one request, and where each one's partial result lies. A block touches at
// most two shared requests (the one it starts in and the one it ends in), so two slots suffice.
struct SplitGroup {
  int first_block = 0;
  int block_count = 0;
};

FORESAIL_HOST_DEVICE SplitGroup split_group(int request_begin, int request_units, int total,
                                            int blocks) {
  SplitGroup group;
  group.first_block = block_of_unit(request_begin, total, blocks);
  group.block_count =
      block_of_unit(request_begin + request_units - 1, total, blocks) - group.first_block + 1;
  return group;
}

// Slot 2 * block holds the result of the request a block starts with, 2 * block + 1 any later one.
FORESAIL_HOST_DEVICE int partial_slot(int block, int request_begin, int total, int blocks) {
  // cut_begin(block) < request_begin, without its division.
  const bool later = static_cast<unsigned>(block) * static_cast<unsigned>(total) <
                     static_cast<unsigned>(request_begin) * static_cast<unsigned>(blocks);
  return 2 * block + (later ? 1 : 0);
}

}  // namespace foresail::cuda
