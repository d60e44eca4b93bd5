// What an iteration costs on this machine with this model, by batch size and depth of speculation.
#pragma once

#include "engine/loaded_model.h"
#include "speculative/adaptive_depth.h"

namespace foresail {

// Runs iterations on made-up requests: for 1, 4, 16, ... and max_batch requests, each with
// 0 ... max_depth drafts. Stops measuring larger batches once `budget_s` is spent. The model must
// have a drafter and be at rest, and what is in its caches is lost.
StepCosts measure_step_costs(LoadedModel& model, int32_t max_batch, int32_t max_depth,
                             double budget_s = 3.0);

}  // namespace foresail
