// Absorbed attention of the CPU set: all heads and rows of a request share each cache row.
//
// The lanes of a request, (row, head) pairs, are cut into groups of up to 64; its keys into splits
// of 256. Each (group, split) gives a partial softmax; the partials of a group are folded in split
// order. Blocks and splits start at key 0, so neither threads nor batch nor paging can change bits.
#include <algorithm>

#include "kernels/cpu/cpu_set.h"
#include "kernels/cpu/f8_rows.h"
#include "kernels/element.h"

namespace foresail {
namespace {

// 256 keys x 16 heads are some 50 us of work: a task worth handing over, and a context of 512 still
// makes two of them. Folding a partial costs a few percent of making it.
constexpr int64_t kSplitKeys = 256;
static_assert(kSplitKeys % kKeyBlock == 0);

// Partials kept at a time per group: 16 splits x 64 lanes x 512 floats = 2 MiB.
constexpr int64_t kWaveSplits = 16;

struct LaneGroup {
  int32_t sequence;
  int32_t lane_begin;  // lane = row of the request * heads + head
  int32_t lane_count;  // used lanes
  int32_t key_end;     // most keys any of its lanes sees
};

struct Shape {
  int head_count;
  int64_t key_dim;
  int64_t value_dim;
  int64_t value_stride;
  int64_t state_floats;   // of one group
  int64_t query_bytes;    // of one group
  int64_t scratch_bytes;  // of one thread
};

Shape make_shape(const LatentCache& cache, int head_count) {
  Shape s{};
  s.head_count = head_count;
  s.key_dim = cache.latent_dim + cache.rope_dim;
  s.value_dim = cache.latent_dim;
  s.value_stride = padded(s.value_dim, kLanes);
  s.state_floats = kMaxGroupLanes * (2 + s.value_stride);
  s.query_bytes = kMaxGroupLanes * padded(s.key_dim, kLanes) * 4;
  s.scratch_bytes = attention_scratch_bytes(s.key_dim, s.value_dim);
  return s;
}

AttentionState state_at(float* base, const Shape& shape, int64_t lane = 0) {
  return {base + lane, base + kMaxGroupLanes + lane,
          base + 2 * kMaxGroupLanes + lane * shape.value_stride};
}

int64_t split_count(const LaneGroup& group) {
  return (group.key_end + kSplitKeys - 1) / kSplitKeys;
}

int32_t visible_keys(const SequenceRows& seq, int64_t row) {
  return std::max<int32_t>(0, seq.kv_end - seq.row_count + 1 + static_cast<int32_t>(row));
}

// Groups of nearly equal panels for every request that is not padding.
int64_t make_groups(std::span<const SequenceRows> sequences, int head_count, LaneGroup* out) {
  int64_t count = 0;
  for (size_t s = 0; s < sequences.size(); ++s) {
    const SequenceRows& seq = sequences[s];
    if (seq.kv_end == 0) continue;
    const int64_t lanes = int64_t{seq.row_count} * head_count;
    const int64_t panels = padded(lanes, kLanes) / kLanes;
    const int64_t groups = padded(lanes, kMaxGroupLanes) / kMaxGroupLanes;
    for (int64_t g = 0; g < groups; ++g) {
      const int64_t begin = panels * g / groups * kLanes;
      const int64_t end = std::min(lanes, panels * (g + 1) / groups * kLanes);
      out[count++] = {static_cast<int32_t>(s), static_cast<int32_t>(begin),
                      static_cast<int32_t>(end - begin), visible_keys(seq, (end - 1) / head_count)};
    }
  }
  return count;
}

}  // namespace

void CpuKernels::latent_attention(const MatrixView& q, int head_count, float softmax_scale,
                                  std::span<const SequenceRows> sequences, const LatentCache& cache,
                                  const MatrixView& out) {
  if (attention_oracle_)
    return attention_oracle_->latent_attention(q, head_count, softmax_scale, sequences, cache, out);
  const Shape shape = make_shape(cache, head_count);
  // Like rows of a product: an f32 output asks for f32 arithmetic, whatever the cache holds.
  const IsaOps::Attention& ops = out.dtype == DType::kF32 ? isa_.attention_f32 : attention_ops();
  int64_t most_groups = 0;
  for (const SequenceRows& seq : sequences)
    most_groups += padded(int64_t{seq.row_count} * head_count, kMaxGroupLanes) / kMaxGroupLanes;
  LaneGroup* groups = workspace_.get<LaneGroup>(Scratch::kGroups, most_groups);
  const int64_t group_count = make_groups(sequences, head_count, groups);
  if (group_count == 0) return;
  const bool bf16_cache = cache.dtype == DType::kBF16;
  // Cache rows serve as they are if the products take their type and whole steps cover them.
  const bool ready = ops.pairs ? bf16_cache && shape.key_dim % 2 == 0 : !bf16_cache;
  // Codes of a split are decoded to f32 rows first.
  const bool coded = cache.dtype == DType::kF8E4M3;
  const int64_t row_bytes = shape.key_dim * static_cast<int64_t>(size_bytes(cache.dtype));
  const int64_t decoded_bytes = coded ? kSplitKeys * padded(shape.key_dim, kLanes) * 4 : 0;
  const int64_t scratch_bytes =
      decoded_bytes + kSplitKeys * int64_t{sizeof(void*)} + shape.scratch_bytes;
  std::byte* thread_scratch =
      workspace_.get<std::byte>(Scratch::kThread, pool_.thread_count() * scratch_bytes);

  const auto pack_group = [&](const LaneGroup& group, std::byte* queries) {
    const SequenceRows& seq = sequences[static_cast<size_t>(group.sequence)];
    QueryLane lanes[kMaxGroupLanes];
    for (int i = 0; i < group.lane_count; ++i) {
      const int64_t lane = group.lane_begin + i;
      lanes[i].query = static_cast<const float*>(q.data) +
                       (seq.row_begin + lane / head_count) * q.stride +
                       lane % head_count * shape.key_dim;
    }
    ops.pack_queries(lanes, group.lane_count, shape.key_dim, queries);
  };
  const auto run_split = [&](const LaneGroup& group, int64_t split, const std::byte* queries,
                             float* state, int thread) {
    const SequenceRows& seq = sequences[static_cast<size_t>(group.sequence)];
    // Lanes that only fill up a panel see what the last one sees, so that they mask nothing.
    int32_t visible[kMaxGroupLanes];
    std::fill_n(visible, kMaxGroupLanes, group.key_end);
    for (int i = 0; i < group.lane_count; ++i)
      visible[i] = visible_keys(seq, (group.lane_begin + i) / head_count);
    float* decoded = reinterpret_cast<float*>(thread_scratch + thread * scratch_bytes);
    std::byte* scratch = thread_scratch + thread * scratch_bytes + decoded_bytes;
    const void** rows = reinterpret_cast<const void**>(scratch);
    AttentionArgs args;
    args.key_begin = split * kSplitKeys;
    args.key_end = std::min<int64_t>(args.key_begin + kSplitKeys, group.key_end);
    for (int64_t key = args.key_begin; key < args.key_end;) {
      const std::byte* row = cache_row(cache, seq.page_table, key);
      const int64_t run =
          std::min<int64_t>(cache.page_size - key % cache.page_size, args.key_end - key);
      for (int64_t i = 0; i < run; ++i) {
        const void*& at = rows[key - args.key_begin + i];
        at = row + i * row_bytes;
        if (!coded) continue;
        float* values = decoded + (key - args.key_begin + i) * padded(shape.key_dim, kLanes);
        decode_f8_row(at, cache.scale, values, shape.key_dim);
        at = values;
      }
      key += run;
    }
    args.queries = queries;
    args.visible = visible;
    args.lanes = padded(group.lane_count, kLanes);
    args.key_dim = shape.key_dim;
    args.value_dim = shape.value_dim;
    args.scale = softmax_scale;
    args.key_rows = rows;
    args.rows_are_bf16 = bf16_cache;
    args.rows_are_ready = ready;
    args.state = state_at(state, shape);
    args.scratch = reinterpret_cast<char*>(scratch + kSplitKeys * sizeof(void*));
    ops.run(args);
  };
  const auto finish = [&](const LaneGroup& group, const float* state, int64_t from, int64_t to) {
    const SequenceRows& seq = sequences[static_cast<size_t>(group.sequence)];
    for (int64_t i = from; i < std::min<int64_t>(to, group.lane_count); ++i) {
      const int64_t lane = group.lane_begin + i;
      const int64_t at =
          (seq.row_begin + lane / head_count) * out.stride + lane % head_count * shape.value_dim;
      isa_.finish_lane(
          state + 2 * kMaxGroupLanes + i * shape.value_stride, state[kMaxGroupLanes + i],
          shape.value_dim,
          static_cast<std::byte*>(out.data) + at * static_cast<int64_t>(size_bytes(out.dtype)),
          out.dtype == DType::kBF16);
    }
  };

  // Many groups: each is a task of its own, with one partial and one total per thread.
  if (group_count >= 8 * pool_.thread_count()) {
    float* states =
        workspace_.get<float>(Scratch::kTotals, 2 * pool_.thread_count() * shape.state_floats);
    std::byte* queries =
        workspace_.get<std::byte>(Scratch::kQueries, pool_.thread_count() * shape.query_bytes);
    pool_.parallel_for(group_count, [&](int64_t task, int thread) {
      // Later rows see more keys: the long tasks go first.
      const LaneGroup& group = groups[group_count - 1 - task];
      float* total = states + 2 * thread * shape.state_floats;
      float* part = total + shape.state_floats;
      std::byte* packed = queries + thread * shape.query_bytes;
      pack_group(group, packed);
      for (int64_t split = 0; split < split_count(group); ++split) {
        run_split(group, split, packed, split == 0 ? total : part, thread);
        if (split > 0)
          isa_.fold(state_at(total, shape), state_at(part, shape), padded(group.lane_count, kLanes),
                    shape.value_dim);
      }
      finish(group, total, 0, kMaxGroupLanes);
    });
    return;
  }

  // Few groups: (split, group) tasks in waves. Groups of one split run side by side, so that its
  // keys are read from memory once.
  float* totals = workspace_.get<float>(Scratch::kTotals, group_count * shape.state_floats);
  float* parts =
      workspace_.get<float>(Scratch::kParts, kWaveSplits * group_count * shape.state_floats);
  std::byte* queries =
      workspace_.get<std::byte>(Scratch::kQueries, group_count * shape.query_bytes);
  int64_t most_splits = 0;
  for (int64_t g = 0; g < group_count; ++g)
    most_splits = std::max(most_splits, split_count(groups[g]));
  pool_.parallel_for(
      group_count, [&](int64_t g, int) { pack_group(groups[g], queries + g * shape.query_bytes); });
  const auto part_of = [&](int64_t split, int64_t g) {
    return split == 0 ? totals + g * shape.state_floats
                      : parts + (split % kWaveSplits * group_count + g) * shape.state_floats;
  };
  constexpr int64_t kGroupPanels = kMaxGroupLanes / kLanes;
  for (int64_t first = 0; first < most_splits; first += kWaveSplits) {
    const int64_t end = std::min(first + kWaveSplits, most_splits);
    pool_.parallel_for((end - first) * group_count, [&](int64_t task, int thread) {
      const int64_t g = task % group_count;
      const int64_t split = first + task / group_count;
      if (split < split_count(groups[g]))
        run_split(groups[g], split, queries + g * shape.query_bytes, part_of(split, g), thread);
    });
    pool_.parallel_for(group_count * kGroupPanels, [&](int64_t task, int) {
      const int64_t g = task / kGroupPanels;
      const int64_t lane = task % kGroupPanels * kLanes;
      if (lane >= groups[g].lane_count) return;
      float* total = totals + g * shape.state_floats;
      for (int64_t split = std::max<int64_t>(first, 1);
           split < std::min(end, split_count(groups[g])); ++split)
        isa_.fold(state_at(total, shape, lane), state_at(part_of(split, g), shape, lane), kLanes,
                  shape.value_dim);
      if (end == most_splits) finish(groups[g], total, lane, lane + kLanes);
    });
  }
}

}  // namespace foresail
