// `split_kernel` writes the rows as bf16 terms, as they will lie in shared memory (wide_layout.h).
// `wide_kernel`: 128 or 256 outputs x 128 rows a block, two warpgroups; weights go from memory
// straight into the registers of the warps that multiply them (they are packed as A operands), rows
// come by bulk copies into a ring. Smaller tiles of rows are ring_product's.
#include <cuda_runtime.h>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/product.cuh"
#include "kernels/cuda/sm90/ptx.h"
#include "kernels/cuda/sm90/ring_product.h"
#include "kernels/cuda/sm90/wgmma.h"
#include "kernels/cuda/sm90/wide_layout.h"
#include "kernels/cuda/sm90/wide_product.h"

namespace foresail::cuda {
namespace {

constexpr int kTermBytes = term_bytes(kWideRows);
constexpr int kWarpgroup = 128;
constexpr int kThreads = 2 * kWarpgroup;
constexpr int64_t kProcessors = 132;

// Groups that share their rows share what is split.
int64_t split_groups(const GemmArgs& args) {
  return args.x_group == 0 ? 1 : args.groups;
}
// Rows of a block. A large block reads least, if there are enough of them.
int block_rows(const GemmArgs& args) {
  if (args.tiles != nullptr) return args.tile_rows;
  if (args.rows <= kRingRows) return kRingRows;
  const int64_t results = args.gated ? args.n_out / 2 : args.n_out;
  const int64_t large_blocks = (results + 127) / 128 * row_tiles(args, kWideRows) * args.groups;
  return 2 * large_blocks < kProcessors ? kRingRows : kWideRows;
}

// The 16 bytes that the tensor cores read at positions 8 * half ... of a tile of 16 inputs: the
// inputs 4q + 2 * half and the next, q = 0..3, since a packed tile of weights renames them so.
__device__ __forceinline__ uint4 half_of(const uint32_t (&terms)[4][2], int half) {
  return make_uint4(terms[0][half], terms[1][half], terms[2][half], terms[3][half]);
}

// A warp: 8 rows x 64 inputs, a lane 16 inputs of one row. Block x: eight chunks of inputs; y:
// eight rows; z: group.
template <bool kBF16>
__global__ void __launch_bounds__(kThreads)
    split_kernel(const __grid_constant__ GemmArgs args, int tile_rows, int chunks, uint4* scratch) {
  let_next_start();
  wait_for_previous();
  const int groups_of_tile = tile_rows / kGroupRows;
  const int tile = static_cast<int>(blockIdx.y) / groups_of_tile;
  const int group = static_cast<int>(blockIdx.y) % groups_of_tile;
  const int chunk = static_cast<int>(blockIdx.x) * (kThreads / kWarp) + threadIdx.x / kWarp;
  Part part;
  if (!find_part(args, 0, tile, static_cast<int>(blockIdx.z), tile_rows, part)) return;
  if (chunk >= chunks || group * kGroupRows >= part.row_count) return;
  const int lane = threadIdx.x % kWarp;
  const int line = lane / kChunkTiles;
  const int k = lane % kChunkTiles;
  // What lies past the last row is never stored, so any row will do.
  const void* row =
      row_pointer<kBF16>(args, part, min(group * kGroupRows + line, part.row_count - 1));
  uint32_t high[4][2], low[4][2];
#pragma unroll
  for (int q = 0; q < 4; ++q) {
    const int input = (chunk * kChunkTiles + k) * kTileInputs + 4 * q;
    const Terms x = terms(load_four<kBF16, true>(row, input, static_cast<int>(args.n_in)));
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      high[q][half] = x.high[half];
      low[q][half] = x.low[half];
    }
  }
  constexpr int kTerms = terms_of(kBF16);
  const int64_t tiles = gridDim.y / groups_of_tile;
  const int term = term_bytes(tile_rows);
  uint4* to = scratch + ((((blockIdx.z * tiles + tile) * chunks + chunk) * kTerms * term) +
                         group * kAtomBytes + line * 128) /
                            16;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int place = (2 * k + half) ^ line;  // the swizzle
    to[place] = half_of(high, half);
    if (!kBF16) to[place + term / 16] = half_of(low, half);
  }
}

// Of kTiles times 64 outputs a warpgroup.
template <int kTiles>
constexpr int kStages = kTiles == 1 ? 3 : 4;  // such that two blocks, or one, fit a processor
template <int kTiles, bool kBF16>
constexpr int kSharedBytes = kStages<kTiles>* terms_of(kBF16) * kTermBytes + kAtomBytes;

// Block x: kTiles * 128 outputs, or 128 results where they are gated (kTiles 2); y: 128 rows or an
// expert's tile; z: group.
template <int kTiles, bool kBF16, bool kGated>
__global__ void __launch_bounds__(kThreads, kTiles == 1 ? 2 : 1)
    wide_kernel(const __grid_constant__ GemmArgs args, int chunks, const std::byte* scratch) {
  constexpr int kRing = kStages<kTiles>;
  constexpr int kTerms = terms_of(kBF16);
  constexpr int kStageBytes = kTerms * kTermBytes;
  extern __shared__ std::byte raw[];
  __shared__ uint64_t full[kRing], empty[kRing];

  const int warpgroup = threadIdx.x / kWarpgroup;
  const int warp = threadIdx.x % kWarpgroup / kWarp;
  const int lane = threadIdx.x % kWarp;
  constexpr int kResultTiles = kGated ? 1 : kTiles;  // of a warp
  Part part;
  if (!find_part(args, static_cast<int>(blockIdx.x) * 8 * kResultTiles,
                 static_cast<int>(blockIdx.y), static_cast<int>(blockIdx.z), kWideRows, part))
    return;
  const uint32_t ring = (ptx::shared_address(raw) + kAtomBytes - 1) / kAtomBytes * kAtomBytes;
  const int64_t split = args.x_group == 0 ? blockIdx.y : blockIdx.z * gridDim.y + blockIdx.y;
  const std::byte* rows = scratch + split * chunks * kStageBytes;
  const uint32_t term_bytes =
      static_cast<uint32_t>((part.row_count + kGroupRows - 1) / kGroupRows) * kAtomBytes;
  const auto start_copy = [&](int chunk) {
    const uint32_t barrier = ptx::shared_address(&full[chunk % kRing]);
    ptx::mbarrier_arrive_expect(barrier, kTerms * term_bytes);
    for (int term = 0; term < kTerms; ++term)
      ptx::bulk_load(ring + chunk % kRing * kStageBytes + term * kTermBytes,
                     rows + static_cast<int64_t>(chunk) * kStageBytes + term * kTermBytes,
                     term_bytes, barrier);
  };
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kRing; ++stage) {
      ptx::mbarrier_init(ptx::shared_address(&full[stage]), 1);
      ptx::mbarrier_init(ptx::shared_address(&empty[stage]), 2);
    }
    ptx::fence_mbarrier_init();
    for (int chunk = 0; chunk < min(kRing, chunks); ++chunk) start_copy(chunk);
  }

  const int k_tiles = static_cast<int>(tile_count(args.n_in));
  const int out_tiles = static_cast<int>(tile_count(part.n_out));
  const int first_tile = part.tile + warpgroup * 4 * kResultTiles + warp;
  // Past the last output the first tile is read again and its result thrown away.
  const uint4* weight[kTiles];
#pragma unroll
  for (int m = 0; m < kTiles; ++m) {
    const int tile = kGated ? first_tile : first_tile + 4 * m;
    const int64_t half = kGated ? m * out_tiles : 0;
    weight[m] =
        part.weight + lane + (half + (tile < out_tiles ? tile : 0)) * int64_t{k_tiles} * kWarp;
  }
  uint4 next[kTiles][kChunkTiles];
  const auto load_weights = [&](int chunk) {
#pragma unroll
    for (int m = 0; m < kTiles; ++m)
#pragma unroll
      for (int k = 0; k < kChunkTiles; ++k)
        // Past the last input the rows are zero, so any weights will do.
        next[m][k] = __ldg(weight[m] + min(chunk * kChunkTiles + k, k_tiles - 1) * kWarp);
  };
  load_weights(0);
  __syncthreads();

  float acc[kTiles][64] = {};
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const int stage = chunk % kRing;
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
    if (chunk + 1 < chunks) load_weights(chunk + 1);
    ptx::mbarrier_wait(ptx::shared_address(&full[stage]), chunk / kRing % 2);
    const uint64_t line = ptx::uniform_descriptor(ring + stage * kStageBytes);
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
    // The stage of the chunk before is free once both warpgroups are done with it.
    if (threadIdx.x == 0 && chunk > 0 && chunk - 1 + kRing < chunks) {
      ptx::mbarrier_wait(ptx::shared_address(&empty[(chunk - 1) % kRing]), (chunk - 1) / kRing % 2);
      start_copy(chunk - 1 + kRing);
    }
    __syncwarp();
    ptx::wgmma_wait<0>();
#pragma unroll
    for (int m = 0; m < kTiles; ++m) ptx::pin_registers(acc[m]);
    if (threadIdx.x % kWarpgroup == 0) ptx::mbarrier_arrive(ptx::shared_address(&empty[stage]));
  }

  const Target target{args, part};
  const int g = lane / 4;
  const int q = lane % 4;
#pragma unroll
  for (int m = 0; m < kResultTiles; ++m)
#pragma unroll
    for (int i = 0; i < 64; ++i) {
      const int64_t output = (first_tile + 4 * m) * kTileOutputs + g + (i % 4 >= 2 ? 8 : 0);
      const int row = i / 4 * 8 + 2 * q + i % 2;
      if (output >= part.n_out || row >= part.row_count) continue;
      const int64_t at = target.place(row, output);
      if constexpr (kGated)
        target.store(at, silu_times(acc[0][i], acc[1][i]));
      else
        target.finish(at, output, acc[m][i], target.before(at));
    }
}

template <int kTiles, bool kBF16, bool kGated>
void launch_wide(cudaStream_t stream, const GemmArgs& args, const void* scratch) {
  constexpr int kBlockResults = kGated ? 128 : 128 * kTiles;
  const int64_t results = args.gated ? args.n_out / 2 : args.n_out;
  const dim3 grid(static_cast<unsigned>((results + kBlockResults - 1) / kBlockResults),
                  static_cast<unsigned>(row_tiles(args, kWideRows)),
                  static_cast<unsigned>(args.groups));
  const auto kernel = wide_kernel<kTiles, kBF16, kGated>;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                       kSharedBytes<kTiles, kBF16>);
  kernel<<<grid, kThreads, kSharedBytes<kTiles, kBF16>, stream>>>(
      args, static_cast<int>(chunk_count(args)), static_cast<const std::byte*>(scratch));
}

template <bool kBF16>
void launch(cudaStream_t stream, const GemmArgs& args, void* scratch, bool is_split) {
  const auto chunks = static_cast<int>(chunk_count(args));
  const int tile_rows = block_rows(args);
  const dim3 grid(static_cast<unsigned>((chunks + 7) / 8),
                  static_cast<unsigned>(row_tiles(args, tile_rows) * (tile_rows / kGroupRows)),
                  static_cast<unsigned>(split_groups(args)));
  if (!is_split)
    launch_early(stream, grid, kThreads, 0, split_kernel<kBF16>, args, tile_rows, chunks,
                 static_cast<uint4*>(scratch));
  if (tile_rows < kWideRows) return ring_product(stream, args, scratch);
  if (args.gated) {
    if constexpr (!kBF16) launch_wide<2, false, true>(stream, args, scratch);
    return;
  }
  // Twice the outputs a block reads rows half as often, if there are blocks for all processors.
  const int64_t large_blocks = (args.n_out + 255) / 256 * row_tiles(args, kWideRows) * args.groups;
  if (large_blocks >= kProcessors) return launch_wide<2, kBF16, false>(stream, args, scratch);
  launch_wide<1, kBF16, false>(stream, args, scratch);
}

}  // namespace

int wide_tile_rows(int64_t pairs, int64_t experts) {
  // Most tiles shall be their expert's only one, since every tile reads the weights.
  const int64_t twice_the_mean = 2 * pairs / std::max<int64_t>(experts, 1);
  if (twice_the_mean < 6) return 0;  // gemm() reads no slower
  for (const int rows : {16, 32})
    if (twice_the_mean <= rows) return rows;
  constexpr int64_t kManyRows = 64;
  return twice_the_mean < 2 * kManyRows ? kRingRows : kWideRows;
}

bool is_wide(const GemmArgs& args) {
  const bool enough = args.tiles != nullptr ? args.wide_tiles : args.rows >= kLeastWideRows;
  return enough && has_vector_rows(args) && args.norm_weight == nullptr &&
         args.beside.weight == nullptr;
}

size_t wide_scratch_bytes(const GemmArgs& args) {
  const int tile_rows = block_rows(args);
  return static_cast<size_t>(split_groups(args) * row_tiles(args, tile_rows) * chunk_count(args) *
                             terms_of(args.x_is_bf16) * term_bytes(tile_rows));
}

bool is_split_alike(const GemmArgs& args, const GemmArgs& other) {
  return is_wide(args) && is_wide(other) && args.tiles == nullptr && other.tiles == nullptr &&
         block_rows(args) == block_rows(other);
}

void wide_product(cudaStream_t stream, const GemmArgs& args, void* scratch, bool is_split) {
  args.x_is_bf16 ? launch<true>(stream, args, scratch, is_split)
                 : launch<false>(stream, args, scratch, is_split);
}

}  // namespace foresail::cuda
