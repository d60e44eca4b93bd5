// The line of --stats about one request, on stderr.
#pragma once

#include "foresail/output.h"

namespace foresail {

void print_stats(const GenerationStats& stats, bool speculating, bool simulated);

}  // namespace foresail
