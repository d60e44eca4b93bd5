// What one instruction set provides: a table of plain functions over raw pointers. Everything that
// is not arithmetic (threads, arenas, task lists, routing) lives in baseline objects.
//
// Objects of an instruction set must emit no shared inline function, or the linker could pick a
// copy with AVX-512 inside for the whole binary: this header and those under isa/ therefore use no
// std:: template and no inline function with external linkage, but for those of
// token_truncation.h, which isa/masses.h inlines.
#pragma once

#include <stdint.h>

#include "kernels/token_truncation.h"

namespace foresail {

// Rows of f32 or bf16 numbers; row i starts at element (index ? index[i] : i) * stride.
struct RowsIn {
  const void* data = nullptr;
  int64_t stride = 0;
  const int32_t* index = nullptr;
  bool is_bf16 = false;
};

// GEMM inputs in kernel order. Rows are cut into tiles of up to kTileRows (vec_*.h), balanced; a
// tile of m rows is [steps][m], a step being one f32 or one pair of bf16 (IsaOps::dot_bf16).
constexpr int kLanes = 16;
constexpr int kMaxPanelLanes = 32;  // outputs per weight panel: 16 or 32

struct PackRowsArgs {
  RowsIn rows;
  int64_t row_count = 0;
  int64_t cols = 0;
  void* out = nullptr;
};

struct GemmArgs {
  const void* packed_rows = nullptr;  // of pack_rows, with the same row_count and n_in
  int64_t row_count = 0;
  const void* weight = nullptr;  // panels of panel_lanes outputs (CpuMatrix)
  int64_t n_in = 0;
  int64_t n_out = 0;
  int64_t panel_begin = 0;  // panels to compute
  int64_t panel_end = 0;
  float* scratch = nullptr;  // row_count * kMaxPanelLanes floats
  // out = (accumulate ? out : 0) + scale * row_scale[row] * (x·Wᵀ + bias)
  void* out = nullptr;
  int64_t out_stride = 0;
  bool out_is_bf16 = false;
  bool accumulate = false;
  float scale = 1.0f;
  const float* bias = nullptr;         // [n_out]
  const float* row_scale = nullptr;    // [row_count]
  const int32_t* out_index = nullptr;  // row i is written to row out_index[i]
};

// Attention over a run of keys for a group of lanes, a lane being one (row, head). Keys are cut
// into blocks of kKeyBlock from key 0 on; what a lane gets from a block depends on nothing but the
// lane. 64 keys: a block of scores for 64 lanes (16 KiB) stays in L1 between its two products.
constexpr int64_t kKeyBlock = 64;
constexpr int64_t kMaxGroupLanes = 64;

struct QueryLane {
  const float* query = nullptr;  // key_dim numbers; null: an unused lane
  int32_t visible = 0;           // keys [0, visible)
};

// Running softmax of a group: max [lanes], sum [lanes], acc [lanes][padded value_dim].
struct AttentionState {
  float* max = nullptr;
  float* sum = nullptr;
  float* acc = nullptr;
};

struct AttentionArgs {
  const void* queries = nullptr;     // of pack_queries
  const int32_t* visible = nullptr;  // [lanes]
  int64_t lanes = 0;                 // a multiple of kLanes
  int64_t key_dim = 0;
  int64_t value_dim = 0;
  float scale = 1.0f;
  int64_t key_begin = 0;  // a multiple of kKeyBlock
  int64_t key_end = 0;
  const void* const* key_rows = nullptr;  // [key_end - key_begin], f32 or bf16
  bool rows_are_bf16 = false;
  bool rows_are_ready = false;  // in the type the products use, zeros up to an even length
  // Null: a value is the first value_dim numbers of its key. Else blocks made by pack_values.
  const void* packed_values = nullptr;
  AttentionState state;     // overwritten
  char* scratch = nullptr;  // attention_scratch_bytes
};

constexpr int64_t padded(int64_t n, int64_t to) {
  return (n + to - 1) / to * to;
}
constexpr int64_t packed_values_block_bytes(int64_t value_dim) {
  return kKeyBlock * padded(value_dim, kLanes) * 4;
}
constexpr int64_t attention_scratch_bytes(int64_t key_dim, int64_t value_dim) {
  const int64_t scores = kKeyBlock * kMaxGroupLanes * 4;
  const int64_t converted_keys = kKeyBlock * padded(key_dim, kLanes) * 4;
  return 2 * scores + converted_keys + packed_values_block_bytes(value_dim) +
         2 * kMaxGroupLanes * 4 + kKeyBlock * 8;
}

constexpr int kMaxRopeDim = 256;  // of a cached key; real models have 32 or 64

struct RopeArgs {
  const float* cos = nullptr;  // [r / 2] of one position
  const float* sin = nullptr;
  int rope_dim = 0;
  bool half_split = false;
};

// Of token_masses: most tokens of a call, and what a unit of distance is cut into.
constexpr int64_t kMostMasses = 512;
constexpr double kMassBinsPerUnit = 64.0;
constexpr int32_t kMassBins = static_cast<int32_t>(kMasslessDistance * kMassBinsPerUnit) + 1;

struct IsaOps {
  const char* name = nullptr;
  // Outputs per weight panel.
  int panel_lanes = kLanes;
  // For weights of the given type: true: pack_rows makes bf16 pairs; false: f32, cols even.
  bool dot_bf16 = false;

  void (*gemm_bf16)(const GemmArgs&) = nullptr;
  void (*gemm_f32)(const GemmArgs&) = nullptr;
  void (*gemm_wide)(const GemmArgs&) = nullptr;           // f32 rows on bf16 weights, f32 products
  void (*pack_rows_bf16)(const PackRowsArgs&) = nullptr;  // for gemm_bf16
  void (*pack_rows_f32)(const PackRowsArgs&) = nullptr;   // for gemm_f32
  void (*pack_rows_wide)(const PackRowsArgs&) = nullptr;  // for gemm_wide: f32, cols even

  // Rows of n numbers, f32 or bf16.
  void (*rms_norm)(const void* x, bool x_bf16, const float* weight, float eps, void* out,
                   bool out_bf16, int64_t n) = nullptr;
  void (*silu_mul)(const float* gate, const float* up, void* out, bool out_bf16,
                   int64_t n) = nullptr;
  void (*convert)(const void* in, bool in_bf16, void* out, bool out_bf16, float scale,
                  int64_t n) = nullptr;
  // In place on heads of `head_dim` numbers whose last r are rotated.
  void (*rotate_heads)(float* x, int head_count, int64_t head_dim, const RopeArgs& rope,
                       float scale) = nullptr;
  void (*store_latent)(const float* kv, const float* norm_weight, float eps, int64_t latent_dim,
                       const RopeArgs& rope, void* out, bool out_bf16) = nullptr;
  // out <- out * weight_out + other * weight_other
  void (*blend)(float* out, float weight_out, const float* other, float weight_other,
                int64_t n) = nullptr;
  // In place: sigmoid or softmax of n numbers.
  void (*sigmoid)(float* x, int64_t n) = nullptr;
  void (*softmax)(float* x, int64_t n) = nullptr;

  // What token_mass() of token_weight() gives for each of n logits, none above `largest`, which is
  // finite; and a number in [0, kMassBins) that never falls as the logit falls. NaN has no mass.
  void (*token_masses)(const float* logits, int64_t n, float largest, double inverse_temperature,
                       uint64_t* masses, int32_t* bins) = nullptr;

  // One set for bf16 products (falls to f32 ones without dot_bf16), one for f32.
  struct Attention {
    bool pairs = false;  // rows that are ready are bf16 (else f32)
    // queries -> [lanes/16][steps][16], a step being one f32 or a pair of bf16
    void (*pack_queries)(const QueryLane* lanes, int64_t lane_count, int64_t key_dim,
                         void* out) = nullptr;
    // Values of up to kKeyBlock keys -> one block of packed_values.
    void (*pack_values)(const void* const* rows, bool rows_are_bf16, int64_t key_count,
                        int64_t value_dim, void* out) = nullptr;
    // n f32 numbers -> the products' type
    void (*convert_keys)(const float* from, void* out, int64_t n) = nullptr;
    void (*run)(const AttentionArgs& args) = nullptr;
  };
  Attention attention_bf16;
  Attention attention_f32;
  // total <- total merged with part, lane by lane; exact when either is empty.
  void (*fold)(const AttentionState& total, const AttentionState& part, int64_t lanes,
               int64_t value_dim) = nullptr;
  // out = acc / sum of one lane; zeros when it saw no key. Never -0.
  void (*finish_lane)(const float* acc, float sum, int64_t value_dim, void* out,
                      bool out_bf16) = nullptr;

  // Probes: the machine's limits, for the bench.
  float (*read_stream)(const void* data,
                       int64_t size_bytes) = nullptr;  // a checksum; size % 1024 == 0
  int64_t (*peak_loop)(bool bf16,
                       int64_t steps) = nullptr;  // register-only multiply-adds; flops done
};

extern const IsaOps kScalarOps;
extern const IsaOps kAvx2Ops;
extern const IsaOps kAvx512Ops;
extern const IsaOps kAvx512Bf16Ops;

}  // namespace foresail
