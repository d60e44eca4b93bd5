// Rows of an 8-bit latent cache to and from f32. Plain loops: the same on every instruction set.
#pragma once

#include <cstdint>
#include <cstring>

#include "tensor/float_formats.h"

namespace foresail {

inline void decode_f8_row(const void* codes, float scale, float* out, int64_t count) {
  const auto* in = static_cast<const f8e4m3*>(codes);
  for (int64_t i = 0; i < count; ++i) out[i] = to_float(in[i]) * scale;
}

inline void encode_f8_row(const float* values, float scale, void* codes, int64_t count) {
  auto* out = static_cast<f8e4m3*>(codes);
  for (int64_t i = 0; i < count; ++i) out[i] = to_f8e4m3(values[i] / scale);
}

}  // namespace foresail
