// What is told of one request beside its text, on stderr.
#pragma once

#include "foresail/output.h"

namespace foresail {

// That an answer did not come to its end.
void print_cut(int64_t output_tokens, bool context_is_full);
void print_stats(const GenerationStats& stats, bool speculating, bool simulated);

}  // namespace foresail
