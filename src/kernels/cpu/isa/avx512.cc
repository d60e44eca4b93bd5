// The kernels for AVX-512 F, BW, DQ and VL; see CMakeLists.txt for the flags of this object.
#include "kernels/cpu/isa_ops.h"
// clang-format off
#include "kernels/cpu/isa/vec_avx512.h"
#include "kernels/cpu/isa/all.h"
// clang-format on

namespace foresail {
const IsaOps kAvx512Ops = make_ops("avx512");
}  // namespace foresail
