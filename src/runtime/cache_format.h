// How the numbers of a latent cache are kept. A plain value.
#pragma once

#include "tensor/dtype.h"

namespace foresail {

struct CacheFormat {
  DType dtype = DType::kBF16;  // kF32, kBF16 or kF8E4M3
  float scale = 1.0f;          // kF8E4M3: a number is its code times this
};

}  // namespace foresail
