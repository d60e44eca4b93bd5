// out = epilogue(rows · weightᵀ) over a range of panels.
//
// A panel of 32 outputs is two halves of sixteen whose steps alternate, so that a single row has
// two chains of additions in one stream and a broadcast input serves both. The weights of a panel
// for one block of inputs stay in L2 while all row tiles pass over them; accumulators of unfinished
// inputs wait in `scratch`.
#pragma once

namespace foresail {
namespace {

// 1024 steps x 128 B (64 with one half) = 128 KiB: an eighth of a 1 MiB L2, leaving room for rows
// streaming by.
constexpr int64_t kBlockSteps = 1024;

constexpr int kHalves = kPanelLanes / kLanes;
constexpr int64_t kPanelStepBytes = kHalves * kStepBytes;

inline void finish(const GemmArgs& args, int64_t row, int64_t col, V acc) {
  const int64_t n = smaller(args.n_out - col, kLanes);
  const int64_t out_row = args.out_index != nullptr ? args.out_index[row] : row;
  if (args.bias != nullptr) acc = add(acc, load_any(args.bias, false, col, n));
  acc = mul(acc, set1(args.scale));
  if (args.row_scale != nullptr) acc = mul(acc, set1(args.row_scale[row]));
  const int64_t at = out_row * args.out_stride + col;
  if (args.accumulate) acc = add(load_any(args.out, args.out_is_bf16, at, n), acc);
  store_any(args.out, args.out_is_bf16, at, acc, n);
}

struct TileArgs {
  const GemmArgs* gemm;
  const void* a;
  const char* b;
  int64_t steps;
  int64_t row;    // first
  int64_t col;    // first
  bool is_first;  // block of inputs
  bool is_last;
  bool is_plain;  // whole halves to f32, only scaled
};

template <typename Kind, int MR, int NP>
void tile(const TileArgs& args) {
  V acc[MR][NP];
  float* scratch = args.gemm->scratch + args.row * kPanelLanes;
  for (int r = 0; r < MR; ++r)
    for (int p = 0; p < NP; ++p)
      acc[r][p] = args.is_first ? zero() : load(scratch + r * kPanelLanes + p * kLanes);
  run_steps<Kind, MR, NP, Kind::kStreams ? stream_ahead_bytes(MR) : 0>(
      static_cast<const typename Kind::Input*>(args.a), MR, args.b, kStepBytes, kPanelStepBytes,
      args.steps, acc);
  if (!args.is_last) {
    for (int r = 0; r < MR; ++r)
      for (int p = 0; p < NP; ++p) store(scratch + r * kPanelLanes + p * kLanes, acc[r][p]);
    return;
  }
  const GemmArgs& gemm = *args.gemm;
  if (args.is_plain) {  // the same arithmetic as finish, without its questions
    const V scale = set1(gemm.scale);
    float* out = static_cast<float*>(gemm.out) + args.row * gemm.out_stride + args.col;
    for (int r = 0; r < MR; ++r)
      for (int p = 0; p < NP; ++p)
        store(out + r * gemm.out_stride + p * kLanes, mul(acc[r][p], scale));
    return;
  }
  for (int r = 0; r < MR; ++r)
    for (int p = 0; p < NP; ++p) finish(gemm, args.row + r, args.col + p * kLanes, acc[r][p]);
}

using TileFn = void (*)(const TileArgs&);

// The tile of m rows and NP halves.
template <typename Kind, int NP, int MR = kTileRows>
TileFn choose_rows(int64_t m) {
  if constexpr (MR == 1) {
    return tile<Kind, 1, NP>;
  } else {
    return m == MR ? tile<Kind, MR, NP> : choose_rows<Kind, NP, MR - 1>(m);
  }
}

// The second half of the last panel may hold nothing.
template <typename Kind>
TileFn choose_tile(int64_t m, int64_t halves) {
  return halves == kHalves ? choose_rows<Kind, kHalves>(m) : choose_rows<Kind, 1>(m);
}

template <typename Kind>
void gemm(const GemmArgs& args, int64_t steps) {
  using Input = typename Kind::Input;
  const RowTiles tiles(args.row_count);
  // One tile passes over the weights once: nothing to keep in the cache, so no blocks.
  const int64_t block_steps = tiles.count == 1 ? steps : kBlockSteps;
  const bool plain = args.bias == nullptr && args.row_scale == nullptr &&
                     args.out_index == nullptr && !args.accumulate && !args.out_is_bf16;
  for (int64_t panel = args.panel_begin; panel < args.panel_end; ++panel) {
    const int64_t col = panel * kPanelLanes;
    const int64_t halves = smaller(kHalves, padded(args.n_out - col, kLanes) / kLanes);
    const char* b = static_cast<const char*>(args.weight) + panel * steps * kPanelStepBytes;
    for (int64_t from = 0; from < steps; from += block_steps) {
      const int64_t count = smaller(steps - from, block_steps);
      for (int64_t t = 0; t < tiles.count; ++t) {
        const int64_t row = tiles.begin(t);
        const int64_t m = tiles.begin(t + 1) - row;
        const Input* a = static_cast<const Input*>(args.packed_rows) +
                         Kind::kInputsPerStep * (row * steps + from * m);
        const TileArgs tile_args = {&args,
                                    a,
                                    b + from * kPanelStepBytes,
                                    count,
                                    row,
                                    col,
                                    from == 0,
                                    from + count == steps,
                                    plain && col + halves * kLanes <= args.n_out};
        choose_tile<Kind>(m, halves)(tile_args);
      }
    }
  }
}

void gemm_f32(const GemmArgs& args) {
  gemm<F32Kind>(args, args.n_in);
}

void gemm_wide(const GemmArgs& args) {
  gemm<WidenKind>(args, (args.n_in + 1) / 2);
}

void gemm_bf16(const GemmArgs& args) {
#if defined(__AVX512BF16__)
  gemm<DotKind>(args, (args.n_in + 1) / 2);
#else
  gemm_wide(args);
#endif
}

}  // namespace
}  // namespace foresail
