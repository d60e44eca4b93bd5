// One batch of equal requests in process: time to the first token, time per output token, and what
// an iteration did besides. Goes through Iteration, as serving does, without the scheduler.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "attention/pass_planner.h"
#include "engine/loaded_model.h"
#include "speculative/adaptive_depth.h"

namespace foresail {

struct BatchBenchOptions {
  int32_t batch_size = 1;
  int64_t context_len = 512;  // tokens of every prompt
  int64_t output_len = 64;    // tokens of every request, the first included
  int32_t draft_len = 0;      // drafts per iteration, at most
  bool adaptive = false;      // as many as pay; what is learned stays from run to run
  // Instead of prefilling, the caches are filled with random numbers; only the last tokens of the
  // prompts are run. Output then means nothing.
  bool synthetic_context = false;
  // On a device that chooses tokens itself: iterations are launched before the results of the ones
  // before are known, as serving does.
  bool launch_ahead = true;
  float temperature = 0.0f;  // greedy output soon repeats itself, which flatters drafts
  uint64_t seed = 1;
};

struct BatchBenchResult {
  double ttft_s = 0.0;              // one prefill of all requests
  std::vector<double> tpot_s;       // of each request: decode time / (output tokens - 1)
  std::vector<double> iteration_s;  // the gap between the chunks that a client would see
  std::vector<int32_t> ids;         // output of all requests, one after the other
  int64_t prefill_tokens = 0;       // that were really run
  int64_t decode_tokens = 0;        // of all requests, the first ones not included
  int64_t draft_passes = 0, accepted = 0;
  MetadataCounts prefill_metadata, decode_metadata;
  DeviceCounts decode_device;  // what a GPU was asked for while decoding
  int64_t launched_ahead = 0;  // iterations
  double metadata_s = 0.0;     // spent building it while decoding
  double prefill_metadata_s = 0.0;

  double decode_s() const;
  double accept_length() const;
};

class BatchBench {
 public:
  // The model was loaded with at least batch_size slots, each of context_len + output_len tokens.
  BatchBench(LoadedModel& model, const BatchBenchOptions& options);
  BatchBenchResult run();
  void set_depth(int32_t draft_len, bool adaptive);
  void set_launch_ahead(bool on) { options_.launch_ahead = on; }
  // Whether runs time a GPU's work too, which slows it by a little.
  void time_work(bool on) { times_work_ = on; }
  // Null until adaptive depth was first asked for.
  const AdaptiveDepth* adaptive_depth() const {
    return adaptive_depth_ ? &*adaptive_depth_ : nullptr;
  }

 private:
  std::vector<RequestState> make_requests() const;
  int64_t output_len(const RequestState& request) const {
    return static_cast<int64_t>(request.tokens.size()) - options_.context_len;
  }
  std::vector<DecodeRequest> next_iteration(const std::vector<RequestState*>& running,
                                            const Flight* before);
  void decode(std::vector<RequestState*> running, BatchBenchResult& result);

  LoadedModel& model_;
  BatchBenchOptions options_;
  int64_t pages_per_request_;
  std::vector<std::vector<int32_t>> page_tables_;
  std::optional<AdaptiveDepth> adaptive_depth_;  // made when first wanted
  bool times_work_ = false;
};

double mean_of(const std::vector<double>& values);
double median_of(std::vector<double> values);

}  // namespace foresail
