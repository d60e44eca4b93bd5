// One iteration of decoding: verify -> accept -> draft-extend -> draft. Plain decoding is the same
// iteration with zero drafts. Prefill is its entry: it fills the caches and draws the first token.
//
// L is the committed length at the start: tokens.size() - 1, since the last committed token (the
// bonus token) has no KV yet. Verify computes rows for positions L .. L + K with kv_end L + K + 1;
// draft-extend covers the accepted rows; draft step i sees L' + i + 1 keys, L' the new length.
//
// Acceptance draws the target's token for every row and keeps drafts as long as they equal it. A
// draw depends only on (seed, position), so the output is that of plain decoding token for token,
// greedy or not. Drafters draw with the same noise (sampling.h), so they agree with the target
// nearly as often as rejection sampling would accept.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "attention/pass_planner.h"
#include "foresail/log.h"
#include "foresail/output.h"
#include "grammar/output_guide.h"
#include "model/mla_model.h"
#include "runtime/latent_store.h"
#include "runtime/sampling.h"
#include "speculative/drafter.h"
#include "speculative/flight.h"

namespace foresail {

// The state of a running request that an iteration reads and advances.
struct RequestState {
  int32_t slot = 0;
  const int32_t* page_table = nullptr;  // covers L + K + 1 keys
  std::vector<int32_t> tokens;          // prompt, then output
  int64_t prompt_len = 0;
  SamplingParams sampling;
  TokenCounts counts;
  std::vector<int32_t> blocked;  // ids that must not be drawn yet (minimum length)
  int64_t blocked_until = 0;     // positions below this one
  OutputGuide guide;             // what may follow tokens.back()
  // The kernels' table of what changes its logits is as `counts`, or will be after what is queued.
  bool terms_placed = false;
  bool without_terms = false;   // there was no memory for that, or for masks, when it was wanted
  std::vector<int32_t> drafts;  // proposals for the positions after tokens.back()
  int draft_steps = 0;          // proposals wanted for the next iteration; 0: none
  std::optional<int> top_logprobs;  // set: log probabilities are kept, and of so many best tokens
  std::vector<TokenLogprobs> logprobs;  // of the tokens that the latest pass appended
  // Set: prefill collects those of the prompt's tokens from the second on; it begins at position 0.
  std::optional<int> prompt_top_logprobs;
  std::vector<TokenLogprobs> prompt_logprobs;
  bool failed = false;  // a row of logits held nothing to draw; what followed is worthless

  // Drafts that a device proposes behind its verify pass may be none that the grammar allows. Where
  // that happens often, the host proposes for a while, under masks.
  float cut_share = 0.0f;     // of the latest passes
  bool masked_drafts = true;  // the host proposed these
  void learn_cut(bool was_cut) {
    cut_share += ((was_cut ? 1.0f : 0.0f) - cut_share) / (masked_drafts ? 32.0f : 8.0f);
  }
  bool wants_masked_drafts() const { return guide.guides() && cut_share > 0.3f; }
};

struct PrefillRows {
  RequestState* request = nullptr;
  int32_t begin = 0;  // positions [begin, end) of request->tokens
  int32_t end = 0;

  bool is_last() const { return end == static_cast<int32_t>(request->tokens.size()); }
  // Rows [begin, this) predict tokens whose log probabilities are wanted.
  int32_t prompt_rows_end() const {
    if (!request->prompt_top_logprobs) return begin;
    return std::min(end, static_cast<int32_t>(request->prompt_len) - 1);
  }
};

struct IterationResult {
  // Tokens appended to requests[i].tokens; for speculation counters: drafted, accepted.
  std::vector<int32_t> new_tokens;
  std::vector<TokenLogprobs> logprobs;         // of new_tokens, where the request wants them
  std::vector<TokenLogprobs> prompt_logprobs;  // with the first token
  std::vector<int32_t> drafts;                 // what was verified
  int drafted = 0;
  int accepted = 0;
};

// Why a pass's logits came to the host, where the kernels would rather choose tokens themselves:
// what one request of the batch wants.
enum class HostChoice {
  kNone,
  kLogprobs,  // of the prompt, or of more best tokens than kernels rank
  kMemory,    // of the kernels: none for what changes logits
  kCount
};
constexpr std::string_view host_choice_name(HostChoice reason) {
  constexpr std::string_view kNames[] = {"none", "logprobs", "memory"};
  return kNames[static_cast<size_t>(reason)];
}

struct IterationOptions {
  // Overrides acceptance for performance runs: mean tokens per iteration. Output is then not the
  // model's; callers must mark every figure.
  std::optional<double> simulate_accept_length;
  int32_t slot_count = 1;  // slots of requests are below it
  LogCallback log = {};
};

class Iteration {
 public:
  // drafter may be null; with one that has passes of its own, the planner is shared with it.
  Iteration(MlaModel& model, const LatentStore& store, PassPlanner& planner, Drafter* drafter,
            IterationOptions options);

  // What the kernels are given, once a request changes logits: a table of TokenTerms and masks.
  static uint64_t term_bytes(uint64_t slot_count, uint64_t vocab_size);

  // Rows of several requests in one pass. A request whose end is its token count gets its first
  // output token (appended), and with a drafter its first drafts on the next decode().
  void prefill(std::span<const PrefillRows> chunks);
  // Advances every request by one verify pass of its drafts, then proposes those of the next.
  std::vector<IterationResult> decode(std::span<RequestState* const> requests);
  // decode() in two halves. Between them the next iteration may be started ahead, behind the first
  // half of this one (`before`; null: all outcomes are known), where choose_order() allows it and
  // the kernels prefer choosing. What it verifies is then of as many tokens as can have been
  // accepted. At most two are under way; they are finished in the order of their starts, and
  // nothing else runs meanwhile.
  Flight start(std::span<const DecodeRequest> requests) { return start(requests, nullptr, false); }
  StartOrder choose_order(std::span<const DecodeRequest> requests, const Flight* before);
  Flight start_ahead(std::span<const DecodeRequest> requests, const Flight* before);
  std::vector<IterationResult> finish(const Flight& flight);
  // Proposes drafts for requests that just finished prefill.
  void draft(std::span<RequestState* const> requests);

  // At rest only. Returns what it replaces.
  std::optional<double> simulate_accept_length(std::optional<double> length) {
    return std::exchange(options_.simulate_accept_length, length);
  }

  // Target passes by why the host chose their tokens; kNone: it did not.
  using HostChoices = std::array<int64_t, static_cast<size_t>(HostChoice::kCount)>;
  const HostChoices& host_choices() const { return host_choices_; }

 private:
  struct Rows;
  static void keep_allowed(OutputGuide guide, std::vector<int32_t>& drafts);
  void prefill_pass(std::span<const PrefillRows> chunks);
  void prefill_with_logprobs(PrefillRows chunk);
  void collect_prompt_logprobs(const PrefillRows& chunk, const MatrixView& logits,
                               int64_t first_row);
  // What a target pass says about its logit rows, in host memory.
  struct Verdict {
    MatrixView logits;            // f32 [logit_rows, V]; or, where the kernels chose,
    std::vector<int32_t> tokens;  // [logit_rows] as choose_tokens gives them, and what follows
    int64_t logprobs_at = 0;      // there, as in Flight
  };
  // Rows that decide the next tokens of a request, from the one that has `most_len` tokens before
  // it; at least so many: they are not less than `least_len`.
  struct DrawRows {
    RequestState* request = nullptr;
    int64_t most_len = 0, least_len = 0;
    int32_t count = 0;
    int32_t pretended = -1;  // drafts that acceptance was told stand; negative: it was not
  };
  // Why the host has to draw the next tokens of a request of `len` tokens itself.
  HostChoice host_choice(RequestState& request, int64_t len);
  // Whether something of a request of `len` tokens changes the logits that it is drawn from.
  static bool changes_logits(const RequestState& request, int64_t len);
  struct Draws {
    std::vector<TokenDraw> tokens;
    std::vector<DrawTerms> terms;  // one each, or none
    bool logprobs = false;         // some row wants them
    bool masks = false;            // some row has a grammar
  };
  // The draws of the rows; none where the host has to draw, or `wants_logits` for another reason.
  // Counts why. What changes logits is then in the kernels' table.
  Draws find_draws(std::span<const DrawRows> rows, bool wants_logits);
  bool has_term_memory();
  void place_terms(RequestState& request);
  // What the grammars allow at each row that has one, in the order of find_draws.
  const uint64_t* place_masks(std::span<const DrawRows> rows);
  struct TargetPass {
    PreparedPass prepared;
    std::vector<HiddenCapture> captures;
    ForwardBatch batch;
    MlaModel::Output output;
  };
  TargetPass prepare_target(PassKind kind, const Rows& rows, std::span<const int32_t> logit_rows,
                            const ChoiceBatch& choice);
  std::span<const LatentCache> caches_of(const TargetPass& pass) const;
  // Queues the pass. Its tokens come to choices_.
  void run_target(TargetPass& pass);
  // Or its two halves: up to its logits, finding the masks while that runs; and the choice.
  void run_before_masks(TargetPass& pass, std::span<const DrawRows> rows);
  void choose_under_masks(const TargetPass& pass);
  // These wait.
  Verdict fetch_logits(const MlaModel::Output& output);
  void start_fetch(Flight& flight);
  Verdict fetch_chosen(const Flight& flight);
  // What the drafter reads of the latest target pass, f32 [T, sum of captured widths], in host
  // memory.
  MatrixView target_states();
  // Where a pass of so many rows and requests leaves what it chooses, in the memory of the kernels.
  struct ChoicePlaces {
    int32_t* tokens;        // [rows], then
    int32_t* drafts;        // [steps][requests]
    RowLogprobs* logprobs;  // [rows] where they are wanted
    int32_t* next_tokens;   // up to here it is for the host
    int32_t* lag;
  };
  ChoicePlaces choice_places(int64_t row_count, int64_t request_count, int64_t steps,
                             bool logprobs);
  ChoiceBatch choice_batch(const Draws& draws, const ChoicePlaces& places) const;
  // What the host will take of a pass that chooses.
  static void expect_chosen(Flight& flight, const ChoicePlaces& places);
  struct Outlook;
  Outlook outlook(const DecodeRequest& wanted, const Flight* before, size_t index) const;
  void add_rows(const RequestState& request, const Outlook& next, const Flight* before,
                Rows& rows) const;
  Flight start(std::span<const DecodeRequest> requests, const Flight* before, bool ahead);
  // Drafts that acceptance was told to pretend stood; negative: it was not.
  int32_t pretended_drafts(const RequestState& request, int64_t len, int32_t draft_len) const;
  // The token that follows, or what acceptance was told to pretend it is.
  int32_t draw(RequestState& request, const Verdict& verdict, int64_t row,
               std::optional<int32_t> pretended = {});
  int32_t draw_from(RequestState& request, const MatrixView& logits, int64_t row,
                    std::optional<int32_t> pretended);
  int32_t take_chosen(RequestState& request, const Verdict& verdict, int64_t row,
                      std::optional<int32_t> pretended) const;
  static void append(RequestState& request, int32_t token);
  void accept(const Flight::Item& item, const Verdict& verdict, IterationResult& result);
  // The rows of an iteration that stand, for the drafter.
  static std::vector<ExtendRows> standing_rows(const Flight& flight,
                                               std::span<const IterationResult> results);

  MlaModel& model_;
  const LatentStore& store_;
  PassPlanner& planner_;
  Drafter* drafter_;
  IterationOptions options_;
  Sampler sampler_;
  MatrixView captured_;               // of the latest target pass, in the memory of the kernels
  Buffer states_;                     // its storage
  Buffer host_states_, host_logits_;  // copies where the host cannot read the originals
  Buffer choices_;                    // ChoicePlaces
  Buffer term_table_;                 // TokenTerms [slots, V], once a request needs them; then
                                      // masks [slots, kMostVerifyRows, mask_words(V)]
  std::vector<TokenTerms> terms_;     // of the slot being placed
  Buffer smaller_choices_;            // those of an iteration that may still be under way
  Buffer row_lags_;                   // PassCarry::row_lag
  std::array<Buffer, 2> host_choices_copies_;  // the first part of choices_, by turns
  int next_copy_ = 0;
  HostChoices host_choices_ = {};
  std::vector<uint64_t> allowed_;  // of the row being drawn, or placed
};

}  // namespace foresail
