// What a model computes, as numbers: logits and states, bits per byte, drafts.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "engine/loaded_model.h"
#include "text/tokenizer.h"

namespace foresail {

// Throws Error{kUsage} for no ids, more than the model has positions, or one that is no token.
void check_token_ids(std::span<const int32_t> ids, const ModelConfig& config);

struct NamedTensor {
  std::string name;
  std::vector<int64_t> shape;
  std::vector<float> values;  // or
  std::vector<int64_t> ids;
};

// "logits" f32 [T, V] and "hidden.{l}" f32 [H]: the last position's residual stream entering layer
// l; the last index is after the final norm. path: auto, absorbed or expanded.
std::vector<NamedTensor> evaluate_logits(LoadedModel& model, std::span<const int32_t> ids,
                                         const std::string& path);

struct Perplexity {
  double bits_per_byte = 0.0;
  double perplexity = 0.0;  // per token
  int64_t token_count = 0;  // predicted
  int64_t byte_count = 0;   // of the predicted tokens
  int64_t window = 0;       // tokens
};
// Tokens per window: `asked`, or for 0 the context length, at most 2048. Throws Error{kUsage} for a
// window that the context cannot hold.
int64_t perplexity_window(int64_t asked, int64_t context_length);
// Windows overlap by half and only the second half of each is scored (the first window whole), so a
// token is predicted from at least window / 2 others where the text allows. Each window starts with
// what the tokenizer puts before a text (bos, mostly).
// `progress`: tokens that are scored, of all.
Perplexity evaluate_perplexity(
    LoadedModel& model, const Tokenizer& tokenizer, const std::string& text, int64_t window,
    const std::function<void(int64_t done, int64_t total)>& progress = {});

// `steps` chained greedy drafts after `ids` and the target's own next token: "draft_logits"
// [steps, V_draft], "draft_state" [steps, H], "drafts" [steps] as target ids, "next" [1].
std::vector<NamedTensor> evaluate_drafts(LoadedModel& model, std::span<const int32_t> ids,
                                         int steps);

}  // namespace foresail
