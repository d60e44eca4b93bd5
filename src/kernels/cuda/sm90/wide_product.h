// Products of more than a few rows with packed bf16 weights (gemm.h) on Hopper's warpgroup
// instructions: faster than gemm() there, in another order of sums. What a row gives does not
// depend on the rows beside it, but differs from what gemm() gives by a rounding of float32 sums.
// Stateless; records into `stream`; may be captured in a CUDA graph.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "kernels/cuda/rows.h"

namespace foresail::cuda {

constexpr int kWideRows = 128;          // of the largest block, and of an expert's largest tile
constexpr int64_t kLeastWideRows = 33;  // gemm() reads weights once for up to 32

// Rows of an expert's tile for so many pairs over so many experts; 0: gemm() had better do it.
int wide_tile_rows(int64_t pairs, int64_t experts);

// Whether there are rows enough, and their layout is one that wide_product takes: aligned to four
// elements, no `norm_weight`, no `beside` (but see takes_beside), tiles of wide_tile_rows().
bool is_wide(const GemmArgs& args);

// Device memory that wide_product writes and reads: the rows, split into bf16 terms in the order in
// which the tensor cores read them; aligned to 16 bytes.
size_t wide_scratch_bytes(const GemmArgs& args);

// The device must be an sm_90; is_wide(args). `is_split`: a kernel before left the rows in scratch.
// `along`: runs in the same launch, where takes_along().
void wide_product(cudaStream_t stream, const GemmArgs& args, void* scratch, bool is_split = false,
                  const SplitProduct* along = nullptr);

// Whether its results may be gated, which gates_rows() (gemm.h) says of f32 rows alone.
bool wide_gates_rows(const GemmArgs& args);

// Whether it is ring_product's (ring_product.h).
bool has_small_tiles(const GemmArgs& args);

// Whether a second product of the same rows may be `beside` in its launch; `plain` if only the
// first is gated.
bool takes_beside(const GemmArgs& args, const GemmArgs& beside);

// Whether a product that has nothing to do with the experts' gate and up may run in their launch.
bool takes_along(const GemmArgs& experts, const GemmArgs& other);

// Whether a product, which is gated or one of heads, may leave its results split for the one that
// reads them, and how: then that is called with `is_split`. `scratch`: of that one, not of this.
bool can_split_for(const GemmArgs& args, const GemmArgs& next);
SplitOut split_out_of(const GemmArgs& next, void* scratch);

// The norm of x, which are the product's rows, and the same rows in its scratch, split: to the bit
// what rms_norm and wide_product make one after the other.
bool norms_and_splits(const Rows& x, const float* weight, const GemmArgs& product);
void norm_and_split(cudaStream_t stream, const Rows& x, const float* weight, float eps,
                    const Rows& normed, const GemmArgs& product, void* scratch);

// Whether the rows of both products, which are the same, are split alike.
bool is_split_alike(const GemmArgs& args, const GemmArgs& other);

}  // namespace foresail::cuda
