// Expanded attention of the CPU set: keys and values up-projected per head, and the merge of parts.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/cpu_set.h"
#include "kernels/cpu/f8_rows.h"
#include "kernels/element.h"

namespace foresail {
namespace {

constexpr float kNegInf = -std::numeric_limits<float>::infinity();

// Packed keys and values of the heads worked on together: bounds memory at long contexts, and is
// more than the last-level cache anyway.
constexpr int64_t kPackedHeadsBytes = 64 << 20;

}  // namespace

void CpuKernels::expand_latent(const SequenceRows& sequence, int64_t key_begin,
                               const LatentCache& cache, std::span<const MatrixPtr> w_uk,
                               std::span<const MatrixPtr> w_uv, const MatrixView& k_nope,
                               const MatrixView& k_rope, const MatrixView& value) {
  const int64_t key_count = k_rope.rows;
  const bool bf16_cache = cache.dtype == DType::kBF16;
  int32_t* slots = workspace_.get<int32_t>(Scratch::kSlots, key_count);
  for (int64_t j = 0; j < key_count; ++j) {
    const int64_t key = key_begin + j;
    slots[j] = sequence.page_table[key / cache.page_size] * cache.page_size +
               static_cast<int32_t>(key % cache.page_size);
  }
  const int64_t width = cache.latent_dim + cache.rope_dim;
  RowsIn latents = {cache.data, width, slots, bf16_cache};
  float* decoded = nullptr;
  if (cache.dtype == DType::kF8E4M3) {
    decoded = workspace_.get<float>(Scratch::kDecoded, key_count * width);
    for_rows(key_count, width, [&](int64_t j, int) {
      decode_f8_row(cache_row(cache, sequence.page_table, key_begin + j), cache.scale,
                    decoded + j * width, width);
    });
    latents = {decoded, width, nullptr, false};
  }
  GemmArgs epilogue;
  epilogue.out = k_nope.data;
  epilogue.out_stride = k_nope.stride;
  multiply_heads(latents, key_count, w_uk, 0, w_uk[0]->n_out(), epilogue);
  epilogue.out = value.data;
  epilogue.out_stride = value.stride;
  multiply_heads(latents, key_count, w_uv, 0, w_uv[0]->n_out(), epilogue);
  for_rows(key_count, cache.rope_dim, [&](int64_t j, int) {
    const void* row = decoded != nullptr
                          ? static_cast<const void*>(decoded + j * width + cache.latent_dim)
                          : cache_row(cache, sequence.page_table, key_begin + j) +
                                cache.latent_dim * static_cast<int64_t>(size_bytes(cache.dtype));
    isa_.convert(row, bf16_cache, static_cast<float*>(k_rope.data) + j * k_rope.stride, false, 1.0f,
                 cache.rope_dim);
  });
}

// Per head, keys [n | r] and values are packed once in the type of the products; then a task is
// (head, 64 query rows as lanes) over all key blocks those rows see.
void CpuKernels::expanded_attention(const MatrixView& q, int head_count, float softmax_scale,
                                    bool causal, const ExpandedKeys& keys, const MatrixView& out,
                                    const MatrixView& lse) {
  if (attention_oracle_)
    return attention_oracle_->expanded_attention(q, head_count, softmax_scale, causal, keys, out,
                                                 lse);
  const IsaOps::Attention& ops = keys.exact ? isa_.attention_f32 : attention_ops();
  const int64_t r = keys.rope_dim;
  const int64_t head_dim = q.cols / head_count;
  const int64_t n = head_dim - r;
  const int64_t v = out.cols / head_count;
  const int64_t v_stride = padded(v, kLanes);
  const int64_t key_count = keys.key_count;
  const int64_t blocks = padded(key_count, kKeyBlock) / kKeyBlock;
  const int64_t number_bytes = ops.pairs ? 2 : 4;
  const int64_t row_bytes = padded(head_dim, 2) * number_bytes;
  const int64_t keys_bytes = blocks * kKeyBlock * row_bytes;
  const int64_t values_bytes = blocks * packed_values_block_bytes(v);
  const int64_t head_batch = std::clamp<int64_t>(
      kPackedHeadsBytes / std::max<int64_t>(1, keys_bytes + values_bytes), 1, head_count);
  std::byte* packed_keys = workspace_.get<std::byte>(Scratch::kKeys, head_batch * keys_bytes);
  std::byte* packed_values = workspace_.get<std::byte>(Scratch::kValues, head_batch * values_bytes);
  const void** rows =
      workspace_.get<const void*>(Scratch::kKeyRows, head_batch * blocks * kKeyBlock);
  const int64_t query_bytes = kMaxGroupLanes * padded(head_dim, kLanes) * 4;
  const int64_t state_floats = kMaxGroupLanes * (2 + v_stride);
  const int64_t thread_bytes =
      query_bytes + state_floats * 4 + attention_scratch_bytes(head_dim, v);
  std::byte* thread_scratch =
      workspace_.get<std::byte>(Scratch::kThread, pool_.thread_count() * thread_bytes);
  const int64_t row_groups = padded(q.rows, kMaxGroupLanes) / kMaxGroupLanes;
  const auto visible_keys = [&](int64_t row) {
    return causal ? std::max<int64_t>(key_count - q.rows + 1 + row, 0) : key_count;
  };

  for (int64_t first_head = 0; first_head < head_count; first_head += head_batch) {
    const int64_t heads = std::min(head_batch, head_count - first_head);
    pool_.parallel_for(heads * blocks, [&](int64_t task, int) {
      const int64_t head = first_head + task / blocks;
      const int64_t begin = task % blocks * kKeyBlock;
      const int64_t end = std::min(begin + kKeyBlock, key_count);
      const void* values[kKeyBlock];
      for (int64_t j = begin; j < end; ++j) {
        const int64_t place = task / blocks * blocks * kKeyBlock + j;
        std::byte* row = packed_keys + place * row_bytes;
        ops.convert_keys(keys.k_nope + (j * head_count + head) * n, row, n);
        ops.convert_keys(keys.k_rope + j * r, row + n * number_bytes, r);
        if (head_dim % 2 != 0)
          std::fill_n(row + head_dim * number_bytes, number_bytes, std::byte{0});
        rows[place] = row;
        values[j - begin] = keys.value + (j * head_count + head) * v;
      }
      ops.pack_values(values, false, end - begin, v,
                      packed_values + task * packed_values_block_bytes(v));
    });
    pool_.parallel_for(heads * row_groups, [&](int64_t task, int thread) {
      // Row groups of one head follow each other: its keys and values stay in the cache.
      const int64_t head_slot = task / row_groups;
      const int64_t head = first_head + head_slot;
      // Under a causal mask later rows see more keys: the long tasks go first.
      const int64_t row_begin = (row_groups - 1 - task % row_groups) * kMaxGroupLanes;
      const int64_t lane_count = std::min(kMaxGroupLanes, q.rows - row_begin);
      std::byte* queries = thread_scratch + thread * thread_bytes;
      float* state = reinterpret_cast<float*>(queries + query_bytes);
      QueryLane lanes[kMaxGroupLanes];
      int32_t visible[kMaxGroupLanes] = {};
      for (int64_t i = 0; i < lane_count; ++i) {
        lanes[i].query =
            static_cast<const float*>(q.data) + (row_begin + i) * q.stride + head * head_dim;
        visible[i] = static_cast<int32_t>(visible_keys(row_begin + i));
      }
      ops.pack_queries(lanes, lane_count, head_dim, queries);
      AttentionArgs args;
      args.queries = queries;
      args.visible = visible;
      args.lanes = padded(lane_count, kLanes);
      args.key_dim = head_dim;
      args.value_dim = v;
      args.scale = softmax_scale;
      args.key_end = visible[lane_count - 1];
      args.key_rows = rows + head_slot * blocks * kKeyBlock;
      args.rows_are_bf16 = ops.pairs;
      args.rows_are_ready = true;
      args.packed_values = packed_values + head_slot * values_bytes;
      args.state = {state, state + kMaxGroupLanes, state + 2 * kMaxGroupLanes};
      args.scratch = reinterpret_cast<char*>(state + state_floats);
      ops.run(args);
      for (int64_t i = 0; i < lane_count; ++i) {
        const int64_t row = row_begin + i;
        isa_.finish_lane(args.state.acc + i * v_stride, args.state.sum[i], v,
                         static_cast<float*>(out.data) + row * out.stride + head * v, false);
        store_element(
            lse, row, head,
            args.state.sum[i] == 0.0f ? kNegInf : args.state.max[i] + std::log(args.state.sum[i]));
      }
    });
  }
}

void CpuKernels::merge_attention(const MatrixView& other, const MatrixView& other_lse,
                                 const MatrixView& out, const MatrixView& lse) {
  const int64_t v = out.cols / lse.cols;
  for_rows(out.rows, out.cols, [&](int64_t t, int) {
    for (int64_t h = 0; h < lse.cols; ++h) {
      const float a = load_element(lse, t, h);
      const float b = load_element(other_lse, t, h);
      float* mine = static_cast<float*>(out.data) + t * out.stride + h * v;
      const float* theirs = static_cast<const float*>(other.data) + t * other.stride + h * v;
      if (b == kNegInf) continue;  // exact: nothing to add
      if (a == kNegInf) {
        std::copy_n(theirs, v, mine);
        store_element(lse, t, h, b);
        continue;
      }
      const float total = std::max(a, b) + std::log1p(std::exp(-std::abs(a - b)));
      isa_.blend(mine, std::exp(a - total), theirs, std::exp(b - total), v);
      store_element(lse, t, h, total);
    }
  });
}

}  // namespace foresail
