// The part of a block of the mixture kernel that chooses the experts, two warps, and finds what the
// block has to do for them.
#pragma once

#include "kernels/cuda/sm90/mixture_block.cuh"
#include "kernels/cuda/sm90/ptx.h"

namespace foresail::cuda::mixing {

class Chooser : protected MixtureBlock {
 public:
  using MixtureBlock::MixtureBlock;

  __device__ __forceinline__ void choose() {
    fetch_tables();
    if (args_.route.experts <= kFewExperts && args_.route.group_rule == GroupRule::kNone) {
      // Twice: the first time brings the instructions near, since all blocks wait for the second.
#pragma unroll 1
      for (int again = 0; again < 2; ++again) {
        if (again > 0) start_launch();
        choose_of_few(again > 0);
        list_chosen();
        sync_choosers();
      }
    } else {
      start_launch();
      const int row = warp_ - kSegments;
      if (row < rows())
        route_row(
            args_.route, [&](int expert) { return await_logit(row, expert); }, lists_.spaces[row]);
      sync_choosers();
      if (row == 0) order_pairs();
      sync_choosers();
      list_chosen();
    }
    ptx::barrier_arrive(kBarChosen, kMixtureThreads);
  }

 private:
  __device__ __forceinline__ static void sync_choosers() {
    ptx::barrier_sync(kBarChoosers, kMostMixedRows * kWarp);
  }
  __device__ __forceinline__ void fetch_tables() {
    auto* tables = reinterpret_cast<const void**>(memory_ + at_.tables);
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x) - kProductThreads; i < args_.route.experts;
         i += kMostMixedRows * kWarp) {
      tables[2 * i] = args_.experts.gate_up[i];
      tables[2 * i + 1] = args_.experts.down[i];
    }
  }
  // By one warp; lane i works on pair i.
  __device__ __forceinline__ void order_pairs() {
    const int top_k = args_.route.top_k;
    const int pairs = static_cast<int>(args_.router.rows) * top_k;
    const bool is_pair = lane_ < pairs;
    const int row = lane_ / top_k;
    const int id = is_pair ? lists_.spaces[row].best[lane_ % top_k] : 0;
    const float weight = is_pair ? lists_.spaces[row].weight[lane_ % top_k] : 0.0f;
    int place = 0;
    int count = 0;
    bool is_first = is_pair;
#pragma unroll 1
    for (int j = 0; j < pairs; ++j) {
      const int other = __shfl_sync(0xFFFFFFFFu, id, j);
      place += other < id || (other == id && j < lane_);
      is_first &= other != id || j >= lane_;
      count += other == id;
    }
    const unsigned firsts = __ballot_sync(0xFFFFFFFFu, is_first);
    int item = 0;
#pragma unroll 1
    for (int j = 0; j < pairs; ++j)
      item += __shfl_sync(0xFFFFFFFFu, id, j) < id && (firsts >> j & 1) != 0;
    if (is_pair) {
      lists_.row[place] = row;
      lists_.weight[place] = weight;
    }
    if (is_first) {
      const auto* tables = reinterpret_cast<const std::byte* const*>(memory_ + at_.tables);
      lists_.items[item] = {tables[2 * id], tables[2 * id + 1], place, count};
    }
    if (lane_ == 0) lists_.item_count = __popc(firsts);
  }
  // What route_row() and order_pairs() do, for few experts without groups: a lane an expert.
  __device__ __forceinline__ void choose_of_few(bool has_logits) {
    const RouteArgs& route = args_.route;
    const int half = warp_ - kSegments;
    const int e = half * kWarp + lane_;
    float score[kMostMixedRows] = {};
#pragma unroll
    for (int row = 0; row < kMostMixedRows; ++row) {
      if (row >= rows()) break;
      // Both warps know all of them.
      float logits[2] = {};
      float largest = -INFINITY;
#pragma unroll
      for (int i = 0; i < 2; ++i)
        if (i * kWarp + lane_ < route.experts) {
          if (has_logits) logits[i] = await_logit(row, i * kWarp + lane_);
          largest = fmaxf(largest, logits[i]);
        }
      for (int offset = kWarp / 2; offset > 0; offset /= 2)
        largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, offset));
      float sum = 0.0f;
#pragma unroll
      for (int i = 0; i < 2; ++i)
        if (i * kWarp + lane_ < route.experts) {
          logits[i] = route.sigmoid ? 1.0f / (1.0f + expf(-logits[i])) : expf(logits[i] - largest);
          sum += logits[i];
        }
      sum = warp_sum(sum);
      score[row] = half == 0 ? logits[0] : logits[1];
      if (!route.sigmoid) score[row] /= sum;
      unsigned key = 0;
      if (e < route.experts) {
        const float value = score[row] + (route.bias != nullptr ? route.bias[e] : 0.0f);
        key = sorted_key(isnan(value) ? -INFINITY : value);
      }
      lists_.few[row].key[e] = key;
    }
    sync_choosers();
#pragma unroll
    for (int row = 0; row < kMostMixedRows; ++row) {
      if (row >= rows()) break;
      Few& few = lists_.few[row];
      const unsigned own = few.key[e];
      int rank = 0;  // how many are better: larger, or as large and before it
      const auto count = [&](unsigned key, int other) { rank += key + (other < e ? 1 : 0) > own; };
#pragma unroll 4
      for (int i = 0; i < kFewExperts; i += 4) {
        const uint4 keys = *reinterpret_cast<const uint4*>(few.key + i);
        count(keys.x, i);
        count(keys.y, i + 1);
        count(keys.z, i + 2);
        count(keys.w, i + 3);
      }
      const bool chosen = own > 0 && rank < route.top_k;
      if (chosen) few.ranked[rank] = score[row];
      const unsigned all_chosen = __ballot_sync(0xFFFFFFFFu, chosen);
      if (lane_ == 0) few.chosen[half] = all_chosen;
    }
    sync_choosers();
    uint64_t all = 0;
    uint64_t chosen[kMostMixedRows] = {};
#pragma unroll
    for (int row = 0; row < kMostMixedRows; ++row) {
      if (row >= rows()) break;
      const Few& few = lists_.few[row];
      chosen[row] = uint64_t{few.chosen[1]} << kWarp | few.chosen[0];
      all |= chosen[row];
      float chosen_sum = 0.0f;
#pragma unroll 1
      for (int i = 0; i < route.top_k; ++i) chosen_sum += few.ranked[i];
      score[row] =
          (route.normalize ? score[row] / (chosen_sum + 1e-20f) : score[row]) * route.scale;
    }
    if ((all >> e & 1) != 0) {
      const uint64_t before = (uint64_t{1} << e) - 1;
      const auto* tables = reinterpret_cast<const std::byte* const*>(memory_ + at_.tables);
      const int begin = __popcll(chosen[0] & before) + __popcll(chosen[1] & before);
      int place = begin;
#pragma unroll
      for (int row = 0; row < kMostMixedRows; ++row) {
        if ((chosen[row] >> e & 1) == 0) continue;
        lists_.row[place] = row;
        lists_.weight[place++] = score[row];
      }
      lists_.items[__popcll(all & before)] = {tables[2 * e], tables[2 * e + 1], begin,
                                              place - begin};
    }
    if (e == 0) lists_.item_count = __popcll(all);
    sync_choosers();
  }
};

}  // namespace foresail::cuda::mixing
