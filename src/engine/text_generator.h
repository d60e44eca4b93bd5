// One request from prompt to text on a loaded model: the loop behind `run` and `eval`.
// Owner: a command. Thread rule: one caller.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "engine/loaded_model.h"
#include "engine/output_grammars.h"
#include "foresail/output.h"
#include "foresail/request.h"
#include "speculative/adaptive_depth.h"
#include "text/tokenizer.h"

namespace foresail {

// Whether a generation can run at all; needs no weights. Throws Error{kUsage} for a prompt that is
// empty, too long or holds ids outside the vocabulary, and for sampling settings that make no
// sense. The prompt is the first argument; that of `request` is not looked at.
void check_generation(const std::vector<int32_t>& prompt, const Request& request,
                      const Tokenizer* tokenizer, const ModelConfig& config,
                      int64_t context_length);

// Why a generation ended without its text.
inline constexpr const char* kNoNumbers =
    "the model's output is not usable: its logits are not numbers";

class TextGenerator {
 public:
  // tokenizer may be null: then events carry no text and stop strings are refused.
  TextGenerator(LoadedModel& model, const Tokenizer* tokenizer);

  // Throws what check_generation throws.
  GenerationStats generate(std::vector<int32_t> prompt, const Request& options,
                           const std::function<void(const Event&)>& on_token);

 private:
  void prefill(RequestState& request);

  LoadedModel& model_;
  const Tokenizer* tokenizer_;
  OutputGrammars grammars_;
  std::vector<int32_t> page_table_;
  std::optional<AdaptiveDepth> adaptive_depth_;
};

}  // namespace foresail
