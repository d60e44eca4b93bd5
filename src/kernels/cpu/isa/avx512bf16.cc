// The kernels for AVX-512 with the bf16 dot product; see CMakeLists.txt for the flags of this
// object.
#include "kernels/cpu/isa_ops.h"
// clang-format off
#include "kernels/cpu/isa/vec_avx512.h"
#include "kernels/cpu/isa/all.h"
// clang-format on

namespace foresail {
const IsaOps kAvx512Bf16Ops = make_ops("avx512bf16");
}  // namespace foresail
