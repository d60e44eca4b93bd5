// Choosing the experts of rows and ordering the (row, choice) pairs, and how blocks of a launch
// agree on which of them goes on where all are needed.
#pragma once

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/moe.h"
#include "kernels/cuda/route.cuh"

namespace foresail::cuda {

// Whether the block is the last of `blocks` to come here: then it sees what the others have
// written, through L2 (__ldcg). By all threads; `count` is zero before and afterwards.
__device__ __forceinline__ bool arrives_last(int32_t* count, int blocks) {
  __shared__ bool is_last;
  __syncthreads();
  if (blocks == 1) return true;
  if (threadIdx.x == 0) {
    int before;
    asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], 1;"
                 : "=r"(before)
                 : "l"(count)
                 : "memory");
    is_last = before == blocks - 1;
    if (is_last) *count = 0;
  }
  __syncthreads();
  return is_last;
}

// By one warp.
template <int kExperts>
__device__ __forceinline__ void choose_experts(const RouteArgs& args, int row,
                                               RouteSpace<kExperts>& space) {
  const float* logits = args.logits + row * args.stride;
  route_row(
      args, [&](int expert) { return __ldcg(logits + expert); }, space);
  for (int i = threadIdx.x % kWarp; i < args.top_k; i += kWarp) {
    args.ids[row * args.top_k + i] = space.best[i];
    args.weights[row * args.top_k + i] = space.weight[i];
  }
}

// Sums of both numbers over the threads up to and including this one; `warps` holds an entry for
// each warp.
template <int kThreads>
__device__ __forceinline__ int2 scan(int2 value, int2* warps) {
  constexpr int kWarps = kThreads / kWarp;
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const auto within_warp = [&](int2 sum) {
    for (int offset = 1; offset < kWarp; offset *= 2) {
      const int x = __shfl_up_sync(0xFFFFFFFFu, sum.x, offset);
      const int y = __shfl_up_sync(0xFFFFFFFFu, sum.y, offset);
      if (lane >= offset) sum = make_int2(sum.x + x, sum.y + y);
    }
    return sum;
  };
  const int warp = static_cast<int>(threadIdx.x / kWarp);
  value = within_warp(value);
  if (lane == kWarp - 1) warps[warp] = value;
  __syncthreads();
  if (warp == 0) {
    const int2 ends = within_warp(lane < kWarps ? warps[lane] : make_int2(0, 0));
    if (lane < kWarps) warps[lane] = ends;
  }
  __syncthreads();
  if (warp == 0) return value;
  return make_int2(value.x + warps[warp - 1].x, value.y + warps[warp - 1].y);
}

// By a block of kThreads: body(i, ids[i]) for i < pairs, of which some are loaded together. ids may
// be what other blocks of the launch have written.
template <int kThreads, typename Body>
__device__ __forceinline__ void for_pairs(const int32_t* ids, int pairs, Body&& body) {
  constexpr int kTogether = 8;
  for (int first = threadIdx.x; first < pairs; first += kTogether * kThreads) {
    int id[kTogether];
#pragma unroll
    for (int j = 0; j < kTogether; ++j)
      if (first + j * kThreads < pairs) id[j] = __ldcg(ids + first + j * kThreads);
#pragma unroll
    for (int j = 0; j < kTogether; ++j)
      if (first + j * kThreads < pairs) body(first + j * kThreads, id[j]);
  }
}

// By a block of kThreads; ids may be what other blocks of the launch have written.
template <int kThreads>
__device__ __forceinline__ void order_pairs_by(const int32_t* ids, int pairs, int top_k,
                                               int tile_rows, const ExpertTables& experts,
                                               const PairLists& lists) {
  constexpr int kOwn = kMostExperts / kThreads;  // experts of a thread
  __shared__ int fill[kMostExperts];
  __shared__ int2 warps[kThreads / kWarp];
  __shared__ int used_tiles;
  for (int e = threadIdx.x; e < kMostExperts; e += kThreads) fill[e] = 0;
  __syncthreads();
  for_pairs<kThreads>(ids, pairs, [&](int, int id) { atomicAdd(&fill[id], 1); });
  __syncthreads();
  const int first = static_cast<int>(threadIdx.x) * kOwn;
  const auto tiles_of = [&](int count) { return (count + tile_rows - 1) / tile_rows; };
  int2 own = {0, 0};
  const void* gate_up[kOwn];  // on their way while the ends are found, all at once
  const void* down[kOwn];
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const int e = first + i;
    const int count = fill[e];
    own.x += count;
    own.y += tiles_of(count);
    gate_up[i] = count > 0 ? experts.gate_up[e] : nullptr;
    down[i] = count > 0 ? experts.down[e] : nullptr;
  }
  const int2 ends = scan<kThreads>(own, warps);
  int begin = ends.x - own.x;
  int tile = ends.y - own.y;
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const int e = first + i;
    const int count = fill[e];
    fill[e] = begin;
    for (int done = 0; done < count; done += tile_rows)
      lists.tiles[tile++] = {e, begin + done, min(tile_rows, count - done), gate_up[i], down[i]};
    begin += count;
  }
  if (threadIdx.x == kThreads - 1) used_tiles = ends.y;
  __syncthreads();
  for (int t = used_tiles + static_cast<int>(threadIdx.x); t < lists.tile_limit; t += kThreads)
    lists.tiles[t] = {};
  // The order inside an expert is arbitrary; no result depends on it.
  for_pairs<kThreads>(ids, pairs, [&](int i, int id) {
    const int place = atomicAdd(&fill[id], 1);
    lists.pair_row[place] = i / top_k;
    lists.pair_place[i] = place;
  });
}

}  // namespace foresail::cuda
