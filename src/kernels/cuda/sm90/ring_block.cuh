// What a block of the ring products does (ring_product.h): 64 or 128 outputs x 16, 32 or 64 rows,
// by five warps: one copies weights and rows into the ring, four (a warpgroup) multiply. Weights
// are packed as A operands, so a warp reads its own from shared memory into registers without a
// bank met twice.
#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/product.cuh"
#include "kernels/cuda/sm90/chunk_product.cuh"
#include "kernels/cuda/sm90/ptx.h"
#include "kernels/cuda/sm90/ring_product.h"
#include "kernels/cuda/sm90/split_rows.cuh"
#include "kernels/cuda/sm90/wgmma.h"
#include "kernels/cuda/sm90/wide_layout.h"

namespace foresail::cuda {

constexpr int kRingWarps = 4;  // that multiply
constexpr int kRingThreads = (kRingWarps + 1) * kWarp;
constexpr int kWarpBytes = kChunkTiles * kTileBytes;  // 64 inputs of 16 outputs

// kTiles times 64 outputs. kAlone: there is a processor for every block, which takes all its
// memory; otherwise two fit.
template <int kTiles, int kRows, bool kBF16, bool kAlone>
struct Ring {
  static constexpr int kRowBytes = terms_of(kBF16) * term_bytes(kRows);
  static constexpr int kStageBytes = kRowBytes + kTiles * kRingWarps * kWarpBytes;
  static constexpr int kStages = ((kAlone ? 216 : 108) << 10) / kStageBytes;
  static constexpr int kBytes = kStages * kStageBytes + kAtomBytes;
};

// What the warp that copies has to know: lane 4 m + w copies the weights of warp w's m-th tile of
// outputs, the next lanes a term of the rows each.
struct Source {
  const std::byte* from;  // nullptr: the lane copies nothing
  int stride;             // bytes, from one chunk to the next
  uint32_t place;         // in a stage
};

// Past the last input rows are zero, so any weights will do: the last there are.
__device__ __forceinline__ void copy_weights(const Source& source, int chunk, int k_tiles,
                                             uint32_t to, uint32_t barrier) {
  const std::byte* from = source.from + static_cast<int64_t>(chunk) * source.stride;
  const int tiles = min(kChunkTiles, k_tiles - chunk * kChunkTiles);
  ptx::bulk_load(to, from, tiles * kTileBytes, barrier);
  for (int k = tiles; k < kChunkTiles; ++k)
    ptx::bulk_load(to + k * kTileBytes, from + (tiles - 1) * kTileBytes, kTileBytes, barrier);
}

constexpr int block_count(int64_t results, int block_results) {
  return static_cast<int>((results + block_results - 1) / block_results);
}

// Where a block splits its rows itself, all of them are in the ring at once.
template <int kTiles, bool kBF16, bool kAlone>
constexpr bool holds_all_rows(const GemmArgs& args) {
  return chunk_count(args) <= Ring<kTiles, kRingRows, kBF16, kAlone>::kStages;
}

// By the warps that multiply: the part's rows as terms into the stages of a ring, of which each
// begins with its rows. A thread takes four inputs of the same line of every group of eight.
template <int kRows, bool kBF16>
__device__ __forceinline__ void split_into_ring(const GemmArgs& args, const Part& part, int chunks,
                                                std::byte* ring, int stage_bytes) {
  constexpr int kGroups = kRows / kGroupRows;
  constexpr int kQuads = kChunkTiles * kTileInputs / 4;  // of a line
  constexpr int kTogether = kBF16 ? 4 : 2;               // chunks loaded together
  static_assert(kRingWarps * kWarp == kQuads * kGroupRows);
  const int quad = threadIdx.x % kQuads;
  const int line = threadIdx.x / kQuads;
  for (int first = 0; first < chunks; first += kTogether) {
    Loaded<kBF16> x[kTogether][kGroups];
#pragma unroll
    for (int c = 0; c < kTogether; ++c)
#pragma unroll
      for (int group = 0; group < kGroups; ++group)
        // What lies past the last row is never stored, so any row will do.
        x[c][group] = load_four<kBF16, true>(
            row_pointer<kBF16>(args, part, min(group * kGroupRows + line, part.row_count - 1)),
            (first + c) * kChunkTiles * kTileInputs + 4 * quad, static_cast<int>(args.n_in));
#pragma unroll
    for (int c = 0; c < kTogether; ++c) {
      if (first + c >= chunks) break;
#pragma unroll
      for (int group = 0; group < kGroups; ++group)
        store_quad<kBF16>(terms(x[c][group]), ring + (first + c) * stage_bytes + group * kAtomBytes,
                          term_bytes(kRows), line, quad);
    }
  }
  ptx::fence_proxy_async();  // tensor cores read them
  ptx::barrier_sync(1, kRingWarps * kWarp);
}

// The work of `block`, whose x is kTiles * 64 outputs, or 64 results where they are gated (kTiles
// 2), and behind them those of args.beside; y: one of row_tiles tiles of kRows rows, or an expert's
// tile; z: group. kSplits: the block splits its rows itself, and `split` is nothing.
template <int kTiles, int kRows, bool kBF16, bool kGated, bool kAlone, bool kSplits = false>
__device__ __forceinline__ void ring_block(const GemmArgs& args, int chunks, const std::byte* split,
                                           const uint3& block, int row_tiles) {
  using Ring = Ring<kTiles, kRows, kBF16, kAlone>;
  constexpr int kStages = Ring::kStages;
  constexpr int kTerms = terms_of(kBF16);
  constexpr int kTermBytes = term_bytes(kRows);
  constexpr int kResultTiles = kGated ? 1 : kTiles;  // of a warp
  extern __shared__ std::byte raw[];
  __shared__ uint64_t full[kStages], empty[kStages];
  if (args.tiles != nullptr) wait_for_previous();  // which weights is a result
  Part part;
  const int beside_block =
      static_cast<int>(block.x) -
      block_count(kGated ? args.n_out / 2 : args.n_out, kRingWarps * kResultTiles * kTileOutputs);
  const bool is_beside = args.beside.weight != nullptr && beside_block >= 0;
  const bool gated = kGated && !is_beside;
  if (is_beside)
    part = beside_part(args, beside_block * kRingWarps * kTiles, static_cast<int>(block.y), kRows);
  else if (!find_part(args, static_cast<int>(block.x) * kRingWarps * kResultTiles,
                      static_cast<int>(block.y), static_cast<int>(block.z), kRows, part))
    return;
  const int warp = threadIdx.x / kWarp;
  const int lane = threadIdx.x % kWarp;
  const uint32_t ring = (ptx::shared_address(raw) + kAtomBytes - 1) / kAtomBytes * kAtomBytes;
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      ptx::mbarrier_init(ptx::shared_address(&full[stage]), 1);
      ptx::mbarrier_init(ptx::shared_address(&empty[stage]), kRingWarps * kWarp);
    }
    ptx::fence_mbarrier_init();
  }
  __syncthreads();

  if (warp == kRingWarps) {
    const int k_tiles = static_cast<int>(tile_count(args.n_in));
    const int out_tiles = static_cast<int>(tile_count(part.n_out));
    const uint32_t copied_rows =
        static_cast<uint32_t>((part.row_count + kGroupRows - 1) / kGroupRows) * kAtomBytes;
    const bool weights = lane < kTiles * kRingWarps;
    const int term = kSplits ? kTerms : lane - kTiles * kRingWarps;
    Source source{};
    if (weights) {
      // Past the last output the first tile is read again and its result thrown away.
      const int m = lane / kRingWarps;
      const int tile = part.tile + lane % kRingWarps + (gated ? 0 : kRingWarps * m);
      const int64_t half = gated ? m * out_tiles : 0;
      source = {reinterpret_cast<const std::byte*>(part.weight) +
                    (half + (tile < out_tiles ? tile : 0)) * k_tiles * kTileBytes,
                kWarpBytes, static_cast<uint32_t>(Ring::kRowBytes + lane * kWarpBytes)};
    } else if (term < kTerms) {
      const int64_t tile = args.x_group == 0 ? block.y : int64_t{block.z} * row_tiles + block.y;
      source = {split + tile * chunks * Ring::kRowBytes + term * kTermBytes, Ring::kRowBytes,
                static_cast<uint32_t>(term * kTermBytes)};
    }
    const auto copy = [&](int chunk) {
      const int stage = chunk % kStages;
      const uint32_t barrier = ptx::shared_address(&full[stage]);
      const uint32_t to = ring + stage * Ring::kStageBytes + source.place;
      if (weights)
        copy_weights(source, chunk, k_tiles, to, barrier);
      else if (term < kTerms)
        ptx::bulk_load(to, source.from + static_cast<int64_t>(chunk) * source.stride, copied_rows,
                       barrier);
    };
    // Bytes may arrive before they are announced: a phase does not end before the announcement.
    const auto announce = [&](int chunk) {
      if (lane == 0)
        ptx::mbarrier_arrive_expect(
            ptx::shared_address(&full[chunk % kStages]),
            kTiles * kRingWarps * kWarpBytes + (kSplits ? 0 : kTerms * copied_rows));
      __syncwarp();
    };
    // Weights are nobody's result.
    const int ahead = min(kStages, chunks);
    for (int chunk = 0; chunk < ahead; ++chunk) {
      announce(chunk);
      if (weights) copy(chunk);
    }
    wait_for_previous();
    for (int chunk = 0; chunk < ahead; ++chunk)
      if (!weights) copy(chunk);
    for (int chunk = ahead; chunk < chunks; ++chunk) {
      ptx::mbarrier_wait(ptx::shared_address(&empty[chunk % kStages]), (chunk / kStages - 1) % 2);
      announce(chunk);
      copy(chunk);
    }
    return;
  }

  if constexpr (kSplits) {
    wait_for_previous();
    split_into_ring<kRows, kBF16>(args, part, chunks, raw + (ring - ptx::shared_address(raw)),
                                  Ring::kStageBytes);
  }
  uint4 next[kTiles][kChunkTiles];
  const auto load_weights = [&](int chunk) {
    const int stage = chunk % kStages;
    ptx::mbarrier_wait(ptx::shared_address(&full[stage]), chunk / kStages % 2);
    const uint32_t from =
        ring + stage * Ring::kStageBytes + Ring::kRowBytes + warp * kWarpBytes + lane * 16;
#pragma unroll
    for (int m = 0; m < kTiles; ++m)
#pragma unroll
      for (int k = 0; k < kChunkTiles; ++k)
        next[m][k] = ptx::load_shared(from + m * kRingWarps * kWarpBytes + k * kTileBytes);
  };
  float acc[kTiles][kRows / 2] = {};
  load_weights(0);
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const int stage = chunk % kStages;
    uint32_t a[kTiles][kChunkTiles][4];
    take_weights(next, a);
    const uint64_t line = ptx::uniform_descriptor(ring + stage * Ring::kStageBytes);
    start_chunk<kBF16, kTermBytes>(acc, a, line, chunk > 0);
    if (chunk + 1 < chunks) load_weights(chunk + 1);
    __syncwarp();
    ptx::wgmma_wait<0>();
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
      ptx::pin_registers(acc[m]);
#pragma unroll
      for (int k = 0; k < kChunkTiles; ++k) ptx::keep_registers(a[m][k]);
    }
    // Every lane, since racecheck orders only the accesses of who arrives (docs/mla-decode.md).
    ptx::mbarrier_arrive(ptx::shared_address(&empty[stage]));
  }

  wait_for_previous();
  const Target target{args, part};
  const int g = lane / 4;
  const int q = lane % 4;
  if (gated && args.split_out.to != nullptr) {
    const SplitResults<kBF16> results(args, part, part.tile + warp, block.y, g, q);
#pragma unroll
    for (int i = 0; i < kRows / 2; ++i) results.store(i, silu_times(acc[0][i], acc[kTiles - 1][i]));
    return;
  }
  // Results of heads; can_split_for() has seen to it that nothing is done to their sums.
  if (!kGated && kRows == kRingRows && args.split_out.to != nullptr) {
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
      const SplitResults<false> results(args, part, part.tile + warp + kRingWarps * m, block.y, g,
                                        q);
#pragma unroll
      for (int i = 0; i < kRows / 2; ++i) results.store(i, acc[m][i]);
    }
    return;
  }
  if (gated) return store_gated(target, part.tile + warp, acc[0], acc[kTiles - 1], g, q);
#pragma unroll
  for (int m = 0; m < kTiles; ++m)
    store_sums(target, part.tile + warp + kRingWarps * m, acc[m], g, q);
}

inline dim3 ring_grid(const GemmArgs& args, int block_results, int rows) {
  // A block of those that are gated has twice the outputs.
  const int beside_results = args.gated ? 2 * block_results : block_results;
  const int blocks = block_count(args.gated ? args.n_out / 2 : args.n_out, block_results) +
                     block_count(args.beside.n_out, beside_results);
  return dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(row_tiles(args, rows)),
              static_cast<unsigned>(args.groups));
}

// Whether no processor gets more than so many blocks.
inline bool fits_processors(const dim3& grid, int blocks) {
  constexpr int64_t kProcessors = 132;
  return int64_t{grid.x} * grid.y * grid.z <= blocks * kProcessors;
}

}  // namespace foresail::cuda
