#include "kernels/cuda/sm90/expanded_attention.h"

#include <algorithm>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/sm90/expanded_attention_kernel.cuh"

namespace foresail::cuda {
namespace {

using namespace expanded;

// Of L2, for keys and values that blocks at work share.
constexpr int64_t kSharedKeyBytes = int64_t{24} << 20;

bool is_aligned(const void* pointer, size_t bytes) {
  return reinterpret_cast<uintptr_t>(pointer) % bytes == 0;
}

KernelParams params_of(const ExpandedArgs& args, void* scratch) {
  KernelParams params{};
  params.args = args;
  params.tiles = tiles_of(args, scratch);
  params.scale_log2 = args.softmax_scale * kLog2e;
  params.row_tiles = static_cast<int>((args.rows + kGroupRows - 1) / kGroupRows);
  params.pairs = (params.row_tiles + 1) / 2;
  params.items = params.pairs * args.heads;
  const int64_t head_bytes = int64_t{params.tiles.count} * (kNopeBytes + kValueBytes);
  params.head_group = static_cast<int>(
      std::clamp<int64_t>(kSharedKeyBytes / std::max<int64_t>(head_bytes, 1), 1, args.heads));
  // Where every block gets one pair at most, the longest decides.
  params.opposite = args.causal && params.items <= processor_count();
  return params;
}

}  // namespace

bool fits_tiled_attention(const ExpandedArgs& args) {
  return !args.exact && args.nope_dim == kNope && args.rope_dim == kRope &&
         args.value_dim == kValue && args.softmax_scale > 0.0f && args.key_count > 0 &&
         args.q_stride % 4 == 0 && is_aligned(args.q, 16) && is_aligned(args.k_nope, 16) &&
         is_aligned(args.k_rope, 16) && is_aligned(args.value, 16) && args.out_stride % 2 == 0 &&
         is_aligned(args.out, 8);
}

size_t tiled_attention_bytes(const ExpandedArgs& args) {
  const Tiles tiles = tiles_of(args, nullptr);
  return reinterpret_cast<size_t>(tiles.counter()) + sizeof(int);
}

void tiled_attention(cudaStream_t stream, const ExpandedArgs& args, void* scratch) {
  if (args.rows == 0) return;
  KernelParams params = params_of(args, scratch);
  const dim3 blocks(static_cast<unsigned>(2 * args.heads + 1),
                    static_cast<unsigned>(params.tiles.count));
  launch_early(stream, blocks, kTileThreads, 0, tiles_kernel, args, params.tiles);
  const dim3 grid(static_cast<unsigned>(std::min(params.items, processor_count())));
  launch_early(stream, grid, kThreads, Layout::kTotal, attention_kernel, params);
}

}  // namespace foresail::cuda
