// What comes back: events of one request, its figures, and those of the engine. Plain values.
// Any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace foresail {

// kComplete: the output format lets nothing follow.
enum class FinishReason { kLength, kEndToken, kStopString, kComplete, kAborted, kFailed };

// "length", "stop", "abort" or "error".
constexpr std::string_view finish_reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kLength:
      return "length";
    case FinishReason::kAborted:
      return "abort";
    case FinishReason::kFailed:
      return "error";
    default:
      return "stop";
  }
}

// Natural logarithms under the model's own distribution: before penalties, bias, temperature and
// truncation.
struct TokenLogprobs {
  float chosen = 0.0f;
  std::vector<std::pair<int32_t, float>> top;  // best first, as many as asked for
};

// One committed token. The last event of a request, and only that one, has `finish`.
struct Event {
  int32_t token = -1;       // -1: the request ended without one (aborted, failed)
  bool from_draft = false;  // proposed and accepted, not drawn by the target alone
  std::string text;         // what became certain with this token; may be empty
  std::optional<FinishReason> finish;
  std::optional<TokenLogprobs> logprobs;  // where they were asked for
  // With the first event, where asked for: of the prompt's tokens from the second on.
  std::vector<TokenLogprobs> prompt_logprobs = {};
  std::vector<int32_t> rejected = {};  // drafts: this token was drawn instead of the first
};

// Tokens per pass that verified drafts: 1 + accepted drafts / such passes.
inline double accept_length(int64_t accepted, int64_t draft_passes) {
  if (draft_passes == 0) return 1.0;
  return 1.0 + static_cast<double>(accepted) / static_cast<double>(draft_passes);
}

struct GenerationStats {
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;  // of the prompt, found in the prefix cache
  int64_t output_tokens = 0;
  bool admitted = false;  // it has left the queue
  FinishReason finish = FinishReason::kLength;
  std::string matched_stop;  // the stop string that ended it
  std::string failure;       // why it failed, where the request is the reason: what to change
  double ttft_s = 0.0;       // from submission to the first token
  double prefill_s = 0.0;    // from admission to the first token
  double decode_s = 0.0;     // after the first token
  int64_t verify_passes = 0;
  int64_t drafted = 0;
  int64_t accepted = 0;
  std::vector<int64_t> drafted_at;  // [draft position]
  std::vector<int64_t> accepted_at;

  // Of the verify passes those that had a draft to verify: at depth 0 there is none.
  int64_t draft_passes() const { return drafted_at.empty() ? 0 : drafted_at[0]; }
  double accept_length() const { return foresail::accept_length(accepted, draft_passes()); }
};

struct EngineStats {
  int64_t waiting = 0;
  int64_t running = 0;
  int64_t submitted = 0;
  int64_t finished = 0;
  int64_t aborted = 0;
  int64_t failed = 0;
  int64_t nan_logits = 0;  // of the failed, those whose logits were no numbers
  int64_t retractions = 0;
  int64_t steps = 0;
  double step_s = 0.0;  // spent in them by the engine's thread
  int64_t output_tokens = 0;
  int64_t verify_passes = 0;
  int64_t draft_passes = 0;  // of the verify passes those that had a draft to verify
  int64_t drafted = 0;
  int64_t accepted = 0;
  int64_t prompt_tokens = 0;  // of admitted requests
  int64_t cached_tokens = 0;
  int64_t attention_plans = 0;   // one per pass, one per draft loop
  int64_t key_index_builds = 0;  // metadata that a backend read, or was told to build unread
  int64_t chunk_lists = 0;
  int64_t ragged_plans = 0;
  int64_t fallbacks_segmented = 0;  // prefill passes that could not run expanded
  int64_t fallbacks_prefix = 0;     // likewise, over a cached prefix that may not be chunked
  // What a GPU was asked for since it was set up; zeros on the CPU.
  int64_t device_waits = 0;  // of the host, for the GPU
  int64_t device_upload_bytes = 0;
  int64_t device_download_bytes = 0;
  int64_t device_passes = 0;
  int64_t device_replays = 0;  // graphs launched: a pass, or all of an iteration
  double device_wait_s = 0.0;  // that the host spent waiting for it
  int64_t recorded_steps = 0;  // decode steps recorded at start-up
  // Steps launched before the results of the ones before were known, and why the host waited for
  // these first; zeros on the CPU.
  int64_t launched_ahead = 0;
  int64_t waited_for_prefill = 0;  // or for a request to come in
  int64_t waited_for_draws = 0;    // the host draws, see chosen_for_*
  int64_t waited_for_masks = 0;    // a grammar decides what may be drawn
  int64_t waited_for_drafts = 0;   // the host drafts, or nothing is drafted
  int64_t waited_for_unequal_rows = 0;
  int64_t waited_for_scaled_queries = 0;
  // Target passes whose tokens the GPU chose, and those where the host had to and why.
  int64_t chosen_on_device = 0;
  int64_t chosen_for_logprobs = 0;
  int64_t chosen_for_memory = 0;
  int64_t pages_free = 0;
  int64_t pages_cached = 0;
  int64_t pages_owned = 0;  // by running requests
  int64_t pages_in_flight = 0;
  int64_t pages_total = 0;

  double accept_length() const { return foresail::accept_length(accepted, draft_passes); }
};

}  // namespace foresail
