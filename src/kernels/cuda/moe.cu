#include <cuda_runtime.h>

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/moe.h"

namespace foresail::cuda {
namespace {

// Of two candidates the larger value; ties: the lower index. index < 0: none.
__device__ __forceinline__ bool better(float a, int a_index, float b, int b_index) {
  if (a_index < 0) return false;
  if (b_index < 0) return true;
  return a > b || (a == b && a_index < b_index);
}

// The best of values[0, count) not yet taken, by a whole warp; it becomes taken.
__device__ int take_best(const float* values, bool* taken, int count) {
  const int lane = threadIdx.x % kWarp;
  float best = 0.0f;
  int index = -1;
  for (int i = lane; i < count; i += kWarp)
    if (!taken[i] && better(values[i], i, best, index)) {
      best = values[i];
      index = i;
    }
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    const float other = __shfl_xor_sync(0xFFFFFFFFu, best, offset);
    const int other_index = __shfl_xor_sync(0xFFFFFFFFu, index, offset);
    if (better(other, other_index, best, index)) {
      best = other;
      index = other_index;
    }
  }
  if (lane == 0) taken[index] = true;
  __syncwarp();
  return index;
}

// One warp a row.
__global__ void __launch_bounds__(kWarp) route_kernel(RouteArgs args) {
  __shared__ float score[kMostExperts];
  __shared__ float choice[kMostExperts];
  __shared__ bool taken[kMostExperts];
  __shared__ float group_score[kMostGroups];
  __shared__ bool group_taken[kMostGroups];
  const int lane = threadIdx.x;
  const float* logits = args.logits + blockIdx.x * args.stride;
  float largest = -INFINITY;
  for (int e = lane; e < args.experts; e += kWarp) largest = fmaxf(largest, logits[e]);
  for (int offset = kWarp / 2; offset > 0; offset /= 2)
    largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, offset));
  float sum = 0.0f;
  for (int e = lane; e < args.experts; e += kWarp) {
    score[e] = args.sigmoid ? 1.0f / (1.0f + expf(-logits[e])) : expf(logits[e] - largest);
    sum += score[e];
  }
  sum = warp_sum(sum);
  for (int e = lane; e < args.experts; e += kWarp) {
    if (!args.sigmoid) score[e] /= sum;
    const float value = score[e] + (args.bias != nullptr ? args.bias[e] : 0.0f);
    choice[e] = isnan(value) ? -INFINITY : value;
    taken[e] = false;
  }
  __syncwarp();
  if (args.group_rule != GroupRule::kNone) {
    const int size = args.experts / args.groups;
    for (int group = lane; group < args.groups; group += kWarp) {
      float first = -INFINITY;
      float second = -INFINITY;
      for (int i = 0; i < size; ++i) {
        const float value = choice[group * size + i];
        if (value > first) {
          second = first;
          first = value;
        } else if (value > second) {
          second = value;
        }
      }
      const bool both = args.group_rule == GroupRule::kTopTwoSum && size > 1;
      group_score[group] = both ? first + second : first;
      group_taken[group] = false;
    }
    __syncwarp();
    for (int i = 0; i < args.top_groups; ++i) take_best(group_score, group_taken, args.groups);
    for (int e = lane; e < args.groups * size; e += kWarp)
      if (!group_taken[e / size]) choice[e] = -INFINITY;
    __syncwarp();
  }
  __shared__ int best[kMostChoices];
  float chosen_sum = 0.0f;
  for (int i = 0; i < args.top_k; ++i) {
    const int index = take_best(choice, taken, args.experts);
    chosen_sum += score[index];
    if (lane == 0) best[i] = index;
  }
  __syncwarp();
  for (int i = lane; i < args.top_k; i += kWarp) {
    const float weight = args.normalize ? score[best[i]] / (chosen_sum + 1e-20f) : score[best[i]];
    args.ids[blockIdx.x * args.top_k + i] = best[i];
    args.weights[blockIdx.x * args.top_k + i] = weight * args.scale;
  }
}

constexpr int kOrderThreads = kMostExperts;

// Sums of both numbers over the threads up to and including this one; `warps` holds 32 entries.
__device__ int2 scan(int2 value, int2* warps) {
  const auto within_warp = [](int2 sum) {
    for (int offset = 1; offset < kWarp; offset *= 2) {
      const int x = __shfl_up_sync(0xFFFFFFFFu, sum.x, offset);
      const int y = __shfl_up_sync(0xFFFFFFFFu, sum.y, offset);
      if (static_cast<int>(threadIdx.x % kWarp) >= offset) sum = make_int2(sum.x + x, sum.y + y);
    }
    return sum;
  };
  const int warp = static_cast<int>(threadIdx.x / kWarp);
  value = within_warp(value);
  if (threadIdx.x % kWarp == kWarp - 1) warps[warp] = value;
  __syncthreads();
  if (warp == 0) warps[threadIdx.x] = within_warp(warps[threadIdx.x]);
  __syncthreads();
  if (warp == 0) return value;
  return make_int2(value.x + warps[warp - 1].x, value.y + warps[warp - 1].y);
}

__global__ void __launch_bounds__(kOrderThreads)
    order_kernel(const int32_t* ids, int pairs, int top_k, int tile_rows, PairLists lists) {
  static_assert(kOrderThreads == kWarp * kWarp);
  __shared__ int fill[kMostExperts];
  __shared__ int2 warps[kWarp];
  const int e = threadIdx.x;
  fill[e] = 0;
  __syncthreads();
  for (int i = threadIdx.x; i < pairs; i += kOrderThreads) atomicAdd(&fill[ids[i]], 1);
  __syncthreads();
  const int count = fill[e];
  const int tiles = (count + tile_rows - 1) / tile_rows;
  const int2 ends = scan(make_int2(count, tiles), warps);
  const int begin = ends.x - count;
  for (int t = 0; t < tiles; ++t)
    lists.tiles[ends.y - tiles + t] = {e, begin + t * tile_rows,
                                       min(tile_rows, count - t * tile_rows)};
  if (e == kMostExperts - 1) *lists.tile_count = ends.y;
  fill[e] = begin;
  __syncthreads();
  // The order inside an expert is arbitrary; no result depends on it.
  for (int i = threadIdx.x; i < pairs; i += kOrderThreads) {
    const int place = atomicAdd(&fill[ids[i]], 1);
    lists.pair_row[place] = i / top_k;
    lists.pair_place[i] = place;
  }
}

constexpr int kCombineThreads = 256;

// Block x: row; y: columns.
__global__ void combine_kernel(const float* results, const int32_t* pair_place, const int32_t* ids,
                               const float* weights, int top_k, float* out, int64_t stride,
                               int cols) {
  let_next_start();
  __shared__ int order[kMostChoices];
  const int64_t first = int64_t{blockIdx.x} * top_k;
  if (threadIdx.x < top_k) {
    int rank = 0;
    for (int i = 0; i < top_k; ++i)
      rank += ids[first + i] < ids[first + threadIdx.x] ||
              (ids[first + i] == ids[first + threadIdx.x] && i < threadIdx.x);
    order[rank] = threadIdx.x;
  }
  __syncthreads();
  const int col = static_cast<int>(blockIdx.y) * kCombineThreads + static_cast<int>(threadIdx.x);
  if (col >= cols) return;
  float* to = out + blockIdx.x * stride + col;
  float value = *to;
  for (int i = 0; i < top_k; ++i) {
    const int64_t pair = first + order[i];
    value = __fmaf_rn(weights[pair], results[int64_t{pair_place[pair]} * cols + col], value);
  }
  *to = value;
}

}  // namespace

void route(cudaStream_t stream, const RouteArgs& args) {
  if (args.rows == 0) return;
  route_kernel<<<static_cast<unsigned>(args.rows), kWarp, 0, stream>>>(args);
}

void order_pairs(cudaStream_t stream, const int32_t* ids, int64_t pairs, int top_k, int tile_rows,
                 const PairLists& lists) {
  order_kernel<<<1, kOrderThreads, 0, stream>>>(ids, static_cast<int>(pairs), top_k, tile_rows,
                                                lists);
}

void combine(cudaStream_t stream, const float* results, const int32_t* pair_place,
             const int32_t* ids, const float* weights, int top_k, const Rows& out) {
  if (out.rows == 0) return;
  const dim3 grid(static_cast<unsigned>(out.rows),
                  static_cast<unsigned>((out.cols + kCombineThreads - 1) / kCombineThreads));
  combine_kernel<<<grid, kCombineThreads, 0, stream>>>(results, pair_place, ids, weights, top_k,
                                                       static_cast<float*>(out.data), out.stride,
                                                       static_cast<int>(out.cols));
}

}  // namespace foresail::cuda
