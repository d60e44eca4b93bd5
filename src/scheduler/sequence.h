// One request as the scheduler sees it: token ids, limits, and a state that is a type.
// Owned by the Scheduler.
// Engine thread only.
#pragma once

#include <string>
#include <type_traits>
#include <variant>
#include <vector>

#include "base/check.h"
#include "cache/sequence_pages.h"

namespace foresail {

struct RequestSpec {
  std::vector<int32_t> prompt;
  Tokens max_new_tokens;
  int32_t priority = 0;  // greater runs first
  std::string cache_salt;
  bool reads_prefix_cache = true;     // false: its whole prompt is computed
  int32_t max_draft_len = INT32_MAX;  // 0: this request never speculates
};

// The states. A request holds a slot and pages exactly while it is Prefilling or Decoding.
struct Waiting {};
struct Prefilling {
  SequencePages pages;
  Tokens length;     // to prefill: the prompt, or prompt and output on resume
  Tokens planned;    // positions below this are computed by steps planned so far
  Tokens chunk_end;  // where this step's chunk ends
  bool started = false;
};
struct Decoding {
  SequencePages pages;
  Tokens length_at_start;  // of the history when decoding began
  int32_t drafted = 0;     // drafts the device holds for the next iteration, at most
};
struct Retracted {};
struct Finished {};
using SequenceState = std::variant<Waiting, Prefilling, Decoding, Retracted, Finished>;

template <typename From, typename To>
inline constexpr bool kLegalMove =
    std::is_same_v<To, Finished> ? !std::is_same_v<From, Finished>
    : std::is_same_v<To, Prefilling>
        ? std::is_same_v<From, Waiting> || std::is_same_v<From, Retracted>
    : std::is_same_v<To, Decoding> ? std::is_same_v<From, Prefilling>
    : std::is_same_v<To, Retracted>
        ? std::is_same_v<From, Prefilling> || std::is_same_v<From, Decoding>
        : false;

struct Sequence {
  RequestId id;  // also the order of arrival
  int32_t priority = 0;
  std::string cache_salt;
  bool reads_prefix_cache = true;
  int32_t max_draft_len = 0;
  std::vector<int32_t> tokens;  // prompt and committed output
  Tokens prompt_len;
  Tokens max_total_len;
  SequenceState state;

  Tokens computed;  // positions below this are in the pages, by steps that have completed
  // Of the steps planned and not yet completed:
  int32_t pending_steps = 0;
  Tokens pending_least;  // output they surely bring
  Tokens pending_most;   // output they may bring

  Tokens length() const { return Tokens{static_cast<int64_t>(tokens.size())}; }
  // The newest token has no KV yet.
  Tokens kv_len_upper() const { return length() + pending_most - Tokens{1}; }
  // Output that may be wanted beyond what is under way.
  Tokens wanted() const { return max_total_len - length() - pending_least; }

  SequencePages* pages() {
    if (auto* prefilling = std::get_if<Prefilling>(&state)) return &prefilling->pages;
    if (auto* decoding = std::get_if<Decoding>(&state)) return &decoding->pages;
    return nullptr;
  }

  // The one way to change state. Aborts on a move that is not in the table.
  template <typename To>
  void become(To to) {
    const bool legal = std::visit(
        [](const auto& from) { return kLegalMove<std::decay_t<decltype(from)>, To>; }, state);
    FORESAIL_CHECK(legal, "request {}: no move from state {} to {}", id.value, state.index(),
                   SequenceState(std::move(to)).index());
    state.template emplace<To>(std::move(to));
  }
};

// Who gets pages first, and who gives them up last: higher priority, then older.
struct RunsBefore {
  bool operator()(const Sequence* a, const Sequence* b) const {
    return a->priority != b->priority ? a->priority > b->priority : a->id < b->id;
  }
};

}  // namespace foresail
