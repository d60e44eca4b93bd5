// Host side of the MLA decode kernel: checks, tensor maps, choice of the instance, launch.
#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>

#include "kernels/cuda/mla_schedule.h"
#include "kernels/cuda/sm90/mla_decode.h"
#include "kernels/cuda/sm90/mla_launch.h"

namespace foresail::cuda {
namespace {

constexpr size_t kAlignment = 256;

size_t align_up(size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// How the rows (q_len * num_heads) of a request are cut into pieces of one kernel instance.
struct RowCut {
  int row_blocks;
  int rows_per_block;
  int columns;     // N of the instance
  bool many_rows;  // of the kernel for more rows than the wide one holds
};

// Whatever decides the instance or the columns beside a row decides its bits: with a fixed cut that
// is the head count only.
constexpr int kFixedRows = 32;
constexpr int kFixedUnitLog2 = 8;    // 256 keys
constexpr int kFixedSplitsLog2 = 5;  // longer requests have larger units

RowCut cut_rows(const MlaDecodeParams& p) {
  const int rows = p.q_len * p.num_heads;
  RowCut cut;
  if (p.fixed_cut) {
    cut.many_rows = false;
    cut.rows_per_block = std::min(p.num_heads, kFixedRows);
    while (p.num_heads % cut.rows_per_block != 0) --cut.rows_per_block;
    cut.row_blocks = rows / cut.rows_per_block;
    cut.columns = cut.rows_per_block <= 8 ? 8 : cut.rows_per_block <= 16 ? 16 : 32;
    return cut;
  }
  // The wide kernels for bf16 copy at most 32 boxes a tile.
  const bool any_rows = p.cache_type == MlaCacheType::kE4m3 || p.page_size > 1;
  cut.many_rows = rows > mla::kWideRows && p.cache_type == MlaCacheType::kBf16 && any_rows;
  const int most = any_rows ? mla::kWideRows : 32;
  cut.row_blocks = (rows + most - 1) / most;
  cut.rows_per_block = (rows + cut.row_blocks - 1) / cut.row_blocks;
  for (int columns : {8, 16, 32, mla::kWideRows}) {
    cut.columns = columns;
    if (columns >= cut.rows_per_block) break;
  }
  return cut;
}

struct DeviceFacts {
  int sm_count = 0;
  bool is_sm90 = false;
};

DeviceFacts device_facts() {
  static std::atomic<int> cached_device{-1};
  static std::atomic<int> cached_sms{0};
  int device = 0;
  DeviceFacts facts;
  if (cudaGetDevice(&device) != cudaSuccess) return facts;
  if (cached_device.load(std::memory_order_acquire) != device) {
    int major = 0, minor = 0, sms = 0;
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
    cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device);
    cached_sms.store(major == 9 && minor == 0 ? sms : 0, std::memory_order_relaxed);
    cached_device.store(device, std::memory_order_release);
  }
  facts.sm_count = cached_sms.load(std::memory_order_relaxed);
  facts.is_sm90 = facts.sm_count > 0;
  return facts;
}

using EncodeTiled = decltype(&cuTensorMapEncodeTiled);

EncodeTiled encode_function() {
  static const EncodeTiled function = [] {
    void* pointer = nullptr;
    cudaDriverEntryPointQueryResult found;
    const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &pointer,
                                                               12000, cudaEnableDefault, &found);
    if (error != cudaSuccess || found != cudaDriverEntryPointSuccess) pointer = nullptr;
    return reinterpret_cast<EncodeTiled>(pointer);
  }();
  return function;
}

// A map of [row_count, 576] elements whose boxes are 128 bytes of columns, swizzled, x box_rows. If
// box_chunks is not 0 the 128 bytes of columns (a chunk) are a dimension of the map, and a box has
// so many of them one behind the other: one copy instead of many.
bool encode_rows(CUtensorMap* map, MlaCacheType type, const void* base, uint64_t row_count,
                 uint32_t box_rows, uint32_t box_chunks, CUtensorMapL2promotion promotion) {
  const bool codes = type == MlaCacheType::kE4m3;
  const uint32_t element_bytes = codes ? 1 : sizeof(__nv_bfloat16);
  const cuuint64_t chunk = 128 / element_bytes;
  const cuuint64_t sizes[3] = {box_chunks > 0 ? chunk : mla::kKeyDim, row_count,
                               mla::kKeyDim / chunk};
  const cuuint64_t strides[2] = {mla::kKeyDim * element_bytes, 128};
  const cuuint32_t box[3] = {static_cast<cuuint32_t>(chunk), box_rows, box_chunks};
  const cuuint32_t steps[3] = {1, 1, 1};
  return encode_function()(map,
                           codes ? CU_TENSOR_MAP_DATA_TYPE_UINT8 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                           box_chunks > 0 ? 3 : 2, const_cast<void*>(base), sizes, strides, box,
                           steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                           promotion, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

// log2 of the parts that a request can be cut into with a fixed cut. Fewer for short tables, where
// more would not be used.
int fixed_splits_log2(const MlaDecodeParams& p) {
  const int64_t most_keys = static_cast<int64_t>(p.max_pages) * p.page_size;
  int log2 = 0;
  while (log2 < kFixedSplitsLog2 && int64_t{1} << (kFixedUnitLog2 + log2) < most_keys) ++log2;
  return log2;
}

// A workspace is: counters and the count of calls; tagged parts; other parts. The first lie where
// they lie in a call of any other shape: every call leaves counters zero, and tags where tags lie.
constexpr size_t kCounterBytes = sizeof(int) * 2 * mla::kMostShares;
constexpr size_t kTaggedBegin = kCounterBytes + kAlignment;
constexpr int kTaggedColumns = 32;  // at most, of the instances with tagged parts

size_t tagged_bytes(int columns, size_t slots) {
  return align_up(sizeof(mla::TaggedPiece) * (columns / 8 * 16) * slots);
}

size_t other_parts_begin(int blocks) {
  return kTaggedBegin + tagged_bytes(kTaggedColumns, 2 * static_cast<size_t>(blocks));
}

size_t workspace_bytes(const MlaDecodeParams& p, int blocks) {
  const RowCut cut = cut_rows(p);
  const size_t slots = p.fixed_cut
                           ? static_cast<size_t>(p.batch) * cut.row_blocks << fixed_splits_log2(p)
                           : 2 * static_cast<size_t>(blocks);
  if (cut.columns <= kTaggedColumns) return kTaggedBegin + tagged_bytes(cut.columns, slots);
  return other_parts_begin(blocks) +
         align_up(sizeof(mla::PartialPiece) * (cut.columns / 8 * 16) * slots);
}

int floor_log2(int value) {
  int log2 = 0;
  while (value >> (log2 + 1) != 0) ++log2;
  return log2;
}

int unit_log2(const MlaDecodeParams& p) {
  return p.fixed_cut ? kFixedUnitLog2 : floor_log2(p.unit_tokens > 0 ? p.unit_tokens : mla::kTile);
}

// Units that the tables have room for: more blocks would only stand in the way of the kernels
// behind.
int64_t most_units(const MlaDecodeParams& p, int requests) {
  const int64_t most_keys = static_cast<int64_t>(p.max_pages) * p.page_size;
  return p.fixed_cut ? int64_t{requests} << fixed_splits_log2(p)
                     : requests * (((most_keys - 1) >> unit_log2(p)) + 1);
}

MlaDecodeStatus check(const MlaDecodeParams& p) {
  if (p.batch <= 0 || p.q_len <= 0 || p.q_len > 64 || p.num_heads <= 0 || p.num_heads > 128 ||
      p.num_pages <= 0 || p.max_pages <= 0 || !(p.softmax_scale > 0.f)) {
    return MlaDecodeStatus::kBadShape;
  }
  if (p.page_size < 1 || (p.page_size & (p.page_size - 1)) != 0) {
    return MlaDecodeStatus::kBadPageSize;
  }
  const int64_t pool_rows = static_cast<int64_t>(p.num_pages) * p.page_size;
  if (pool_rows > (int64_t{1} << 31) - 64) return MlaDecodeStatus::kBadShape;
  if (p.unit_tokens != 0 && (p.unit_tokens < 16 || (p.unit_tokens & (p.unit_tokens - 1)) != 0)) {
    return MlaDecodeStatus::kBadShape;
  }
  if (!(p.cache_scale > 0.f) || (p.cache_type == MlaCacheType::kBf16 && p.cache_scale != 1.f)) {
    return MlaDecodeStatus::kBadScale;
  }
  const auto misaligned = [](const void* pointer, uintptr_t to) {
    return pointer == nullptr || reinterpret_cast<uintptr_t>(pointer) % to != 0;
  };
  if (misaligned(p.query, 16) || misaligned(p.cache, 16) || misaligned(p.output, 4) ||
      misaligned(p.workspace, kAlignment) || misaligned(p.block_table, 4) ||
      misaligned(p.kv_end, 4)) {
    return MlaDecodeStatus::kBadAlignment;
  }
  return MlaDecodeStatus::kOk;
}

}  // namespace

size_t mla_decode_workspace_bytes(const MlaDecodeParams& params) {
  return workspace_bytes(params, device_facts().sm_count);
}

MlaDecodeStatus mla_decode(cudaStream_t stream, const MlaDecodeParams& p) {
  if (const MlaDecodeStatus status = check(p); status != MlaDecodeStatus::kOk) return status;
  const DeviceFacts facts = device_facts();
  if (!facts.is_sm90 || encode_function() == nullptr) return MlaDecodeStatus::kNoDevice;
  const int most_blocks = std::min(facts.sm_count, mla::kMostShares);
  const int most = p.max_blocks > 0 ? std::min(p.max_blocks, most_blocks) : most_blocks;
  if (p.workspace_bytes < workspace_bytes(p, facts.sm_count)) {
    return MlaDecodeStatus::kSmallWorkspace;
  }

  const int rows = p.q_len * p.num_heads;
  const RowCut cut = cut_rows(p);
  const bool codes = p.cache_type == MlaCacheType::kE4m3;
  const int requests = p.batch * cut.row_blocks;
  const int row_sets = cut.many_rows ? row_sets_of(cut.row_blocks, most) : 1;
  const int walked = requests / row_sets;
  const int shares = static_cast<int>(
      std::min<int64_t>(balanced_blocks(walked, most / row_sets), most_units(p, walked)));
  const bool wide = cut.columns == mla::kWideRows && !codes;
  const int page_box = std::min(p.page_size, wide && !cut.many_rows ? mla::kTile / 2 : mla::kTile);
  const int pool_rows = p.num_pages * p.page_size;
  const bool narrow = !codes && !wide;
  const uint32_t box_chunks = !narrow ? 0 : page_box == mla::kTile ? mla::kChunks / mla::kParts : 1;
  CUtensorMap query_map;
  mla::CacheMaps maps;
  if (!encode_rows(&query_map, MlaCacheType::kBf16, p.query, static_cast<uint64_t>(p.batch) * rows,
                   cut.columns, narrow ? mla::kChunks : 0, CU_TENSOR_MAP_L2_PROMOTION_NONE) ||
      !encode_rows(&maps.pages, p.cache_type, p.cache, pool_rows, page_box, box_chunks,
                   CU_TENSOR_MAP_L2_PROMOTION_L2_128B) ||
      !encode_rows(&maps.small, p.cache_type, p.cache, pool_rows,
                   std::min(p.page_size, mla::kSmallBox), narrow ? 1 : 0,
                   CU_TENSOR_MAP_L2_PROMOTION_L2_128B)) {
    return MlaDecodeStatus::kBadShape;
  }

  mla::KernelParams k{};
  k.block_table = p.block_table;
  k.slots = p.slots;
  k.kv_end = p.kv_end;
  k.query = static_cast<const __nv_bfloat16*>(p.query);
  k.output = static_cast<__nv_bfloat16*>(p.output);
  k.lse = p.lse;
  k.counters = static_cast<int*>(p.workspace);
  auto* workspace = static_cast<uint8_t*>(p.workspace);
  k.calls = reinterpret_cast<uint32_t*>(workspace + kCounterBytes);
  k.tagged = reinterpret_cast<mla::TaggedPiece*>(workspace + kTaggedBegin);
  k.partials = reinterpret_cast<mla::PartialPiece*>(workspace + other_parts_begin(facts.sm_count));
  k.kv_end_add = p.kv_end_add;
  k.batch = p.batch;
  k.shares = shares;
  k.row_sets = row_sets;
  k.by_shares = divider(shares);
  k.by_row_blocks = divider(cut.row_blocks);
  k.by_heads = divider(p.num_heads);
  k.q_len = p.q_len;
  k.rows = rows;
  k.row_blocks = cut.row_blocks;
  k.rows_per_block = cut.rows_per_block;
  k.page_log2 = floor_log2(p.page_size);
  k.max_pages = p.max_pages;
  k.pool_rows = pool_rows;
  k.unit_log2 = unit_log2(p);
  k.fixed_splits_log2 = p.fixed_cut ? fixed_splits_log2(p) : -1;
  k.scale_log2 = p.softmax_scale * p.cache_scale * 1.4426950408889634f;
  k.cache_scale = p.cache_scale;
  const mla::LaunchPlace place = {stream, shares * row_sets, p.launch};
  if (codes) return mla::launch_codes(cut.columns, place, maps, k);
  if (cut.many_rows) return mla::launch_many_rows(place, query_map, maps, k);
  if (wide) return mla::launch_wide(place, query_map, maps, k);
  return mla::launch_narrow(cut.columns, place, query_map, maps, k);
}

const char* to_string(MlaDecodeStatus status) {
  switch (status) {
    case MlaDecodeStatus::kOk:
      return "ok";
    case MlaDecodeStatus::kBadShape:
      return "bad shape";
    case MlaDecodeStatus::kBadPageSize:
      return "bad page size";
    case MlaDecodeStatus::kBadScale:
      return "cache scale is not positive, or not 1 with a bf16 cache";
    case MlaDecodeStatus::kBadAlignment:
      return "missing or misaligned pointer";
    case MlaDecodeStatus::kSmallWorkspace:
      return "workspace too small";
    case MlaDecodeStatus::kNoDevice:
      return "device is not sm_90";
    case MlaDecodeStatus::kLaunchFailed:
      return "launch failed";
  }
  return "unknown";
}

}  // namespace foresail::cuda
