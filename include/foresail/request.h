// What a caller asks for: a prompt, how to draw, when to stop. Plain values, owned by the caller.
// Any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace foresail {

// Engine::default_sampling() has those that the model's generation_config.json asks for instead.
struct SamplingParams {
  float temperature = 1.0f;  // 0: greedy
  int top_k = 0;             // 0: off
  float top_p = 1.0f;        // 1: off
  float min_p = 0.0f;        // 0: off
  float repetition_penalty = 1.0f;
  float presence_penalty = 0.0f;
  float frequency_penalty = 0.0f;
  std::vector<std::pair<int32_t, float>> logit_bias = {};
  // A draw depends on (seed, position) only, never on what else is running: equal requests with
  // equal seeds get equal texts, so who wants several gives each a seed of its own.
  uint64_t seed = 0;

  bool has_penalties() const {
    return repetition_penalty != 1.0f || presence_penalty != 0.0f || frequency_penalty != 0.0f;
  }
};

class Grammar;

// What the whole output must be. JSON comes with at most one space after a comma or colon and none
// elsewhere, and the output ends where nothing may follow.
enum class OutputFormat { kText, kJsonObject, kJsonSchema, kRegex };

struct Request {
  std::string prompt = {};              // text, or
  std::vector<int32_t> input_ids = {};  // tokens, those of Engine::encode_chat() for example
  int64_t max_tokens = 128;
  int64_t min_tokens = 0;  // until then no end token is drawn, and stops are not looked for
  SamplingParams sampling = {};
  std::vector<std::string> stops = {};
  std::vector<int32_t> stop_token_ids = {};  // end it as the end token does
  bool include_stop = false;                 // the stop string stays in the text
  bool skip_special = true;                  // no special tokens in the text
  bool ignore_eos = false;
  OutputFormat output_format = OutputFormat::kText;
  std::string output_pattern = {};  // the JSON schema or the regular expression
  // A grammar from src/grammar, where output_format is kText.
  std::shared_ptr<const Grammar> grammar = {};
  // Control tokens that cut the text: with one comes all text before it, and none of its own.
  std::vector<int32_t> marker_ids = {};
  int priority = 0;       // greater runs first
  bool is_probe = false;  // only asks whether the model runs: its tokens are in no statistics
  // Drafts per iteration, at most the engine's own number; 0: this request never speculates.
  std::optional<int> speculative_steps = {};
  // Set: events carry the log probability of their token, and of this many best ones.
  std::optional<int> top_logprobs = {};
  // Set: the first event carries the log probabilities of the prompt's tokens too, and of this many
  // best ones. No page of such a prompt comes from the prefix cache.
  std::optional<int> prompt_top_logprobs = {};
  std::string cache_salt = {};  // prompts share cached prefixes only with prompts of the same salt
};

}  // namespace foresail
