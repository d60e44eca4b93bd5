// The kernels for AVX2 with FMA and F16C; see CMakeLists.txt for the flags of this object.
#include "kernels/cpu/isa_ops.h"
// clang-format off
#include "kernels/cpu/isa/vec_avx2.h"
#include "kernels/cpu/isa/all.h"
// clang-format on

namespace foresail {
const IsaOps kAvx2Ops = make_ops("avx2");
}  // namespace foresail
