// Runs decode steps of the shapes that serving meets most before the first request comes, so that
// their passes are recorded by then: a device records a shape while it meets it for the second time
// and joins its passes the third time.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "engine/loaded_model.h"

namespace foresail {

struct StepShape {
  int32_t batch_size = 0;
  int32_t draft_len = 0;  // drafts that every request verifies and wants next
  int64_t length = 0;     // tokens of every request
  bool operator==(const StepShape&) const = default;
};

// `all_depths`: adaptive depth may choose any up to `max_depth`. The largest comes first, because
// what has to grow for it moves; from then on what is likelier comes first. No more than keep
// `most_passes` passes, a draft loop of n counted as n.
std::vector<StepShape> common_step_shapes(int32_t max_batch, int32_t max_depth, bool all_depths,
                                          int64_t context_length, int32_t most_passes);

// Made-up requests on the sink page. Nothing else is running. Shapes that are not started ahead
// are left out; gives how many were run.
using RecordProgress = std::function<void(size_t done, size_t total)>;
size_t record_decode_steps(LoadedModel& model, std::span<const StepShape> shapes,
                           const RecordProgress& progress = {});

}  // namespace foresail
