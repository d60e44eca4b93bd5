// Choosing the experts of a row, by one warp.
#pragma once

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/moe.h"

namespace foresail::cuda {

// Of two candidates the larger value; ties: the lower index. index < 0: none.
__device__ __forceinline__ bool better(float a, int a_index, float b, int b_index) {
  if (a_index < 0) return false;
  if (b_index < 0) return true;
  return a > b || (a == b && a_index < b_index);
}

// Ordered like the values, and above zero; both zeros give one key.
__device__ __forceinline__ unsigned sorted_key(float value) {
  const unsigned word = __float_as_uint(value + 0.0f);
  return word >> 31 != 0 ? ~word : word | 0x80000000u;
}

// The best of values[0, count) not yet taken, by a whole warp; it becomes taken.
__device__ __forceinline__ int take_best(const float* values, bool* taken, int count) {
  const int lane = threadIdx.x % kWarp;
  float best = 0.0f;
  int index = -1;
#pragma unroll 1
  for (int i = lane; i < count; i += kWarp)
    if (!taken[i] && better(values[i], i, best, index)) {
      best = values[i];
      index = i;
    }
  const unsigned key = index < 0 ? 0 : sorted_key(best);
  const unsigned most = __reduce_max_sync(0xFFFFFFFFu, key);
  index = static_cast<int>(
      __reduce_min_sync(0xFFFFFFFFu, key == most ? static_cast<unsigned>(index) : 0xFFFFFFFFu));
  if (lane == 0) taken[index] = true;
  __syncwarp();
  return index;
}

// What a warp works in; kExperts: most experts. best and weight are its results.
template <int kExperts>
struct RouteSpace {
  float score[kExperts];
  float choice[kExperts];
  bool taken[kExperts];
  float group_score[kMostGroups];
  bool group_taken[kMostGroups];
  int best[kMostChoices];
  float weight[kMostChoices];
};

// logit(e): of expert e, asked for once. All lanes see the results.
template <typename Logit, int kExperts>
__device__ __forceinline__ void route_row(const RouteArgs& args, const Logit& logit,
                                          RouteSpace<kExperts>& space) {
  const int lane = threadIdx.x % kWarp;
  float largest = -INFINITY;
#pragma unroll 1
  for (int e = lane; e < args.experts; e += kWarp) {
    space.choice[e] = logit(e);
    largest = fmaxf(largest, space.choice[e]);
  }
  for (int offset = kWarp / 2; offset > 0; offset /= 2)
    largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, offset));
  float sum = 0.0f;
#pragma unroll 1
  for (int e = lane; e < args.experts; e += kWarp) {
    const float own = space.choice[e];
    space.score[e] = args.sigmoid ? 1.0f / (1.0f + expf(-own)) : expf(own - largest);
    sum += space.score[e];
  }
  sum = warp_sum(sum);
#pragma unroll 1
  for (int e = lane; e < args.experts; e += kWarp) {
    if (!args.sigmoid) space.score[e] /= sum;
    const float value = space.score[e] + (args.bias != nullptr ? args.bias[e] : 0.0f);
    space.choice[e] = isnan(value) ? -INFINITY : value;
    space.taken[e] = false;
  }
  __syncwarp();
  if (args.group_rule != GroupRule::kNone) {
    const int size = args.experts / args.groups;
#pragma unroll 1
    for (int group = lane; group < args.groups; group += kWarp) {
      float first = -INFINITY;
      float second = -INFINITY;
#pragma unroll 1
      for (int i = 0; i < size; ++i) {
        const float value = space.choice[group * size + i];
        if (value > first) {
          second = first;
          first = value;
        } else if (value > second) {
          second = value;
        }
      }
      const bool both = args.group_rule == GroupRule::kTopTwoSum && size > 1;
      space.group_score[group] = both ? first + second : first;
      space.group_taken[group] = false;
    }
    __syncwarp();
#pragma unroll 1
    for (int i = 0; i < args.top_groups; ++i)
      take_best(space.group_score, space.group_taken, args.groups);
#pragma unroll 1
    for (int e = lane; e < args.groups * size; e += kWarp)
      if (!space.group_taken[e / size]) space.choice[e] = -INFINITY;
    __syncwarp();
  }
  float chosen_sum = 0.0f;
#pragma unroll 1
  for (int i = 0; i < args.top_k; ++i) {
    const int index = take_best(space.choice, space.taken, args.experts);
    chosen_sum += space.score[index];
    if (lane == 0) space.best[i] = index;
  }
  __syncwarp();
  for (int i = lane; i < args.top_k; i += kWarp) {
    const float score = space.score[space.best[i]];
    space.weight[i] = (args.normalize ? score / (chosen_sum + 1e-20f) : score) * args.scale;
  }
  __syncwarp();
}

}  // namespace foresail::cuda
