// The shape of /v1/chat/completions.
#include <fmt/format.h>

#include "server/api/logprobs.h"
#include "server/api/openai_projection.h"

namespace foresail {
namespace {

constexpr std::string_view kPrefix = "chatcmpl-";
constexpr std::string_view kObject = "chat.completion";
constexpr std::string_view kChunk = "chat.completion.chunk";

class ChatProjection final : public Projection {
 public:
  ChatProjection(const GenerationSpec& spec, const ServedModel& model)
      : options_(spec), tokenizer_(model.tokenizer) {}

  std::string whole(const GenerationRecord& record) const override {
    std::string choices;
    for (const Choice& choice : record.choices) {
      if (!choices.empty()) choices += ',';
      fmt::format_to(
          std::back_inserter(choices),
          "{{\"index\":{},\"message\":{{\"role\":\"assistant\",\"content\":", choice.index);
      append_json_string(choices, choice.text);
      choices += ",\"refusal\":null},\"logprobs\":";
      append_chat_logprobs(choices, tokenizer_, choice.ids, choice.logprobs);
      fmt::format_to(std::back_inserter(choices), ",\"finish_reason\":{}",
                     finish_json(choice.finish));
      append_matched_stop(choices, choice);
      append_extras(choices, record, choice, choice.ids, options_);
      choices += '}';
    }
    return openai_whole(record, kPrefix, kObject, choices);
  }

  std::string opening(const GenerationRecord& record) const override {
    std::string out;
    for (const Choice& choice : record.choices)
      out += chunk(record, choice, "\"role\":\"assistant\",\"content\":\"\"", {}, {}, {});
    return out;
  }

  std::string piece(const GenerationRecord& record, const Piece& piece) const override {
    const Choice& choice = record.choices[piece.choice];
    std::string out;
    if (!piece.text.empty() || !piece.logprobs.empty() ||
        (options_.return_token_ids && !piece.ids.empty())) {
      std::string delta = "\"content\":";
      append_json_string(delta, piece.text);
      out = chunk(record, choice, delta, piece.ids, piece.logprobs, {});
    }
    if (piece.finish) out += chunk(record, choice, "", {}, {}, piece.finish);
    return out;
  }

  std::string closing(const GenerationRecord& record) const override {
    return openai_closing(record, kPrefix, kChunk, options_);
  }

 private:
  std::string chunk(const GenerationRecord& record, const Choice& choice, std::string_view delta,
                    std::span<const int32_t> ids, std::span<const TokenLogprobs> logprobs,
                    const std::optional<FinishReason>& finish) const {
    std::string out =
        fmt::format("{{\"index\":{},\"delta\":{{{}}},\"logprobs\":", choice.index, delta);
    append_chat_logprobs(out, tokenizer_, ids, logprobs);
    fmt::format_to(std::back_inserter(out), ",\"finish_reason\":{}", finish_json(finish));
    if (finish) {
      append_matched_stop(out, choice);
      append_extras(out, record, choice, ids, options_);
    } else if (!ids.empty()) {
      OpenAiOptions ids_only = options_;
      ids_only.return_meta_info = false;
      append_extras(out, record, choice, ids, ids_only);
    }
    out += '}';
    return openai_event(record, kPrefix, kChunk, out, options_);
  }

  OpenAiOptions options_;
  const Tokenizer* tokenizer_;
};

}  // namespace

std::unique_ptr<Projection> chat_projection(const GenerationSpec& spec, const ServedModel& model) {
  return std::make_unique<ChatProjection>(spec, model);
}

}  // namespace foresail
