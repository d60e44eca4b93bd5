#include "server/api/openai_projection.h"

#include <fmt/core.h>

#include "base/json.h"

namespace foresail {
namespace {

std::string frame(const GenerationRecord& record, std::string_view prefix, std::string_view object,
                  std::string_view choice, std::string_view usage) {
  std::string out = "{\"id\":";
  append_json_string(out, std::string(prefix) + record.id);
  fmt::format_to(std::back_inserter(out), ",\"object\":\"{}\",\"created\":{},\"model\":", object,
                 record.created);
  append_json_string(out, record.model);
  fmt::format_to(std::back_inserter(out), ",\"system_fingerprint\":\"{}\",\"choices\":[{}]{}}}",
                 kFingerprint, choice, usage);
  return out;
}

std::string with_usage(const GenerationRecord& record) {
  return ",\"usage\":" + json_text(usage_json(record.usage()));
}

}  // namespace

std::string openai_event(const GenerationRecord& record, std::string_view prefix,
                         std::string_view object, std::string_view choice,
                         const OpenAiOptions& options) {
  std::string usage;
  if (options.include_usage) usage = ",\"usage\":null";
  if (options.continuous_usage) usage = with_usage(record);
  return event(frame(record, prefix, object, choice, usage));
}

std::string openai_whole(const GenerationRecord& record, std::string_view prefix,
                         std::string_view object, std::string_view choices) {
  return frame(record, prefix, object, choices, with_usage(record));
}

std::string openai_closing(const GenerationRecord& record, std::string_view prefix,
                           std::string_view object, const OpenAiOptions& options) {
  std::string out;
  if (options.include_usage) out = event(frame(record, prefix, object, "", with_usage(record)));
  out += kDoneEvent;
  return out;
}

void append_extras(std::string& choice, const GenerationRecord& record, const Choice& of,
                   std::span<const int32_t> ids, const OpenAiOptions& options) {
  if (options.return_token_ids) {
    choice += ",\"token_ids\":";
    append_json_ids(choice, ids);
  }
  if (options.return_token_ids && of.finish) {
    choice += ",\"prompt_token_ids\":";
    append_json_ids(choice, record.prompts[of.prompt]);
  }
  if (options.return_meta_info && of.finish)
    choice += ",\"meta_info\":" + json_text(meta_info_json(record, of));
}

void append_draft_info(std::string& choice, std::span<const TokenSource> sources,
                       const Tokenizer* tokenizer) {
  choice += ",\"draft_info\":[";
  for (const TokenSource& source : sources) {
    if (choice.back() != '[') choice += ',';
    choice += "{\"text\":";
    append_json_string(choice, source.text);
    if (source.draft_position > 0)
      fmt::format_to(std::back_inserter(choice), ",\"draft\":{}", source.draft_position);
    if (!source.rejected.empty()) choice += ",\"rejected\":[";
    for (const int32_t id : source.rejected) {
      if (choice.back() != '[') choice += ',';
      append_json_string(choice,
                         tokenizer == nullptr ? std::string() : tokenizer->decode({&id, 1}, false));
    }
    if (!source.rejected.empty()) choice += ']';
    if (source.part != TokenSource::Part::kContent)
      choice += source.part == TokenSource::Part::kReasoning ? ",\"part\":\"reasoning\""
                                                             : ",\"part\":\"call\"";
    choice += '}';
  }
  choice += ']';
}

void append_matched_stop(std::string& choice, const Choice& of) {
  choice += ",\"matched_stop\":";
  if (of.finish == FinishReason::kStopString)
    append_json_string(choice, of.stats.matched_stop);
  else if (of.finish == FinishReason::kEndToken)
    choice += std::to_string(of.ids.back());
  else
    choice += "null";
}

}  // namespace foresail
