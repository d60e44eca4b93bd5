// Scalar access to rows of either activation type; for oracles, tests and cold paths.
// Not for objects built with instruction-set flags: the functions here are shared inlines.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/kernel_set.h"
#include "tensor/dtype.h"
#include "tensor/float_formats.h"

namespace foresail {

inline float load_element(const void* data, DType dtype, int64_t index) {
  switch (dtype) {
    case DType::kBF16:
      return to_float(static_cast<const bf16*>(data)[index]);
    case DType::kF16:
      return to_float(static_cast<const f16*>(data)[index]);
    case DType::kF8E4M3:
      return to_float(static_cast<const f8e4m3*>(data)[index]);
    default:
      return static_cast<const float*>(data)[index];
  }
}

inline void store_element(void* data, DType dtype, int64_t index, float value) {
  if (dtype == DType::kBF16) {
    static_cast<bf16*>(data)[index] = to_bf16(value);
  } else if (dtype == DType::kF8E4M3) {
    static_cast<f8e4m3*>(data)[index] = to_f8e4m3(value);
  } else {
    static_cast<float*>(data)[index] = value;
  }
}

inline float load_element(const MatrixView& view, int64_t row, int64_t col) {
  return load_element(view.data, view.dtype, row * view.stride + col);
}

inline void store_element(const MatrixView& view, int64_t row, int64_t col, float value) {
  store_element(view.data, view.dtype, row * view.stride + col, value);
}

// Bytes from the start of the cache to key `key` of a request.
inline int64_t cache_row_offset(const LatentCache& cache, const int32_t* page_table, int64_t key) {
  const int64_t slot =
      int64_t{page_table[key / cache.page_size]} * cache.page_size + key % cache.page_size;
  return slot * (cache.latent_dim + cache.rope_dim) * static_cast<int64_t>(size_bytes(cache.dtype));
}

inline const std::byte* cache_row(const LatentCache& cache, const int32_t* page_table,
                                  int64_t key) {
  return static_cast<const std::byte*>(cache.data) + cache_row_offset(cache, page_table, key);
}

// One number of a cache row, and its counterpart.
inline float load_latent(const LatentCache& cache, const std::byte* row, int64_t index) {
  const float code = load_element(row, cache.dtype, index);
  return cache.dtype == DType::kF8E4M3 ? code * cache.scale : code;
}
inline void store_latent_element(const LatentCache& cache, std::byte* row, int64_t index,
                                 float value) {
  store_element(row, cache.dtype, index,
                cache.dtype == DType::kF8E4M3 ? value / cache.scale : value);
}

}  // namespace foresail
