// How a batch of key ranges is cut over thread blocks: the arithmetic only, for host and device.
// Owned by nobody (pure functions). The kernel evaluates it per block; there is no plan in memory.
//
// Words. Each request has unit_count(key_len) units of `unit` keys. The units of all requests, one
// request after the other, form a flat list of `total` units. Block i of `blocks` takes
// [cut_begin(i), cut_begin(i + 1)): contiguous, every unit exactly once, lengths differ by <= 1.
#pragma once

#ifdef __CUDACC__
#define FORESAIL_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define FORESAIL_HOST_DEVICE inline
#endif

namespace foresail::cuda {

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

// Blocks that receive work: no more than units, so that no block is empty. A single request of up to
// two units a block of one cluster stays in that cluster: its merge needs no global memory.
FORESAIL_HOST_DEVICE int blocks_used(int total, int requests, int blocks, int cluster_log2) {
  const int cluster = 1 << cluster_log2;
  if (requests == 1 && total <= 2 * cluster && cluster < blocks) blocks = cluster;
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

// First unit of block i, 0 <= i <= blocks. Requires total * blocks < 2^32.
FORESAIL_HOST_DEVICE int cut_begin(int block, int total, int blocks) {
  return static_cast<int>(static_cast<unsigned>(block) * static_cast<unsigned>(total) /
                          static_cast<unsigned>(blocks));
}

// The block whose range contains `unit`: the inverse of cut_begin.
// cut_begin(c) <= unit  <=>  c * total / blocks < unit + 1  <=>  c < (unit + 1) * blocks / total.
FORESAIL_HOST_DEVICE int block_of_unit(int unit, int total, int blocks) {
  return static_cast<int>((static_cast<unsigned>(unit + 1) * static_cast<unsigned>(blocks) - 1u) /
                          static_cast<unsigned>(total));
}

// The blocks that share one request. Each of them sees it in its last segment, but for the last
// block if that one `runs_on` into further requests: its part is the block's first segment.
struct SplitGroup {
  int first_block = 0;
  int block_count = 0;
  bool runs_on = false;

  // Blocks that see the request in their last segment: [first_block, tail_end()).
  FORESAIL_HOST_DEVICE int tail_end() const {
    return first_block + block_count - (runs_on ? 1 : 0);
  }
};

FORESAIL_HOST_DEVICE SplitGroup split_group(int request_begin, int request_units, int total,
                                            int blocks) {
  SplitGroup group;
  const int request_end = request_begin + request_units;
  const int last = block_of_unit(request_end - 1, total, blocks);
  group.first_block = block_of_unit(request_begin, total, blocks);
  group.block_count = last - group.first_block + 1;
  group.runs_on = group.block_count > 1 && cut_begin(last + 1, total, blocks) > request_end;
  return group;
}

// Partial results of a shared request. Within a cluster of blocks those of the last segments are
// added up first; what leaves the cluster is one part, in the slot of its first block there. The
// part of a block that runs on lies in a slot of its own. Part i of a request, in the order of keys:
FORESAIL_HOST_DEVICE int part_count(const SplitGroup& group, int cluster_log2) {
  const int clusters =
      ((group.tail_end() - 1) >> cluster_log2) - (group.first_block >> cluster_log2) + 1;
  return clusters + (group.runs_on ? 1 : 0);
}

FORESAIL_HOST_DEVICE int part_slot(const SplitGroup& group, int part, int cluster_log2,
                                   int blocks) {
  if (part == 0) return group.first_block;
  const int block = ((group.first_block >> cluster_log2) + part) << cluster_log2;
  return block < group.tail_end() ? block : blocks + group.tail_end();
}

}  // namespace foresail::cuda
