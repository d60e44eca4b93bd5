// Proposes the next tokens of running requests. What it proposes changes speed, never output.
// Chains only: step i extends the guess of step i - 1. One implementation per kind of proposal.
// Owner: the engine. Thread rule: one caller.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "grammar/output_guide.h"
#include "kernels/kernel_set.h"
#include "runtime/sampling.h"

namespace foresail {

// A running request as a drafter sees it. `tokens` is everything committed, the bonus token (whose
// target KV does not exist yet) last: tokens.size() == L + 1.
struct DraftRequest {
  int32_t slot = 0;  // row of the drafter's own per-request state
  const int32_t* page_table = nullptr;
  std::span<const int32_t> tokens;
  const SamplingParams* sampling = nullptr;  // how the target will draw
  int steps = 0;  // most proposals wanted; the table covers positions below L + steps, with
                  // drafts_from_bonus() one more
  const OutputGuide* guide = nullptr;  // what the target may draw; null: anything
};

// New target states of one request: row j is position first_position + j, and the drafter's cache
// entry there also encodes next_tokens[j], the token at the following position.
struct ExtendRows {
  DraftRequest request;
  int32_t first_position = 0;
  std::span<const int32_t> next_tokens;
  int64_t state_row = 0;  // first of its rows in the matrix of states
  // No proposal is wanted after them, so they may be taken in later: with the next rows that do
  // not say so, and at the latest when they complete a page.
  bool may_wait = false;
};

// A verify pass whose outcome only the device knows yet: all rows of all requests, one request
// after the other, as they were verified. Pointers are into the memory of the kernels.
struct QueuedVerify {
  struct Rows {
    DraftRequest request;        // as the host knows it
    int32_t first_position = 0;  // of its first row, had all that was under way before stood
    int32_t row_count = 0;
    bool is_exact = true;  // first_position holds, whatever was accepted before
  };
  std::span<const Rows> requests;
  MatrixView states;                     // f32 [T, target states]
  const int32_t* next_tokens = nullptr;  // [T] what follows each row that stands
  const int32_t* lag = nullptr;          // [requests] rows that do not stand
  const int32_t* row_lag = nullptr;  // [requests] by how much the rows lag already; null: nothing
  // Receives [steps][requests]: row i of a request's drafts. One row also where nobody wants any.
  int32_t* drafts = nullptr;
};

class Drafter {
 public:
  virtual ~Drafter() = default;
  virtual std::string_view name() const = 0;
  // Target states that extend() reads, as HiddenCapture layers, concatenated in this order.
  virtual std::vector<int> target_layers() const { return {}; }
  // After target rows became final: prompt chunks, and the accepted rows of a verify pass.
  virtual void extend(std::span<const ExtendRows> rows, const MatrixView& states) {
    (void)rows;
    (void)states;
  }
  // As extend, of all rows of `states`, one after the other, in the memory of the kernels. False:
  // it wants them in the host's, and nothing was done.
  virtual bool extend_placed(std::span<const ExtendRows> rows, const MatrixView& states) {
    (void)rows;
    (void)states;
    return false;
  }
  // Whether queue() can follow a verify pass of these requests, in place of extend and draft. It
  // never waits; draws know nothing of grammars, nor of what else changes logits. Where not, it may
  // be that it can once all passes that were queued before are known to learn().
  virtual bool can_queue(std::span<const QueuedVerify::Rows> requests) const {
    (void)requests;
    return false;
  }
  virtual void queue(const QueuedVerify& verify) { (void)verify; }
  // What stands of a queued verify pass after which nobody wanted drafts, pass after pass, as soon
  // as the host knows it. Nothing waits for it; state_row says nothing.
  virtual void learn(std::span<const ExtendRows> rows) { (void)rows; }
  // Whether its entry p in the pages encodes the token at p + 1, so that a cached block depends on
  // the token after it.
  virtual bool has_pair_entries() const { return !target_layers().empty(); }
  // Whether its draft loop begins with the row of the bonus token and so writes one entry more.
  virtual bool drafts_from_bonus() const { return false; }
  // drafts[i] receives up to requests[i].steps proposals for the positions after the bonus token.
  virtual void draft(std::span<const DraftRequest> requests,
                     std::span<std::vector<int32_t>> drafts) = 0;
};

}  // namespace foresail
