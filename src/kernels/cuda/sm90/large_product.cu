// A block a processor, which takes items of 128 or 256 outputs x 128 rows as long as there are any:
// a warp copies weights and rows into a ring in shared memory, items ahead of the two warpgroups
// that multiply, so that the ring is full when they come from storing results.
#include "kernels/cuda/sm90/large_product.h"

#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/sm90/ring_block.cuh"
#include "kernels/cuda/sm90/wide_product.h"

namespace foresail::cuda {
namespace {

constexpr int kLargeWarps = 8;  // that multiply
constexpr int kWarpgroup = 4 * kWarp;
constexpr int kLargeThreads = kLargeWarps * kWarp + kWarpgroup;  // only a warp of the last works
// Of a thread that copies, and of one that multiplies: all that a processor has.
constexpr int kCopyRegisters = 40;
constexpr int kProductRegisters = 232;
constexpr int kTermBytes = term_bytes(kWideRows);

// kTiles times 128 outputs.
template <int kTiles, bool kBF16, bool kGated>
struct Large {
  static constexpr int kRowBytes = terms_of(kBF16) * kTermBytes;
  static constexpr int kStageBytes = kRowBytes + kTiles * kLargeWarps * kWarpBytes;
  static constexpr int kStages = (192 << 10) / kStageBytes;
  // Results that the next product reads leave by bulk copies: 64 of a warpgroup are a chunk of its.
  static constexpr bool kCopiesResults = kBF16 && kGated;
  static constexpr int kBytes =
      kStages * kStageBytes + (kCopiesResults ? 2 * kTermBytes : 0) + kAtomBytes;
};

// Blocks of results beside each other, tiles of rows, and all items: of the first rows come first.
struct Items {
  int width;
  int row_tiles;
  int count;
  int head_tiles;  // of outputs of a head, where heads that share their rows are one matrix; or 0
};

// False: neither this item nor one behind it has anything to do.
template <int kTiles, bool kGated>
__device__ __forceinline__ bool find_item(const GemmArgs& args, const Items& items, int item,
                                          Part& part) {
  constexpr int kItemTiles = kLargeWarps * (kGated ? 1 : kTiles);
  const int row = item / items.width;
  const bool found = find_part(args, item % items.width * kItemTiles, row % items.row_tiles,
                               row / items.row_tiles, kWideRows, part);
  if (items.head_tiles > 0) part.n_out *= args.groups;
  return found;
}

// A stage of the ring, and whose turn of it: full and empty change with every round.
template <int kStages>
struct Place {
  int stage = 0;
  int round = 0;  // its parity
  __device__ __forceinline__ void advance() {
    if (++stage < kStages) return;
    stage = 0;
    round ^= 1;
  }
};

// By the warp that copies.
template <int kTiles, bool kBF16, bool kGated>
__device__ __forceinline__ void copy_items(const GemmArgs& args, const Items& items, int chunks,
                                           const std::byte* split, uint32_t ring,
                                           const uint64_t* full, const uint64_t* empty) {
  using Large = Large<kTiles, kBF16, kGated>;
  constexpr int kTerms = terms_of(kBF16);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int k_tiles = static_cast<int>(tile_count(args.n_in));
  const bool weights = lane < kTiles * kLargeWarps;
  const int term = lane - kTiles * kLargeWarps;
  Place<Large::kStages> at;
  for (int item = static_cast<int>(blockIdx.x); item < items.count;
       item += static_cast<int>(gridDim.x)) {
    Part part;
    if (!find_item<kTiles, kGated>(args, items, item, part)) return;
    const int out_tiles = static_cast<int>(tile_count(part.n_out));
    const uint32_t copied_rows =
        static_cast<uint32_t>((part.row_count + kGroupRows - 1) / kGroupRows) * kAtomBytes;
    Source source{};
    if (weights) {
      // Past the last output the first tile is read again and its result thrown away.
      const int m = lane / kLargeWarps;
      const int tile = part.tile + lane % kLargeWarps + (kGated ? 0 : kLargeWarps * m);
      int place = (kGated ? m * out_tiles : 0) + (tile < out_tiles ? tile : 0);
      const void* matrix = part.weight;
      if (items.head_tiles > 0) {
        matrix = args.weights[place / items.head_tiles];
        place %= items.head_tiles;
      }
      source = {static_cast<const std::byte*>(matrix) + int64_t{place} * k_tiles * kTileBytes,
                kWarpBytes, static_cast<uint32_t>(Large::kRowBytes + lane * kWarpBytes)};
    } else if (term < kTerms) {
      const int64_t row_tile = item / items.width;
      const int64_t tile = args.x_group == 0 ? row_tile % items.row_tiles : row_tile;
      source = {split + tile * chunks * Large::kRowBytes + term * kTermBytes, Large::kRowBytes,
                static_cast<uint32_t>(term * kTermBytes)};
    }
    for (int chunk = 0; chunk < chunks; ++chunk, at.advance()) {
      const uint32_t barrier = ptx::shared_address(&full[at.stage]);
      ptx::mbarrier_wait(ptx::shared_address(&empty[at.stage]), at.round ^ 1);
      if (lane == 0)
        ptx::mbarrier_arrive_expect(barrier,
                                    kTiles * kLargeWarps * kWarpBytes + kTerms * copied_rows);
      __syncwarp();
      const uint32_t to = ring + at.stage * Large::kStageBytes + source.place;
      if (weights)
        copy_weights(source, chunk, k_tiles, to, barrier);
      else if (term < kTerms)
        ptx::bulk_load(to, source.from + static_cast<int64_t>(chunk) * source.stride, copied_rows,
                       barrier);
    }
  }
}

// By a warpgroup: its 64 results of all rows, each thread's as SplitResults says, to where the next
// product reads them. `memory`: of the warpgroup, for one term.
__device__ __forceinline__ void copy_results(const GemmArgs& args, const Part& part, int row_tile,
                                             const float (&gate)[64], const float (&up)[64],
                                             std::byte* memory) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int barrier = 1 + warp / 4;
  const SplitPlace place = split_place(args, part, part.tile + warp, row_tile);
  if (place.groups == 0) return;  // the whole warpgroup's, since the next has whole chunks
  const bool copies = threadIdx.x % kWarpgroup == 0;
  if (copies) ptx::bulk_stores_read();
  ptx::barrier_sync(barrier, kWarpgroup);
  const SplitResults<true> results(memory, 0, place, lane / 4, lane % 4);
#pragma unroll
  for (int i = 0; i < 64; ++i) results.store(i, silu_times(gate[i], up[i]));
  ptx::fence_proxy_async();
  ptx::barrier_sync(barrier, kWarpgroup);
  if (!copies) return;
  const int together = args.split_out.tile_rows / kGroupRows;  // groups of a tile of the next
  SplitPlace to = place;
  for (int first = 0; first < place.groups; first += together, ++to.row_tile)
    ptx::bulk_store(chunk_of<true>(args.split_out, to),
                    ptx::shared_address(memory) + first * kAtomBytes,
                    min(together, place.groups - first) * kAtomBytes);
  ptx::bulk_stores_commit();
}

// kTiles * 128 outputs an item, or 128 results where they are gated (kTiles 2).
template <int kTiles, bool kBF16, bool kGated>
__global__ void __launch_bounds__(kLargeThreads, 1)
    large_kernel(const __grid_constant__ GemmArgs args, const __grid_constant__ Items items,
                 int chunks, const std::byte* split) {
  using Large = Large<kTiles, kBF16, kGated>;
  extern __shared__ std::byte raw[];
  __shared__ uint64_t full[Large::kStages], empty[Large::kStages];
  let_next_start();
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const uint32_t ring = (ptx::shared_address(raw) + kAtomBytes - 1) / kAtomBytes * kAtomBytes;
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < Large::kStages; ++stage) {
      ptx::mbarrier_init(ptx::shared_address(&full[stage]), 1);
      ptx::mbarrier_init(ptx::shared_address(&empty[stage]), kLargeWarps * kWarp);
    }
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  wait_for_previous();
  if (warp >= kLargeWarps) {
    ptx::register_decrease<kCopyRegisters>();
    if (warp == kLargeWarps)
      copy_items<kTiles, kBF16, kGated>(args, items, chunks, split, ring, full, empty);
    return;
  }
  ptx::register_increase<kProductRegisters>();

  uint4 next[kTiles][kChunkTiles];
  const auto load_weights = [&](const Place<Large::kStages>& at) {
    ptx::mbarrier_wait(ptx::shared_address(&full[at.stage]), at.round);
    const uint32_t from =
        ring + at.stage * Large::kStageBytes + Large::kRowBytes + warp * kWarpBytes + lane * 16;
#pragma unroll
    for (int m = 0; m < kTiles; ++m)
#pragma unroll
      for (int k = 0; k < kChunkTiles; ++k)
        next[m][k] = ptx::load_shared(from + m * kLargeWarps * kWarpBytes + k * kTileBytes);
  };
  Place<Large::kStages> at;
  for (int item = static_cast<int>(blockIdx.x); item < items.count;
       item += static_cast<int>(gridDim.x)) {
    Part part;
    if (!find_item<kTiles, kGated>(args, items, item, part)) break;
    float acc[kTiles][64] = {};
    load_weights(at);
    for (int chunk = 0; chunk < chunks; ++chunk) {
      uint32_t a[kTiles][kChunkTiles][4];
      take_weights(next, a);
      const uint64_t line = ptx::uniform_descriptor(ring + at.stage * Large::kStageBytes);
      start_chunk<kBF16, kTermBytes>(acc, a, line, chunk > 0);
      const uint32_t done = ptx::shared_address(&empty[at.stage]);
      at.advance();
      if (chunk + 1 < chunks) load_weights(at);
      __syncwarp();
      ptx::wgmma_wait<0>();
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
        ptx::pin_registers(acc[m]);
#pragma unroll
        for (int k = 0; k < kChunkTiles; ++k) ptx::keep_registers(a[m][k]);
      }
      // Every lane, since racecheck orders only the accesses of who arrives (docs/mla-decode.md).
      ptx::mbarrier_arrive(done);
    }
    const Target target{args, part};
    const int g = lane / 4;
    const int q = lane % 4;
    const int row_tile = item / items.width % items.row_tiles;
    if constexpr (kGated) {
      if (args.split_out.to == nullptr) {
        store_gated(target, part.tile + warp, acc[0], acc[1], g, q);
      } else if constexpr (Large::kCopiesResults) {
        const int place = Large::kStages * Large::kStageBytes + warp / 4 * kTermBytes;
        copy_results(args, part, row_tile, acc[0], acc[1],
                     raw + (ring - ptx::shared_address(raw)) + place);
      } else {
        const SplitResults<false> results(args, part, part.tile + warp, row_tile, g, q);
#pragma unroll
        for (int i = 0; i < 64; ++i) results.store(i, silu_times(acc[0][i], acc[1][i]));
      }
    } else {
#pragma unroll
      for (int m = 0; m < kTiles; ++m)
        store_sums(target, part.tile + warp + kLargeWarps * m, acc[m], g, q);
    }
  }
  if constexpr (Large::kCopiesResults)
    if (threadIdx.x % kWarpgroup == 0) ptx::bulk_stores_read();  // its memory ends with the block
}

// Heads whose results follow each other and that share their rows.
bool are_one_matrix(const GemmArgs& args) {
  return args.groups > 1 && args.x_group == 0 && args.out_group == args.n_out &&
         args.n_out % kTileOutputs == 0 && args.bias == nullptr;
}

template <int kTiles, bool kBF16, bool kGated>
Items items_of(const GemmArgs& args) {
  constexpr int kResults =
      kGated ? kLargeWarps * kTileOutputs : kTiles * kLargeWarps * kTileOutputs;
  const bool one = are_one_matrix(args);
  const int64_t results = kGated ? args.n_out / 2 : one ? args.groups * args.n_out : args.n_out;
  const int width = block_count(results, kResults);
  const auto tiles = static_cast<int>(row_tiles(args, kWideRows));
  return {width, tiles, width * tiles * (one ? 1 : args.groups),
          one ? static_cast<int>(args.n_out / kTileOutputs) : 0};
}

template <int kTiles, bool kBF16, bool kGated>
void launch(cudaStream_t stream, const GemmArgs& args, const void* rows) {
  const Items items = items_of<kTiles, kBF16, kGated>(args);
  launch_early(stream, dim3(static_cast<unsigned>(std::min(items.count, processor_count()))),
               kLargeThreads, Large<kTiles, kBF16, kGated>::kBytes,
               large_kernel<kTiles, kBF16, kGated>, args, items,
               static_cast<int>(chunk_count(args)), static_cast<const std::byte*>(rows));
}

// Items of twice the outputs read rows half as often: two of them take as long as three, if there
// are enough for all processors.
template <bool kBF16>
void launch_plain(cudaStream_t stream, const GemmArgs& args, const void* rows) {
  const auto rounds = [](const Items& items) {
    return block_count(items.count, processor_count());
  };
  const int large = 3 * rounds(items_of<2, kBF16, false>(args));
  if (large <= 2 * rounds(items_of<1, kBF16, false>(args)))
    return launch<2, kBF16, false>(stream, args, rows);
  launch<1, kBF16, false>(stream, args, rows);
}

template <bool kBF16>
void launch(cudaStream_t stream, const GemmArgs& args, const void* rows) {
  if (args.gated) return launch<2, kBF16, true>(stream, args, rows);
  launch_plain<kBF16>(stream, args, rows);
}

}  // namespace

void large_product(cudaStream_t stream, const GemmArgs& args, const void* rows) {
  args.x_is_bf16 ? launch<true>(stream, args, rows) : launch<false>(stream, args, rows);
}

}  // namespace foresail::cuda
