// Attention for a group of lanes, a lane being one (row, head). Everything is laid out so that
// lanes are the sixteen lanes of V: queries are packed like a weight, a key row is broadcast pair
// by pair, and maximum, exponential and sum run down the keys without any shuffle.
//
// Per block of 64 keys: scores [keys][lanes] = keys · queries (tile: rows are keys, panels are
// lanes), softmax down the columns, acc [lanes][value_dim] = acc * alpha + probabilities · values
// (tile: rows are lanes, panels are value columns). A lane's additions happen in key order; a
// masked key adds exact zeros, so a lane's bits depend only on its query and the keys visible to
// it.
#pragma once

namespace foresail {
namespace {

// Tile over keys x lane panels: scores[key][lane].
template <typename Kind, int MR, int NP>
void score_tile(const void* const* key_rows, const void* const* ahead, const char* queries,
                int64_t panel_bytes, int64_t steps, float* scores, int64_t stride) {
  V acc[MR][NP];
  for (int r = 0; r < MR; ++r)
    for (int p = 0; p < NP; ++p) acc[r][p] = zero();
  run_rows<Kind, MR, NP>(reinterpret_cast<const typename Kind::Input* const*>(key_rows), ahead,
                         queries, panel_bytes, steps, acc);
  for (int r = 0; r < MR; ++r)
    for (int p = 0; p < NP; ++p) store(scores + r * stride + p * kLanes, acc[r][p]);
}

// Tile over lanes x value panels: acc = acc * alpha + probabilities · values.
template <typename Kind, int MR, int NP>
void value_tile(const void* probabilities, int64_t lanes, const char* values, int64_t panel_bytes,
                int64_t steps, const float* alpha, float* out, int64_t stride) {
  V acc[MR][NP];
  for (int r = 0; r < MR; ++r)
    for (int p = 0; p < NP; ++p)
      acc[r][p] = mul(load(out + r * stride + p * kLanes), set1(alpha[r]));
  run_steps<Kind, MR, NP>(static_cast<const typename Kind::Input*>(probabilities), lanes, values,
                          panel_bytes, kStepBytes, steps, acc);
  for (int r = 0; r < MR; ++r)
    for (int p = 0; p < NP; ++p) store(out + r * stride + p * kLanes, acc[r][p]);
}

// Calls body.template operator()<MR, NP>(row, panel) over a grid cut into register tiles, a column
// of tiles after the other: the panels of a column stay in L1 while the rows pass.
template <int NP, typename Body>
inline void rows_of(int64_t rows, int64_t panel, const Body& body) {
  int64_t r = 0;
  for (; r + kTileRows <= rows; r += kTileRows) body.template operator()<kTileRows, NP>(r, panel);
  if constexpr (kTileRows > 2)
    for (; r + 2 <= rows; r += 2) body.template operator()<2, NP>(r, panel);
  for (; r < rows; ++r) body.template operator()<1, NP>(r, panel);
}

template <typename Body>
inline void for_tiles(int64_t rows, int64_t panels, const Body& body) {
  int64_t p = 0;
  // 4 = 2 + 2 rather than 3 + 1: two wide tiles keep the multiply units busier.
  for (; panels - p >= kTilePanels && panels - p != kTilePanels + 1; p += kTilePanels)
    rows_of<kTilePanels>(rows, p, body);
  if constexpr (kTilePanels >= 2)
    for (; panels - p >= 2; p += 2) rows_of<2>(rows, p, body);
  for (; p < panels; ++p) rows_of<1>(rows, p, body);
}

// Scores -> probabilities for one block; updates max and sum, leaves the factor of the older
// accumulators in alpha. `visible` counts from the block's first key.
template <typename Kind>
void softmax_block(float* scores, int64_t lanes, int64_t key_count, float scale,
                   const float* visible, bool masked, float* max_so_far, float* sum_so_far,
                   float* alpha, void* probabilities) {
  const V minus_inf = set1(-__builtin_inff());
  for (int64_t lane = 0; lane < lanes; lane += kLanes) {
    const V seen = load(visible + lane);
    const V factor = set1(scale);
    V largest = load(max_so_far + lane);
    const V before = largest;
    for (int64_t k = 0; k < key_count; ++k) {
      V s = mul(load(scores + k * lanes + lane), factor);
      if (masked) {
        s = select_less(set1(static_cast<float>(k)), seen, s, minus_inf);
        store(scores + k * lanes + lane, s);
      }
      largest = max(largest, s);
    }
    // With no key seen at all the maximum is -inf; subtracting 0 instead keeps NaN away.
    const V shift = select_less(minus_inf, largest, largest, zero());
    const V rescale = exp(sub(before, shift));
    V sum = mul(load(sum_so_far + lane), rescale);
    const auto probability = [&](int64_t k) {
      V s = load(scores + k * lanes + lane);
      if (!masked) s = mul(s, factor);
      return exp(sub(s, shift));
    };
    int64_t k = 0;
#if defined(__AVX512BF16__)
    if constexpr (Kind::kNumbersPerStep == 2) {
      for (; k < key_count; k += 2) {
        const V a = probability(k);
        const V b = k + 1 < key_count ? probability(k + 1) : zero();
        sum = add(add(sum, a), b);
        _mm512_storeu_si512(static_cast<uint32_t*>(probabilities) + k / 2 * lanes + lane,
                            pairs_of(a, b));
      }
    }
#endif
    for (; k < key_count; ++k) {
      const V a = probability(k);
      sum = add(sum, a);
      store(static_cast<float*>(probabilities) + k * lanes + lane, a);
    }
    store(max_so_far + lane, largest);
    store(sum_so_far + lane, sum);
    store(alpha + lane, rescale);
  }
}

// Values that are no numbers, of keys that not every lane sees: zero times NaN is NaN, so they
// would reach lanes for which the key weighs zero. They become zero, and who sees the key has its
// NaN from the score.
template <typename Kind>
void spare_blind_lanes(const void* const* rows, bool rows_are_bf16, int64_t from, int64_t key_count,
                       int64_t value_dim, char* packed_values, float* scores, int64_t lanes) {
  constexpr int64_t kPanelBytes = kKeyBlock / Kind::kNumbersPerStep * kStepBytes;
  constexpr int64_t kNumberBytes = 4 / Kind::kNumbersPerStep;
  for (int64_t k = from; k < key_count; ++k) {
    V sum = zero();  // of zeros, if all are numbers
    for (int64_t i = 0; i < value_dim; i += kLanes)
      sum = fma(load_any(rows[k], rows_are_bf16, i, smaller(value_dim - i, kLanes)), zero(), sum);
    if (sum_lanes(sum) == 0.0f) continue;
    char* values = packed_values + k / Kind::kNumbersPerStep * kStepBytes +
                   k % Kind::kNumbersPerStep * kNumberBytes;
    for (int64_t i = 0; i < value_dim; ++i)
      __builtin_memset(values + i / kLanes * kPanelBytes + i % kLanes * 4, 0, kNumberBytes);
    for (int64_t lane = 0; lane < lanes; lane += kLanes)
      store(scores + k * lanes + lane, set1(__builtin_nanf("")));
  }
}

template <typename Kind>
void attention(const AttentionArgs& args) {
  constexpr bool kPairs = Kind::kNumbersPerStep == 2;
  const int64_t lanes = args.lanes;
  const int64_t steps = (args.key_dim + Kind::kNumbersPerStep - 1) / Kind::kNumbersPerStep;
  const int64_t value_stride = padded(args.value_dim, kLanes);
  char* at = args.scratch;
  const auto take = [&at](int64_t bytes) {
    char* p = at;
    at += bytes;
    return p;
  };
  float* scores = reinterpret_cast<float*>(take(kKeyBlock * lanes * 4));
  void* probabilities = take(kKeyBlock * lanes * 4);
  char* own_values = take(packed_values_block_bytes(args.value_dim));
  const int64_t key_bytes = padded(args.key_dim, kLanes) * 4;
  char* own_keys = take(kKeyBlock * key_bytes);
  float* alpha = reinterpret_cast<float*>(take(kMaxGroupLanes * 4));
  float* visible = reinterpret_cast<float*>(take(kMaxGroupLanes * 4));
  const void** converted = reinterpret_cast<const void**>(take(kKeyBlock * 8));

  for (int64_t lane = 0; lane < lanes; ++lane) {
    args.state.max[lane] = -__builtin_inff();
    args.state.sum[lane] = 0.0f;
  }
  for (int64_t i = 0; i < lanes * value_stride; i += kLanes) store(args.state.acc + i, zero());

  for (int64_t begin = args.key_begin; begin < args.key_end; begin += kKeyBlock) {
    const int64_t key_count = smaller(args.key_end - begin, kKeyBlock);
    int64_t least_seen = key_count;
    for (int64_t lane = 0; lane < lanes; ++lane) {
      const int64_t seen = args.visible[lane] - begin;
      least_seen = smaller(least_seen, seen < 0 ? 0 : seen);
      visible[lane] = static_cast<float>(seen);
    }
    const bool masked = least_seen < key_count;
    const void* const* rows = args.key_rows + (begin - args.key_begin);
    const char* values = static_cast<const char*>(args.packed_values);
    if (values != nullptr) {
      values += (begin - args.key_begin) / kKeyBlock * packed_values_block_bytes(args.value_dim);
    } else {
      pack_values<Kind>(rows, args.rows_are_bf16, key_count, args.value_dim, own_values);
      values = own_values;
    }
    if (!args.rows_are_ready) {
      for (int64_t k = 0; k < key_count; ++k) {
        char* to = own_keys + k * key_bytes;
        convert(rows[k], args.rows_are_bf16, to, kPairs, 1.0f, args.key_dim);
        if (kPairs && args.key_dim % 2 != 0) reinterpret_cast<uint16_t*>(to)[args.key_dim] = 0;
        converted[k] = to;
      }
      rows = converted;
    }
    for_tiles(key_count, lanes / kLanes, [&]<int MR, int NP>(int64_t key, int64_t panel) {
      // The same place one block further, while there is one.
      const bool more = begin + kKeyBlock + key + MR <= args.key_end;
      const void* const* ahead =
          args.key_rows + (begin - args.key_begin + key + (more ? kKeyBlock : 0));
      score_tile<Kind, MR, NP>(
          rows + key, ahead, static_cast<const char*>(args.queries) + panel * steps * kStepBytes,
          steps * kStepBytes, steps, scores + key * lanes + panel * kLanes, lanes);
    });
    if (masked && values == own_values)
      spare_blind_lanes<Kind>(args.key_rows + (begin - args.key_begin), args.rows_are_bf16,
                              least_seen, key_count, args.value_dim, own_values, scores, lanes);
    softmax_block<Kind>(scores, lanes, key_count, args.scale, visible, masked, args.state.max,
                        args.state.sum, alpha, probabilities);
    constexpr int64_t kPanelBytes = kKeyBlock / Kind::kNumbersPerStep * kStepBytes;
    const int64_t value_steps = (key_count + Kind::kNumbersPerStep - 1) / Kind::kNumbersPerStep;
    for_tiles(lanes, value_stride / kLanes, [&]<int MR, int NP>(int64_t lane, int64_t panel) {
      value_tile<Kind, MR, NP>(static_cast<const typename Kind::Input*>(probabilities) + lane,
                               lanes, values + panel * kPanelBytes, kPanelBytes, value_steps,
                               alpha + lane, args.state.acc + lane * value_stride + panel * kLanes,
                               value_stride);
    });
  }
}

void fold(const AttentionState& total, const AttentionState& part, int64_t lanes,
          int64_t value_dim) {
  const int64_t stride = padded(value_dim, kLanes);
  for (int64_t lane = 0; lane < lanes; lane += kLanes) {
    const V a = load(total.max + lane);
    const V b = load(part.max + lane);
    const V largest = max(a, b);
    const V shift = select_less(set1(-__builtin_inff()), largest, largest, zero());
    float factor_a[kLanes];
    float factor_b[kLanes];
    store(factor_a, exp(sub(a, shift)));
    store(factor_b, exp(sub(b, shift)));
    store(total.max + lane, largest);
    store(total.sum + lane, add(mul(load(total.sum + lane), load(factor_a)),
                                mul(load(part.sum + lane), load(factor_b))));
    for (int64_t i = 0; i < kLanes; ++i)
      blend(total.acc + (lane + i) * stride, factor_a[i], part.acc + (lane + i) * stride,
            factor_b[i], value_dim);
  }
}

void finish_lane(const float* acc, float sum, int64_t value_dim, void* out, bool out_bf16) {
  const V inverse = set1(sum == 0.0f ? 0.0f : 1.0f / sum);
  for (int64_t i = 0; i < value_dim; i += kLanes) {
    const int64_t n = smaller(value_dim - i, kLanes);
    // + 0 turns -0 into 0: how many exact zeros were added to it depends on the batch.
    store_any(out, out_bf16, i, add(mul(load(acc + i), inverse), zero()), n);
  }
}

}  // namespace
}  // namespace foresail
