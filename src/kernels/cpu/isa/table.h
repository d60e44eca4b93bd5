// Ends an instruction-set object: fills the table with this object's functions.
#pragma once

namespace foresail {
namespace {

template <typename Kind>
constexpr IsaOps::Attention make_attention() {
  return {Kind::kNumbersPerStep == 2, pack_queries<Kind>, pack_values<Kind>, convert_keys<Kind>,
          attention<Kind>};
}

constexpr IsaOps make_ops(const char* name) {
  IsaOps ops;
  ops.name = name;
  ops.panel_lanes = kPanelLanes;
#if defined(__AVX512BF16__)
  ops.dot_bf16 = true;
  ops.pack_rows_bf16 = pack_rows_pairs;
#else
  ops.pack_rows_bf16 = pack_rows_widened;
#endif
  ops.pack_rows_f32 = pack_rows_f32;
  ops.pack_rows_wide = pack_rows_widened;
  ops.gemm_bf16 = gemm_bf16;
  ops.gemm_f32 = gemm_f32;
  ops.gemm_wide = gemm_wide;
  ops.rms_norm = rms_norm;
  ops.silu_mul = silu_mul;
  ops.convert = convert;
  ops.rotate_heads = rotate_heads;
  ops.store_latent = store_latent;
  ops.blend = blend;
  ops.sigmoid = sigmoid_row;
  ops.softmax = softmax_row;
#if defined(__AVX512BF16__)
  ops.attention_bf16 = make_attention<DotKind>();
#else
  ops.attention_bf16 = make_attention<F32Kind>();
#endif
  ops.attention_f32 = make_attention<F32Kind>();
  ops.fold = fold;
  ops.finish_lane = finish_lane;
  ops.token_masses = token_masses;
  ops.read_stream = read_stream;
  ops.peak_loop = peak_loop;
  return ops;
}

}  // namespace
}  // namespace foresail
