// A decode iteration that was started and whose outcome the host has not taken yet, and what the
// one behind it needs to know of it. Plain values between Iteration::start and finish.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "model/mla_model.h"

namespace foresail {

struct RequestState;

constexpr int kMostDrafts = 15;  // of a verify pass, for each request
constexpr int kMostVerifyRows = kMostDrafts + 1;

// One request of an iteration to start.
struct DecodeRequest {
  RequestState* request = nullptr;
  int32_t most_drafts = 0;  // to verify; fewer where fewer were proposed
  int32_t draft_steps = 0;  // proposals wanted for the iteration after it
};

struct Flight {
  struct Item {
    RequestState* request = nullptr;
    int32_t row_begin = 0;
    int32_t row_count = 0;  // drafts and one
    int32_t draft_steps = 0;
    int32_t pretended = -1;  // drafts that acceptance was told stand; negative: it was not
  };
  std::vector<Item> items;
  int32_t steps = 0;        // most draft_steps
  bool chosen = false;      // the kernels chose the tokens
  bool queued = false;      // and the drafts after them
  MlaModel::Output output;  // where they did not
  // Where the chosen tokens lie in the memory of the kernels, [rows] of them, and from there on
  // what follows each row, the lags of the requests and their drafts, [steps][items], and the log
  // probabilities of the rows, where one wants them.
  const int32_t* tokens = nullptr;
  int64_t next_tokens_at = 0, lags_at = 0, drafts_at = 0, logprobs_at = 0;
  int64_t fetched = 0;  // how many of all that are on their way to the host
  uint64_t download = 0;
  int staging = 0;

  int64_t row_count() const {
    return items.empty() ? 0 : items.back().row_begin + items.back().row_count;
  }
};

// Whether an iteration is started before the outcome of the one before it is known, or what makes
// the host wait first.
enum class StartOrder {
  kAhead,
  kPrefill,        // the step has a prefill, or one of its requests just came
  kHostDraws,      // the host has to draw (HostChoice says why)
  kHostMasks,      // a grammar has to see a token before it knows what may follow
  kHostDrafts,     // the drafter needs the tokens on the host
  kUnequalRows,    // requests verify different numbers of drafts
  kScaledQueries,  // the model scales queries by positions that the host does not know
  kCount
};
constexpr std::string_view start_order_name(StartOrder order) {
  constexpr std::string_view kNames[] = {"ahead",         "prefill",     "host_draws",
                                         "host_masks",    "host_drafts", "unequal_rows",
                                         "scaled_queries"};
  return kNames[static_cast<size_t>(order)];
}

}  // namespace foresail
