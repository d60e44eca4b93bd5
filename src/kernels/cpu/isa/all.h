// Everything an instruction-set object consists of, written over the lane type V that the including
// file has chosen. The order matters: each header uses those above it.
#pragma once

// clang-format off
#include "kernels/cpu/isa/math.h"            // exp, sums over lanes, rows of either type
#include "kernels/cpu/isa/masses.h"          // of tokens
#include "kernels/cpu/isa/rows.h"            // norms, activations, rotations
#include "kernels/cpu/isa/tile.h"            // the micro-kernel
#include "kernels/cpu/isa/pack_rows.h"
#include "kernels/cpu/isa/gemm.h"
#include "kernels/cpu/isa/attention_pack.h"
#include "kernels/cpu/isa/attention.h"
#include "kernels/cpu/isa/probe.h"
#include "kernels/cpu/isa/table.h"
// clang-format on
