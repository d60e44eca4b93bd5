// Which instruction sets the processor and the system support.
#pragma once

#include <string_view>
#include <vector>

#include "kernels/cpu/isa_ops.h"

namespace foresail {

std::vector<const IsaOps*> available_isa_ops();  // best first; the last is scalar

// "auto" or a name; throws Error{kUsage} that lists what there is.
const IsaOps& select_isa(std::string_view name);

}  // namespace foresail
