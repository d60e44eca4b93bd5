// MLA decode attention for Hopper (sm_90a): absorbed queries against a paged latent cache.
// Stateless; the caller owns every buffer. May be called from any thread, records into `stream`,
// never synchronises, allocates nothing, and can be captured in a CUDA graph.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace foresail::cuda {

inline constexpr int kMlaLatentDim = 512;  // value width, and the first part of a key
inline constexpr int kMlaRopeDim = 64;     // rotated part of a key
inline constexpr int kMlaKeyDim = kMlaLatentDim + kMlaRopeDim;

enum class MlaDecodeStatus {
  kOk,
  kBadShape,        // a count is not positive, heads > 128 or q_len > 64
  kBadPageSize,     // page_size is not a power of two
  kBadScale,        // cache_scale is not positive, or not 1 with a bf16 cache
  kBadAlignment,    // query or cache pointer is not 16-byte aligned, or a pointer is missing
  kSmallWorkspace,  // workspace_bytes < mla_decode_workspace_bytes(params)
  kNoDevice,        // the current device is not sm_90 or its driver lacks tensor maps
  kLaunchFailed,    // cudaGetLastError() of this thread holds the reason
};

// Blocks of one call wait for each other in the merge, so all of them must be able to run at once.
enum class MlaLaunch {
  kCooperative,  // the driver guarantees it
  kPlain,        // the caller never runs two such calls at the same time on different streams
  kOverlapped,   // as kPlain, and the launch overlaps the end of the kernel before it in the stream
                 // (programmatic dependent launch); no input is read before that kernel has ended
};

enum class MlaCacheType {
  kBf16,
  kE4m3,  // a value is cache_scale times an 8-bit float (4 exponent bits, 3 of mantissa)
};

struct MlaDecodeParams {
  // Shapes.
  int batch = 0;
  int q_len = 1;       // query tokens a request (draft verification uses more than one)
  int num_heads = 0;   // query heads on this device
  int page_size = 64;  // tokens a page, a power of two; the smaller below 16 the slower
  int num_pages = 0;   // pages in the pool
  int max_pages = 0;   // row length of block_table

  // Inputs.
  const void* query = nullptr;  // bf16 [batch, q_len, num_heads, 576]: absorbed latent, then rope
  const void* cache = nullptr;  // cache_type [num_pages, page_size, 576]
  MlaCacheType cache_type = MlaCacheType::kBf16;
  float cache_scale = 1.f;               // positive; 1 for bf16
  const int32_t* block_table = nullptr;  // [num_slots, max_pages]; entries past a length are unused
  const int32_t* slots = nullptr;        // [batch] row of block_table; null: request i uses row i
  const int32_t* kv_end = nullptr;       // [batch] keys visible to the last query token, on device
  int kv_end_add = 0;         // added to every kv_end in the kernel (the step of a draft loop)
  float softmax_scale = 1.f;  // positive

  // Query token i of a request sees keys [0, kv_end + kv_end_add - (q_len - 1 - i)).
  // A token that sees no key gets zeros and an lse of -infinity.

  // Outputs.
  void* output = nullptr;  // bf16 [batch, q_len, num_heads, 512]
  float* lse = nullptr;    // optional [batch, q_len, num_heads], natural logarithm

  // Scratch. Must be zero before the first call; calls of any shapes may follow each other. One
  // workspace serves one stream at a time.
  void* workspace = nullptr;
  size_t workspace_bytes = 0;

  // Where keys are cut, and the order in which parts add up, follow from the keys that a row sees
  // alone: its bits depend on nothing but the row and those keys, not on batch, q_len or pages.
  // Costs time: the rows of each query token read the cache for themselves. Ignores unit_tokens.
  bool fixed_cut = false;

  // Tuning; 0 is the default.
  int unit_tokens = 0;  // granularity of the cut over SMs: 16, 32, 64, 128 ... (a power of two)
  int max_blocks = 0;   // upper limit on thread blocks, at most one per SM
  MlaLaunch launch = MlaLaunch::kCooperative;
};

size_t mla_decode_workspace_bytes(const MlaDecodeParams& params);

MlaDecodeStatus mla_decode(cudaStream_t stream, const MlaDecodeParams& params);

const char* to_string(MlaDecodeStatus status);

}  // namespace foresail::cuda
