// What a block of the mixture kernel keeps in shared memory, and where.
#pragma once

#include <algorithm>
#include <cstddef>

#include "kernels/cuda/product.cuh"
#include "kernels/cuda/route.cuh"
#include "kernels/cuda/sm90/mixture.h"

namespace foresail::cuda::mixing {

constexpr int kFewExperts = kMostMixedRows * kWarp;  // one a thread of those that choose
using Space = RouteSpace<kMostMixedExperts>;

// args.meeting: launches so far, blocks of them that had their results of gate and up, a gap; then
// the router's results of rows, as two words each: the number, and the number of the launch.
enum MeetingWord : int { kLaunches, kGatedDone, kLogits = 4 };
static_assert(kMeetingWords == kLogits + 2 * kMostMixedRows * kMostMixedExperts);

constexpr int kMixtureThreads = kProductThreads + kMostMixedRows * kWarp;
// Named barriers. 0 is __syncthreads.
enum : int { kBarProducts = 1, kBarChoosers, kBarChosen };

// A warp has a ring of its own, of units: it copies what it will multiply. Measured: deeper rings
// are not faster, smaller units are slower.
constexpr int kStages = 2;
constexpr int kUnitBytes = 6144;
constexpr int kRingBytes = kSegments * kStages * kUnitBytes;
constexpr int kPlainTiles = kUnitBytes / kTileBytes;
constexpr int kGatedTiles = kPlainTiles / 2;  // of gate, and as many of up
constexpr int kTogether = 4;                  // tiles multiplied without a question between
constexpr int kMostTasks = 256;
constexpr int kMostPairs = kWarp;
constexpr int kMostOwnTiles = 4;

// Lanes that store 2q, g meet no bank twice.
constexpr int kPartialStride = kTileOutputs + 4;
struct Partial {
  float sum[2][kSegments][kFewRows][kPartialStride];
};

// 16 results of one expert, or of the shared one or the router, for the rows that want them.
struct Task {
  const std::byte* weight;
  const std::byte* up;  // beside those of gate; null: not gated
  int k_tiles;          // of inputs
  int item;             // of Lists::items, if it is an expert's
  int output;           // the first result; of down: the block's how manieth tile of outputs
};
struct Item {  // a chosen expert
  const std::byte* gate_up;
  const std::byte* down;
  int begin, count;  // of the pairs
};
// Of a row, for kFewExperts.
struct alignas(16) Few {
  unsigned key[kFewExperts];   // ordered like the scores; 0: no expert
  float ranked[kMostChoices];  // scores of the chosen, the best first
  unsigned chosen[kFewExperts / kWarp];
};
struct Lists {
  Item items[kMostPairs];
  int row[kMostPairs];  // of the pairs, ordered by expert
  float weight[kMostPairs];
  int item_count;
  Task tasks[kMostTasks];
  float value[kMostOwnTiles][kMostMixedRows][kTileOutputs];
  float shared_value[kMostOwnTiles][kMostMixedRows][kTileOutputs];
  uint64_t barriers[kSegments][kStages];
  float squares[kMostMixedRows][kSegments];
  Partial partial[2];
  Space spaces[kMostMixedRows];  // of many experts
  Few few[kMostMixedRows];
};

// Places in shared memory: the ring, Lists, rows as two bf16 terms, pointers of all experts.
struct Layout {
  int lists, normed, norm_weights, inner, shared, tables, bytes;
};
inline Layout layout_of(const MixtureArgs& args) {
  const auto rows = static_cast<int>(args.router.rows);
  const auto hidden = static_cast<int>(args.router.n_in);
  const auto inner = static_cast<int>(args.inner_dim);
  const auto shared = static_cast<int>(args.shared_dim);
  Layout at;
  at.lists = kRingBytes;
  at.normed = at.lists + static_cast<int>(sizeof(Lists) + 127) / 128 * 128;
  at.norm_weights = at.normed + rows * hidden * 4;
  at.inner = at.normed;  // when the others are no longer needed
  at.shared = at.inner + rows * args.route.top_k * inner * 4;
  const int before = at.norm_weights + hidden * 4;
  const int after = at.shared + rows * shared * 4;
  at.tables = std::max(before, after);
  at.bytes = at.tables + args.route.experts * 16;
  return at;
}

}  // namespace foresail::cuda::mixing
