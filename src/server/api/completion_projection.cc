// The shape of /v1/completions.
#include <fmt/core.h>

#include "server/api/logprobs.h"
#include "server/api/openai_projection.h"

namespace foresail {
namespace {

constexpr std::string_view kPrefix = "cmpl-";
constexpr std::string_view kObject = "text_completion";

class CompletionProjection final : public Projection {
 public:
  CompletionProjection(const GenerationSpec& spec, const ServedModel& model)
      : options_(spec),
        echoes_(!spec.echoes.empty()),
        scores_prompt_(spec.options.prompt_top_logprobs.has_value()),
        tokenizer_(model.tokenizer) {}

  std::string whole(const GenerationRecord& record) const override {
    std::string choices;
    for (size_t i = 0; i < record.choices.size(); ++i) {
      const Choice& choice = record.choices[i];
      if (i > 0) choices += ',';
      choices += choice_json(record, {.choice = i,
                                      .has_echo = scores_prompt_,
                                      .text = choice.text,
                                      .ids = choice.ids,
                                      .logprobs = choice.logprobs,
                                      .sources = choice.sources,
                                      .finish = choice.finish});
    }
    return openai_whole(record, kPrefix, kObject, choices);
  }

  // The echo is text like any other, only that it is there before the first token, unless its log
  // probabilities are wanted.
  std::string opening(const GenerationRecord& record) const override {
    std::string out;
    if (!echoes_ || scores_prompt_) return out;
    for (size_t i = 0; i < record.choices.size(); ++i) {
      const Choice& choice = record.choices[i];
      const Piece echo{.choice = i, .text = choice.text, .finish = choice.finish};
      out += openai_event(record, kPrefix, kObject, choice_json(record, echo), options_);
    }
    return out;
  }

  std::string piece(const GenerationRecord& record, const Piece& piece) const override {
    if (!piece.has_echo && piece.text.empty() && piece.logprobs.empty() && piece.sources.empty() &&
        !piece.finish && !options_.return_token_ids)
      return {};
    return openai_event(record, kPrefix, kObject, choice_json(record, piece), options_);
  }

  std::string closing(const GenerationRecord& record) const override {
    return openai_closing(record, kPrefix, kObject, options_);
  }

 private:
  std::string choice_json(const GenerationRecord& record, const Piece& piece) const {
    const Choice& choice = record.choices[piece.choice];
    std::string out = fmt::format("{{\"index\":{},\"text\":", choice.index);
    append_json_string(out, piece.text);
    out += ",\"logprobs\":";
    const std::span<const int32_t> prompt =
        piece.has_echo ? std::span<const int32_t>(record.prompts[choice.prompt])
                       : std::span<const int32_t>();
    append_completion_logprobs(out, tokenizer_, choice, prompt, piece.ids, piece.logprobs);
    fmt::format_to(std::back_inserter(out), ",\"finish_reason\":{}", finish_json(piece.finish));
    if (piece.finish) append_matched_stop(out, choice);
    append_extras(out, record, choice, piece.ids, options_);
    if (options_.return_draft_info) append_draft_info(out, piece.sources, tokenizer_);
    out += '}';
    return out;
  }

  OpenAiOptions options_;
  bool echoes_;
  bool scores_prompt_;
  const Tokenizer* tokenizer_;
};

}  // namespace

std::unique_ptr<Projection> completion_projection(const GenerationSpec& spec,
                                                  const ServedModel& model) {
  return std::make_unique<CompletionProjection>(spec, model);
}

}  // namespace foresail
