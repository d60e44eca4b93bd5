#include "kernels/cpu/isa_ops.h"
// The lane type comes first: the headers below are written in terms of it.
#include "kernels/cpu/isa/vec_avx2.h"
//
#include "kernels/cpu/isa/math.h"
#include "kernels/cpu/isa/rows.h"
//
#include "kernels/cpu/isa/tile.h"
//
#include "kernels/cpu/isa/gemm.h"
//
#include "kernels/cpu/isa/attention.h"
//
#include "kernels/cpu/isa/probe.h"
//
#include "kernels/cpu/isa/table.h"

namespace foresail {
const IsaOps kAvx2Ops = make_ops("avx2");
}  // namespace foresail
