#include "kernels/cuda/logprobs.h"

#include <cuda_runtime.h>

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/row_logits.cuh"

namespace foresail::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kPerThread = kPartCols / kThreads;

// Orders tokens as they are ranked: by key, of equal ones the lower id first. 0 is nobody.
__device__ __forceinline__ uint64_t rank_of(uint32_t key, int64_t id) {
  return uint64_t{key} << 32 | ~static_cast<uint32_t>(id);
}
__device__ __forceinline__ uint32_t key_of(uint64_t rank) {
  return static_cast<uint32_t>(rank >> 32);
}
__device__ __forceinline__ int32_t id_of(uint64_t rank) {
  return static_cast<int32_t>(~static_cast<uint32_t>(rank));
}

__device__ __forceinline__ uint64_t block_max(uint64_t value) {
  __shared__ uint64_t of_warps[kThreads / kWarp];
  for (int offset = kWarp / 2; offset > 0; offset /= 2)
    value = max(value, __shfl_xor_sync(0xFFFFFFFFu, value, offset));
  __syncthreads();  // of_warps may still be read from the time before
  if (threadIdx.x % kWarp == 0) of_warps[threadIdx.x / kWarp] = value;
  __syncthreads();
  value = of_warps[0];
  for (int warp = 1; warp < kThreads / kWarp; ++warp) value = max(value, of_warps[warp]);
  return value;
}

// The `count` greatest of the ranks that the block holds, kHeld a thread, all different.
template <int kHeld>
__device__ __forceinline__ void take_best(const uint64_t (&held)[kHeld], int count,
                                          uint64_t* best) {
  uint64_t last = UINT64_MAX;
  for (int n = 0; n < count; ++n) {
    uint64_t greatest = 0;
#pragma unroll
    for (int i = 0; i < kHeld; ++i)
      if (held[i] < last) greatest = max(greatest, held[i]);
    last = block_max(greatest);
    if (threadIdx.x == 0) best[n] = last;
  }
}

// The best of each part; the first of them also where none are wanted, for the sum.
__global__ void part_best_kernel(ChoiceArgs args, uint64_t* best_of_parts,
                                 unsigned long long* masses) {
  const int64_t row = blockIdx.y;
  const int32_t top_count = args.terms.rows[row].top_count;
  if (top_count < 0) return;
  if (blockIdx.x == 0 && threadIdx.x == 0) masses[row] = 0;
  const float* logits = args.logits + row * args.stride;
  const int64_t begin = blockIdx.x * kPartCols;
  uint64_t held[kPerThread];
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    const int64_t id = begin + i * kThreads + threadIdx.x;
    held[i] = id < args.cols ? rank_of(rank_key(logits[id]), id) : 0;
  }
  take_best(held, max(top_count, 1),
            best_of_parts + (row * gridDim.x + blockIdx.x) * kMostRankedTokens);
}

__device__ __forceinline__ uint32_t largest_key(const uint64_t* best_of_row, int parts) {
  uint64_t largest = 0;
  for (int part = 0; part < parts; ++part)
    largest = max(largest, best_of_row[int64_t{part} * kMostRankedTokens]);
  return key_of(largest);
}

__global__ void mass_kernel(ChoiceArgs args, const uint64_t* best_of_parts,
                            unsigned long long* masses) {
  const int64_t row = blockIdx.y;
  if (args.terms.rows[row].top_count < 0) return;
  const int parts = static_cast<int>(gridDim.x);
  const uint32_t largest = largest_key(best_of_parts + row * parts * kMostRankedTokens, parts);
  const float* logits = args.logits + row * args.stride;
  const int64_t begin = blockIdx.x * kPartCols;
  const int64_t end = min(begin + kPartCols, args.cols);
  unsigned long long mass = 0;
  for (int64_t i = begin + threadIdx.x; i < end; i += kThreads)
    mass += logprob_mass(rank_key(logits[i]), largest);
  for (int offset = kWarp / 2; offset > 0; offset /= 2)
    mass += __shfl_xor_sync(0xFFFFFFFFu, mass, offset);
  if (threadIdx.x % kWarp == 0 && mass > 0) atomicAdd(&masses[row], mass);
}

__global__ void logprob_kernel(ChoiceArgs args, const uint64_t* best_of_parts, int parts,
                               const unsigned long long* masses, RowLogprobs* out) {
  const int64_t row = blockIdx.x;
  const DrawTerms terms = args.terms.rows[row];
  if (terms.top_count < 0) return;
  const int64_t first = row - terms.row;
  const int32_t token = token_to_count(terms, args.terms.fed + first, args.tokens + first);
  if (token < 0) return;
  const uint64_t* best_of_row = best_of_parts + row * parts * kMostRankedTokens;
  const double log_sum = log_of_mass(largest_key(best_of_row, parts), masses[row]);
  const float* logits = args.logits + row * args.stride;
  if (threadIdx.x == 0) out[row].chosen = logprob_of(logits[token], log_sum);
  // Of a part only so many were found.
  uint64_t last = UINT64_MAX;
  for (int n = 0; n < terms.top_count && n < args.cols; ++n) {
    uint64_t greatest = 0;
    for (int i = threadIdx.x; i < parts * terms.top_count; i += kThreads) {
      const uint64_t rank =
          best_of_row[i / terms.top_count * kMostRankedTokens + i % terms.top_count];
      if (rank < last) greatest = max(greatest, rank);
    }
    last = block_max(greatest);
    if (threadIdx.x != 0) continue;
    out[row].ids[n] = id_of(last);
    out[row].values[n] = logprob_of(logits[id_of(last)], log_sum);
  }
}

}  // namespace

size_t logprob_workspace_bytes(int64_t rows, int64_t cols) {
  return static_cast<size_t>(rows) *
         (parts_of(cols) * kMostRankedTokens * sizeof(uint64_t) + sizeof(unsigned long long));
}

void row_logprobs(cudaStream_t stream, const ChoiceArgs& args, void* workspace, RowLogprobs* out) {
  auto* masses = static_cast<unsigned long long*>(workspace);
  auto* best_of_parts = reinterpret_cast<uint64_t*>(masses + args.rows);
  const dim3 grid = grid_of(args);
  part_best_kernel<<<grid, kThreads, 0, stream>>>(args, best_of_parts, masses);
  mass_kernel<<<grid, kThreads, 0, stream>>>(args, best_of_parts, masses);
  logprob_kernel<<<grid.y, kThreads, 0, stream>>>(args, best_of_parts, static_cast<int>(grid.x),
                                                  masses, out);
}

}  // namespace foresail::cuda
