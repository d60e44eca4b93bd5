// A block's share of the batch, found from kv_end inside the kernel; see mla_schedule.h for the
// cut. Every warp evaluates it for itself and keeps the result in registers: no plan, no metadata.
#pragma once

#include "kernels/cuda/mla_schedule.h"
#include "kernels/cuda/sm90/mla_layout.cuh"
#include "kernels/cuda/sm90/ptx.h"

namespace foresail::cuda::mla {

struct Segment {
  int request;  // virtual: request * row_blocks + row block
  int first_unit;
  int units;
  int key_len;
  int key_begin;
  int key_end;
  bool whole;  // the request is this block's alone
};

// A request that several blocks work on, as its merge needs it.
struct alignas(16) SharedRequest {
  int request;
  int first_unit;
  int units;
};

// Keys that a (virtual) request's last row sees; kv_end: of the real one.
template <typename Params>
__device__ __forceinline__ int key_len_of(const Params& p, int request, int kv_end) {
  if (p.row_blocks == 1) return visible_keys(kv_end, p.kv_end_add);
  const int real = divide(request, p.by_row_blocks);
  const int last_row = min(p.rows, (request - real * p.row_blocks + 1) * p.rows_per_block) - 1;
  const int hidden = p.q_len - 1 - divide(last_row, p.by_heads);
  return visible_keys(kv_end, p.kv_end_add - hidden);
}

template <typename Params>
__device__ __forceinline__ const int32_t* kv_end_of(const Params& p, int request) {
  return p.kv_end + (p.row_blocks == 1 ? request : divide(request, p.by_row_blocks));
}

template <typename Params>
__device__ __forceinline__ int key_len_of(const Params& p, int request) {
  return key_len_of(p, request, __ldg(kv_end_of(p, request)));
}

// kv_end of (virtual) request `lane` of a walk: every walk begins with it, so that it is asked for
// before all else, and looked at later.
template <typename Params>
__device__ __forceinline__ int first_kv_end(const Params& p, int stride = 1) {
  const int lane = threadIdx.x & 31;
  if (stride != 1) return lane < p.batch ? ptx::load_ahead(p.kv_end + lane) : 0;
  return lane < p.batch * p.row_blocks ? ptx::load_ahead(kv_end_of(p, lane)) : 0;
}

template <typename Params>
__device__ __forceinline__ int unit_log2_of(const Params& p, int key_len) {
  if (p.fixed_splits_log2 < 0) return p.unit_log2;
  return fixed_unit_log2(key_len, p.unit_log2, p.fixed_splits_log2);
}

template <typename Params>
__device__ __forceinline__ int units_of_length(const Params& p, int key_len) {
  return unit_count(key_len, unit_log2_of(p, key_len));
}

template <typename Params>
__device__ __forceinline__ int units_of(const Params& p, int request) {
  return units_of_length(p, key_len_of(p, request));
}

// Where the rows of a (virtual) request lie.
struct RowRange {
  int first;       // row of output and lse, [batch * rows]
  int count;       // rows of this piece
  int in_request;  // first row within the request
  int last_query;  // query token of the piece's last row

  template <typename Params>
  __device__ __forceinline__ RowRange(const Params& p, int request) {
    if (p.row_blocks == 1) {
      first = request * p.rows;
      count = p.rows;
      in_request = 0;
      last_query = p.q_len - 1;
      return;
    }
    const int real = divide(request, p.by_row_blocks);
    in_request = (request - real * p.row_blocks) * p.rows_per_block;
    first = real * p.rows + in_request;
    count = min(p.rows - in_request, p.rows_per_block);
    last_query = divide(in_request + count - 1, p.by_heads);
  }

  // How many of the last keys a row of the piece does not see.
  __device__ __forceinline__ int hidden_keys(const KernelParams& p, int row) const {
    const int query = p.q_len == 1 ? 0 : divide(in_request + row, p.by_heads);
    return last_query - min(query, last_query);
  }
};

// The request that holds a block's first unit if all are of one length and there are more units
// than shares: known before any length is.
__device__ __forceinline__ int likely_request(const PlainParams& p, int block) {
  return divide(static_cast<unsigned>(block) * p.batch, p.by_shares);
}

// Walks the segments of this block's share; every warp keeps its own copy in registers.
struct Walker {
  int total;
  int blocks;
  int unit;
  int unit_end;
  int request;
  int first_unit;
  int stride;

  // Share `block` of the requests first_request, first_request + stride, ...; stride: 1, or the
  // row blocks. first: first_kv_end with that stride.
  template <typename Params>
  __device__ __forceinline__ Walker(const Params& p, int block, int first, int first_request = 0,
                                    int stride = 1)
      : request(first_request), first_unit(0), stride(stride) {
    const int lane = threadIdx.x & 31;
    const int requests = stride == 1 ? p.batch * p.row_blocks : p.batch;
    int own = lane < requests ? units_of_length(p, key_len_of(p, nth_request(lane), first)) : 0;
    if (requests == 1) {
      total = __shfl_sync(~0u, own, 0);
      take_share(p, block);
      return;
    }
    if constexpr (kPlain<Params>) {
      if (requests <= 32 && find_likely(p, block, requests, own)) return;
    }
    int sum = own;
#pragma unroll 1
    for (int i = lane + 32; i < requests; i += 32) sum += units_of(p, nth_request(i));
    total = __reduce_add_sync(~0u, sum);
    take_share(p, block);
    // Prefix sums over 32 requests at a time until one of them holds this block's first unit.
    int before = 0;
#pragma unroll 1
    for (int base = 0;; base += 32) {
      const int inclusive = prefix_sum(own);
      if (find_first(base, before, own, inclusive)) return;
      before += __shfl_sync(~0u, inclusive, 31);
      const int i = base + 32 + lane;
      own = i < requests ? units_of(p, nth_request(i)) : 0;
    }
  }

  // The short way where all requests are of one length; own: units of request `lane`.
  __device__ __forceinline__ bool find_likely(const PlainParams& p, int block, int requests,
                                              int own) {
    const int lane = threadIdx.x & 31;
    const int units = __shfl_sync(~0u, own, 0);
    if (!__all_sync(~0u, own == units || lane >= requests)) return false;
    total = units * requests;
    take_share(p, block);
    const int likely = likely_request(p, block);
    const int before = likely * units;
    if (unit < before || unit >= before + units) return false;
    request = likely;
    first_unit = before;
    return true;
  }

  // Until the first one is found, `request` is that of index 0.
  __device__ __forceinline__ int nth_request(int i) const {
    return request + i * stride;
  }

  __device__ __forceinline__ void take_share(const KernelParams& p, int block) {
    blocks = blocks_used(total, p.shares);
    if (total <= p.shares) {
      unit = block < total ? block : 0;
      unit_end = block < total ? block + 1 : 0;
      return;
    }
    unit = divide(static_cast<unsigned>(block) * total, p.by_shares);
    unit_end = divide(static_cast<unsigned>(block + 1) * total, p.by_shares);
  }

  static __device__ __forceinline__ int prefix_sum(int own) {
    const int lane = threadIdx.x & 31;
    int inclusive = own;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int other = __shfl_up_sync(~0u, inclusive, step);
      if (lane >= step) inclusive += other;
    }
    return inclusive;
  }

  // Lane i holds request base + i; before: units of the requests before base.
  __device__ __forceinline__ bool find_first(int base, int before, int own, int inclusive) {
    const unsigned holds = __ballot_sync(~0u, before + inclusive > unit);
    if (holds == 0) return false;
    const int source = __ffs(holds) - 1;
    request = nth_request(base + source);
    first_unit = before + __shfl_sync(~0u, inclusive - own, source);
    return true;
  }

  template <typename Params>
  __device__ __forceinline__ bool next(const Params& p, Segment* segment) {
    if (unit >= unit_end) return false;
    segment->request = request;
    segment->first_unit = first_unit;
    segment->key_len = key_len_of(p, request);
    const int unit_log2 = unit_log2_of(p, segment->key_len);
    segment->units = unit_count(segment->key_len, unit_log2);
    const int request_end = first_unit + segment->units;
    const int end = p.fixed_splits_log2 < 0 ? min(request_end, unit_end) : unit + 1;
    segment->key_begin = (unit - first_unit) << unit_log2;
    segment->key_end = min(segment->key_len, (end - first_unit) << unit_log2);
    segment->whole = unit == first_unit && end == request_end;
    unit = end;
    if (end == request_end) {
      first_unit = request_end;
      request += stride;
    }
    return true;
  }
};

}  // namespace foresail::cuda::mla
