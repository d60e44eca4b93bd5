// The shape of /v1/completions.
#include <fmt/format.h>

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
    for (const Choice& choice : record.choices) {
      if (!choices.empty()) choices += ',';
      choices += choice_json(record, choice, scores_prompt_, choice.text, choice.ids,
                             choice.logprobs, choice.sources, choice.finish);
    }
    return openai_whole(record, kPrefix, kObject, choices);
  }

  // The echo is text like any other, only that it is there before the first token, unless its log
  // probabilities are wanted.
  std::string opening(const GenerationRecord& record) const override {
    std::string out;
    if (!echoes_ || scores_prompt_) return out;
    for (const Choice& choice : record.choices)
      out += openai_event(
          record, kPrefix, kObject,
          choice_json(record, choice, false, choice.text, {}, {}, {}, choice.finish), options_);
    return out;
  }

  std::string piece(const GenerationRecord& record, const Piece& piece) const override {
    if (!piece.has_echo && piece.text.empty() && piece.logprobs.empty() && piece.sources.empty() &&
        !piece.finish && !options_.return_token_ids)
      return {};
    return openai_event(
        record, kPrefix, kObject,
        choice_json(record, record.choices[piece.choice], piece.has_echo, piece.text, piece.ids,
                    piece.logprobs, piece.sources, piece.finish),
        options_);
  }

  std::string closing(const GenerationRecord& record) const override {
    return openai_closing(record, kPrefix, kObject, options_);
  }

 private:
  std::string choice_json(const GenerationRecord& record, const Choice& choice, bool with_prompt,
                          std::string_view text, std::span<const int32_t> ids,
                          std::span<const TokenLogprobs> logprobs,
                          std::span<const TokenSource> sources,
                          const std::optional<FinishReason>& finish) const {
    std::string out = fmt::format("{{\"index\":{},\"text\":", choice.index);
    append_json_string(out, text);
    out += ",\"logprobs\":";
    const std::span<const int32_t> prompt =
        with_prompt ? std::span<const int32_t>(record.prompts[choice.prompt])
                    : std::span<const int32_t>();
    append_completion_logprobs(out, tokenizer_, choice, prompt, ids, logprobs);
    fmt::format_to(std::back_inserter(out), ",\"finish_reason\":{}", finish_json(finish));
    if (finish) append_matched_stop(out, choice);
    append_extras(out, record, choice, ids, options_);
    if (options_.return_draft_info) append_draft_info(out, sources, tokenizer_);
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
