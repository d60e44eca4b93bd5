// One kernel: 64 or 128 outputs x 16, 32 or 64 rows a block, of five warps: one copies weights and
// rows into the ring, four (a warpgroup) multiply. Weights are packed as A operands, so a warp
// reads its own from shared memory into registers without a bank met twice.
#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/product.cuh"
#include "kernels/cuda/sm90/ptx.h"
#include "kernels/cuda/sm90/ring_product.h"
#include "kernels/cuda/sm90/split_rows.cuh"
#include "kernels/cuda/sm90/wgmma.h"
#include "kernels/cuda/sm90/wide_layout.h"

namespace foresail::cuda {
namespace {

constexpr int kWarps = 4;  // that multiply
constexpr int kThreads = (kWarps + 1) * kWarp;
constexpr int kWarpBytes = kChunkTiles * kTileBytes;  // 64 inputs of 16 outputs

// kTiles times 64 outputs. kAlone: there is a processor for every block, which takes all its
// memory; otherwise two fit.
template <int kTiles, int kRows, bool kBF16, bool kAlone>
struct Ring {
  static constexpr int kRowBytes = terms_of(kBF16) * term_bytes(kRows);
  static constexpr int kStageBytes = kRowBytes + kTiles * kWarps * kWarpBytes;
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

// The work of `block`, whose x is kTiles * 64 outputs, or 64 results where they are gated (kTiles
// 2), and behind them those of args.beside; y: one of row_tiles tiles of kRows rows, or an expert's
// tile; z: group.
template <int kTiles, int kRows, bool kBF16, bool kGated, bool kAlone>
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
      block_count(kGated ? args.n_out / 2 : args.n_out, kWarps * kResultTiles * kTileOutputs);
  const bool is_beside = args.beside.weight != nullptr && beside_block >= 0;
  const bool gated = kGated && !is_beside;
  if (is_beside)
    part = beside_part(args, beside_block * kWarps * kTiles, static_cast<int>(block.y), kRows);
  else if (!find_part(args, static_cast<int>(block.x) * kWarps * kResultTiles,
                      static_cast<int>(block.y), static_cast<int>(block.z), kRows, part))
    return;
  const int warp = threadIdx.x / kWarp;
  const int lane = threadIdx.x % kWarp;
  const uint32_t ring = (ptx::shared_address(raw) + kAtomBytes - 1) / kAtomBytes * kAtomBytes;
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      ptx::mbarrier_init(ptx::shared_address(&full[stage]), 1);
      ptx::mbarrier_init(ptx::shared_address(&empty[stage]), kWarps * kWarp);
    }
    ptx::fence_mbarrier_init();
  }
  __syncthreads();

  if (warp == kWarps) {
    const int k_tiles = static_cast<int>(tile_count(args.n_in));
    const int out_tiles = static_cast<int>(tile_count(part.n_out));
    const uint32_t copied_rows =
        static_cast<uint32_t>((part.row_count + kGroupRows - 1) / kGroupRows) * kAtomBytes;
    const bool weights = lane < kTiles * kWarps;
    const int term = lane - kTiles * kWarps;
    Source source{};
    if (weights) {
      // Past the last output the first tile is read again and its result thrown away.
      const int m = lane / kWarps;
      const int tile = part.tile + lane % kWarps + (gated ? 0 : kWarps * m);
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
        ptx::mbarrier_arrive_expect(ptx::shared_address(&full[chunk % kStages]),
                                    kTiles * kWarps * kWarpBytes + kTerms * copied_rows);
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
        next[m][k] = ptx::load_shared(from + m * kWarps * kWarpBytes + k * kTileBytes);
  };
  float acc[kTiles][kRows / 2] = {};
  load_weights(0);
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const int stage = chunk % kStages;
    uint32_t a[kTiles][kChunkTiles][4];
#pragma unroll
    for (int m = 0; m < kTiles; ++m)
#pragma unroll
      for (int k = 0; k < kChunkTiles; ++k) {
        a[m][k][0] = next[m][k].x;
        a[m][k][1] = next[m][k].y;
        a[m][k][2] = next[m][k].z;
        a[m][k][3] = next[m][k].w;
      }
    const uint64_t line = ptx::uniform_descriptor(ring + stage * Ring::kStageBytes);
#pragma unroll
    for (int m = 0; m < kTiles; ++m) ptx::pin_registers(acc[m]);
    ptx::wgmma_fence();
#pragma unroll
    for (int k = 0; k < kChunkTiles; ++k)
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
        ptx::wgmma_registers<0>(acc[m], a[m][k], line + k * 32 / 16, chunk > 0 || k > 0);
        if (!kBF16) ptx::wgmma_registers<0>(acc[m], a[m][k], line + (kTermBytes + k * 32) / 16, 1);
      }
    ptx::wgmma_commit();
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
    const SplitResults results(args, part, part.tile + warp, block.y, g, q);
#pragma unroll
    for (int i = 0; i < kRows / 2; ++i) results.store(i, silu_times(acc[0][i], acc[kTiles - 1][i]));
    return;
  }
#pragma unroll
  for (int m = 0; m < kTiles; ++m) {
    if (gated && m > 0) break;
#pragma unroll
    for (int i = 0; i < kRows / 2; ++i) {
      const int64_t output =
          int64_t{part.tile + warp + kWarps * m} * kTileOutputs + g + (i % 4 >= 2 ? 8 : 0);
      const int row = i / 4 * 8 + 2 * q + i % 2;
      if (output >= part.n_out || row >= part.row_count) continue;
      const int64_t at = target.place(row, output);
      if (gated)
        target.store(at, silu_times(acc[0][i], acc[kTiles - 1][i]));
      else
        target.finish(at, output, acc[m][i], target.before(at));
    }
  }
}

template <int kTiles, int kRows, bool kBF16, bool kGated, bool kAlone>
__global__ void __launch_bounds__(kThreads, 2)
    ring_kernel(const __grid_constant__ GemmArgs args, int chunks, const std::byte* split) {
  let_next_start();
  ring_block<kTiles, kRows, kBF16, kGated, kAlone>(args, chunks, split, blockIdx,
                                                   static_cast<int>(gridDim.y));
}

// Blocks of `along`, 64 outputs each, and behind them those of the experts' gate and up. The first
// are few and short, so the launch ends with what it is long by.
template <int kRows>
__global__ void __launch_bounds__(kThreads, 2)
    ring_along_kernel(const __grid_constant__ GemmArgs args, int chunks, const std::byte* split,
                      const __grid_constant__ GemmArgs along, int along_chunks,
                      const std::byte* along_split) {
  let_next_start();
  const int along_width = block_count(along.n_out, 64);
  const int along_blocks = along_width * block_count(along.rows, kRingRows);
  const int index = static_cast<int>(blockIdx.x) - along_blocks;
  if (index < 0) {
    const uint3 block = {blockIdx.x % along_width, blockIdx.x / along_width, 0};
    return ring_block<1, kRingRows, false, false, false>(along, along_chunks, along_split, block,
                                                         0);
  }
  const int width = block_count(args.n_out / 2, 64);
  const uint3 block = {static_cast<unsigned>(index % width), static_cast<unsigned>(index / width),
                       0};
  ring_block<2, kRows, false, true, false>(args, chunks, split, block, 0);
}

dim3 grid_of(const GemmArgs& args, int block_results, int rows) {
  // A block of those that are gated has twice the outputs.
  const int beside_results = args.gated ? 2 * block_results : block_results;
  const int blocks = block_count(args.gated ? args.n_out / 2 : args.n_out, block_results) +
                     block_count(args.beside.n_out, beside_results);
  return dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(row_tiles(args, rows)),
              static_cast<unsigned>(args.groups));
}
// Whether no processor gets more than so many blocks.
bool fits(const dim3& grid, int blocks) {
  constexpr int64_t kProcessors = 132;
  return int64_t{grid.x} * grid.y * grid.z <= blocks * kProcessors;
}

template <int kTiles, int kRows, bool kBF16, bool kGated, bool kAlone>
void launch(cudaStream_t stream, const GemmArgs& args, const dim3& grid, const void* rows) {
  launch_early(stream, grid, kThreads, Ring<kTiles, kRows, kBF16, kAlone>::kBytes,
               ring_kernel<kTiles, kRows, kBF16, kGated, kAlone>, args,
               static_cast<int>(chunk_count(args)), static_cast<const std::byte*>(rows));
}

template <int kRows>
void launch_along(cudaStream_t stream, const GemmArgs& args, const void* rows,
                  const SplitProduct& along) {
  const dim3 first = grid_of(args, 64, kRows);
  const dim3 second = grid_of(along.args, 64, kRingRows);
  launch_early(
      stream, dim3(first.x * first.y + second.x * second.y), kThreads,
      std::max(Ring<2, kRows, false, false>::kBytes, Ring<1, kRingRows, false, false>::kBytes),
      ring_along_kernel<kRows>, args, static_cast<int>(chunk_count(args)),
      static_cast<const std::byte*>(rows), along.args, static_cast<int>(chunk_count(along.args)),
      static_cast<const std::byte*>(along.rows));
}

template <int kRows>
void launch_experts(cudaStream_t stream, const GemmArgs& args, const void* rows,
                    const SplitProduct* along) {
  if (along != nullptr) return launch_along<kRows>(stream, args, rows, *along);
  if (args.gated)
    return launch<2, kRows, false, true, false>(stream, args, grid_of(args, 64, kRows), rows);
  const dim3 grid = grid_of(args, 128, kRows);
  args.x_is_bf16 ? launch<2, kRows, true, false, false>(stream, args, grid, rows)
                 : launch<2, kRows, false, false, false>(stream, args, grid, rows);
}

void launch_gated(cudaStream_t stream, const GemmArgs& args, const void* rows) {
  const dim3 grid = grid_of(args, 64, kRingRows);
  if (fits(grid, 1)) return launch<2, kRingRows, false, true, true>(stream, args, grid, rows);
  launch<2, kRingRows, false, true, false>(stream, args, grid, rows);
}

// With twice the outputs a block reads rows half as often, and is slower by itself.
template <bool kBF16>
void launch_matrix(cudaStream_t stream, const GemmArgs& args, const void* rows) {
  const dim3 small = grid_of(args, 64, kRingRows);
  if (fits(small, 1)) return launch<1, kRingRows, kBF16, false, true>(stream, args, small, rows);
  if (fits(small, 2)) return launch<1, kRingRows, kBF16, false, false>(stream, args, small, rows);
  launch<2, kRingRows, kBF16, false, false>(stream, args, grid_of(args, 128, kRingRows), rows);
}

}  // namespace

void ring_product(cudaStream_t stream, const GemmArgs& args, const void* rows,
                  const SplitProduct* along) {
  if (args.tiles != nullptr) {
    if (args.tile_rows == 16) return launch_experts<16>(stream, args, rows, along);
    if (args.tile_rows == 32) return launch_experts<32>(stream, args, rows, along);
    return launch_experts<kRingRows>(stream, args, rows, along);
  }
  if (args.gated) return launch_gated(stream, args, rows);
  args.x_is_bf16 ? launch_matrix<true>(stream, args, rows)
                 : launch_matrix<false>(stream, args, rows);
}

}  // namespace foresail::cuda
