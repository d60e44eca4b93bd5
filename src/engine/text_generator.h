// One request from prompt to text on a loaded model: the loop behind `run`, `chat` and `eval`.
// Owner: a command. Thread rule: one caller.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/loaded_model.h"
#include "text/tokenizer.h"

namespace foresail {

struct GenerationOptions {
  int64_t max_tokens = 128;
  int64_t min_tokens = 0;
  SamplingParams sampling;
  std::vector<std::string> stops;
  bool ignore_eos = false;
};

enum class FinishReason { kLength, kEndToken, kStopString };
std::string_view finish_reason_name(FinishReason reason);

struct GenerationStats {
  int64_t prompt_tokens = 0;
  int64_t output_tokens = 0;
  FinishReason finish = FinishReason::kLength;
  double prefill_s = 0.0;
  double decode_s = 0.0;  // after the first token
  int64_t verify_passes = 0;
  int64_t drafted = 0;
  int64_t accepted = 0;
  std::vector<int64_t> accepted_at;  // [draft position]
  std::vector<int64_t> drafted_at;
  // 1 + accepted drafts / verify passes.
  double accept_length() const;
};

// One committed token; `from_draft`: it was proposed and accepted, not drawn by the target alone.
struct TokenEvent {
  int32_t token = 0;
  bool from_draft = false;
  std::string_view text;  // text that became certain with this token; may be empty
};

class TextGenerator {
 public:
  // tokenizer may be null: then events carry no text and stop strings are refused.
  TextGenerator(LoadedModel& model, const Tokenizer* tokenizer);

  // Throws Error{kUsage} for a prompt that is empty, too long or holds ids outside the vocabulary.
  GenerationStats generate(std::vector<int32_t> prompt, const GenerationOptions& options,
                           const std::function<void(const TokenEvent&)>& on_token);

 private:
  void check_prompt(const std::vector<int32_t>& prompt, int64_t max_tokens) const;
  void prefill(RequestState& request);

  LoadedModel& model_;
  const Tokenizer* tokenizer_;
  std::vector<int32_t> page_table_;
};

}  // namespace foresail
