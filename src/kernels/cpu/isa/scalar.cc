// The kernels for plain x86-64; see CMakeLists.txt for the flags of this object.
#include "kernels/cpu/isa_ops.h"
// clang-format off
#include "kernels/cpu/isa/vec_scalar.h"
#include "kernels/cpu/isa/all.h"
// clang-format on

namespace foresail {
const IsaOps kScalarOps = make_ops("scalar");
}  // namespace foresail
