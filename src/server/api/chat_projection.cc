// The shape of /v1/chat/completions.
#include <fmt/core.h>

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
      : options_(spec),
        tokenizer_(model.tokenizer),
        tells_reasoning_(spec.syntax.reasoning != nullptr && spec.include_reasoning),
        both_fields_(model.both_reasoning_fields) {}

  std::string whole(const GenerationRecord& record) const override {
    std::string choices;
    for (const Choice& choice : record.choices) {
      if (!choices.empty()) choices += ',';
      fmt::format_to(
          std::back_inserter(choices),
          "{{\"index\":{},\"message\":{{\"role\":\"assistant\",\"content\":", choice.index);
      if (choice.text.empty() && !choice.calls.empty())
        choices += "null";
      else
        append_json_string(choices, choice.text);
      choices += ",\"refusal\":null";
      if (tells_reasoning_) choices += "," + reasoning_json(choice.reasoning);
      if (!choice.calls.empty()) choices += "," + calls_json(choice.calls, false);
      choices += "},\"logprobs\":";
      append_chat_logprobs(choices, tokenizer_, choice.ids, choice.logprobs);
      fmt::format_to(std::back_inserter(choices), ",\"finish_reason\":{}",
                     finish_of(choice, choice.finish));
      append_matched_stop(choices, choice);
      append_extras(choices, record, choice, choice.ids, options_);
      if (options_.return_draft_info) append_draft_info(choices, choice.sources, tokenizer_);
      choices += '}';
    }
    return openai_whole(record, kPrefix, kObject, choices);
  }

  std::string opening(const GenerationRecord& record) const override {
    std::string out;
    for (const Choice& choice : record.choices)
      out += chunk(record, choice, "\"role\":\"assistant\",\"content\":\"\"", {}, {});
    return out;
  }

  std::string piece(const GenerationRecord& record, const Piece& piece) const override {
    const Choice& choice = record.choices[piece.choice];
    std::vector<std::string> deltas;
    if (!piece.reasoning.empty()) deltas.push_back(reasoning_json(piece.reasoning));
    const bool tells_tokens = !piece.logprobs.empty() || !piece.sources.empty() ||
                              (options_.return_token_ids && !piece.ids.empty());
    if (!piece.text.empty() || (deltas.empty() && piece.calls.empty() && tells_tokens)) {
      deltas.emplace_back("\"content\":");
      append_json_string(deltas.back(), piece.text);
    }
    for (const ToolCallDelta& call : piece.calls) deltas.push_back(calls_json({&call, 1}, true));
    std::string out;
    const Piece no_tokens;
    for (size_t i = 0; i < deltas.size(); ++i)  // the tokens go with the first
      out += chunk(record, choice, deltas[i], i == 0 ? piece : no_tokens, {});
    if (piece.finish) out += chunk(record, choice, "", {}, piece.finish);
    return out;
  }

  std::string closing(const GenerationRecord& record) const override {
    return openai_closing(record, kPrefix, kChunk, options_);
  }

 private:
  // A fact of the whole message: an answer with calls ends for them, if they are whole.
  static std::string_view finish_of(const Choice& choice,
                                    const std::optional<FinishReason>& finish) {
    const std::string_view reason = finish_json(finish);
    const bool calls = !choice.calls.empty() && !choice.cut_in_call;
    return reason == "\"stop\"" && calls ? "\"tool_calls\"" : reason;
  }

  std::string reasoning_json(std::string_view text) const {
    std::string out = "\"reasoning_content\":";
    append_json_string(out, text);
    if (!both_fields_) return out;
    out += ",\"reasoning\":";
    append_json_string(out, text);
    return out;
  }

  // In a stream every call has its index, and what has been told already is left out.
  static std::string calls_json(std::span<const ToolCallDelta> calls, bool is_delta) {
    std::string out = "\"tool_calls\":[";
    for (const ToolCallDelta& call : calls) {
      if (out.back() != '[') out += ',';
      out += '{';
      if (is_delta) out += fmt::format("\"index\":{},", call.index);
      if (!call.id.empty()) {
        out += "\"id\":";
        append_json_string(out, call.id);
        out += ",\"type\":\"function\",";
      }
      out += "\"function\":{";
      if (!call.id.empty()) {
        out += "\"name\":";
        append_json_string(out, call.name);
        out += ',';
      }
      out += "\"arguments\":";
      append_json_string(out, call.arguments);
      out += "}}";
    }
    return out + "]";
  }

  // Of the piece only what belongs to its tokens.
  std::string chunk(const GenerationRecord& record, const Choice& choice, std::string_view delta,
                    const Piece& piece, const std::optional<FinishReason>& finish) const {
    std::string out =
        fmt::format("{{\"index\":{},\"delta\":{{{}}},\"logprobs\":", choice.index, delta);
    append_chat_logprobs(out, tokenizer_, piece.ids, piece.logprobs);
    fmt::format_to(std::back_inserter(out), ",\"finish_reason\":{}", finish_of(choice, finish));
    if (finish) {
      append_matched_stop(out, choice);
      append_extras(out, record, choice, piece.ids, options_);
    } else if (!piece.ids.empty()) {
      OpenAiOptions ids_only = options_;
      ids_only.return_meta_info = false;
      append_extras(out, record, choice, piece.ids, ids_only);
    }
    if (!piece.sources.empty()) append_draft_info(out, piece.sources, tokenizer_);
    out += '}';
    return openai_event(record, kPrefix, kChunk, out, options_);
  }

  OpenAiOptions options_;
  const Tokenizer* tokenizer_;
  bool tells_reasoning_;
  bool both_fields_;
};

}  // namespace

std::unique_ptr<Projection> chat_projection(const GenerationSpec& spec, const ServedModel& model) {
  return std::make_unique<ChatProjection>(spec, model);
}

}  // namespace foresail
