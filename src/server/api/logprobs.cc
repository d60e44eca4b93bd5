#include "server/api/logprobs.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "base/utf8.h"
#include "server/api/json_text.h"

namespace foresail {
namespace {

constexpr float kLeast = -9999.0f;  // JSON has no infinity

std::string_view bytes_of(const Tokenizer* tokenizer, int32_t id) {
  return tokenizer == nullptr ? std::string_view() : tokenizer->token_bytes(id);
}

std::string name_of(const Tokenizer* tokenizer, int32_t id) {
  const std::string_view bytes = bytes_of(tokenizer, id);
  if (tokenizer == nullptr) return fmt::format("token_id:{}", id);
  if (is_valid_utf8(bytes)) return std::string(bytes);
  std::string name = "bytes:";
  for (const char byte : bytes) name += fmt::format("\\x{:02x}", static_cast<uint8_t>(byte));
  return name;
}

void append_number(std::string& out, float logprob) {
  fmt::format_to(std::back_inserter(out), "{}", std::isfinite(logprob) ? logprob : kLeast);
}

void append_entry(std::string& out, const Tokenizer* tokenizer, int32_t id, float logprob) {
  out += "{\"token\":";
  append_json_string(out, name_of(tokenizer, id));
  out += ",\"logprob\":";
  append_number(out, logprob);
  out += ",\"bytes\":[";
  const std::string_view bytes = bytes_of(tokenizer, id);
  for (size_t i = 0; i < bytes.size(); ++i)
    fmt::format_to(std::back_inserter(out), "{}{}", i == 0 ? "" : ",",
                   static_cast<uint8_t>(bytes[i]));
  out += ']';
}

// The best ones, and the chosen one where it is not among them.
void append_top(std::string& out, const Tokenizer* tokenizer, int32_t id,
                const TokenLogprobs& logprobs) {
  bool has_chosen = false;
  std::string separator;
  const auto append = [&](int32_t token, float logprob) {
    out += separator;
    append_json_string(out, name_of(tokenizer, token));
    out += ':';
    append_number(out, logprob);
    separator = ",";
  };
  out += '{';
  for (const auto& [token, logprob] : logprobs.top) {
    append(token, logprob);
    has_chosen = has_chosen || token == id;
  }
  if (!has_chosen) append(id, logprobs.chosen);
  out += '}';
}

OrderedJson native_entry(const Tokenizer* tokenizer, int32_t id, std::optional<float> logprob) {
  OrderedJson number, text;
  if (logprob) number = std::isfinite(*logprob) ? *logprob : kLeast;
  if (tokenizer != nullptr) text = name_of(tokenizer, id);
  return OrderedJson::array({std::move(number), id, std::move(text)});
}

}  // namespace

OrderedJson native_logprob(const Tokenizer* tokenizer, int32_t id, const TokenLogprobs* logprobs) {
  return native_entry(tokenizer, id,
                      logprobs == nullptr ? std::nullopt : std::optional(logprobs->chosen));
}

OrderedJson native_top_logprobs(const Tokenizer* tokenizer, const TokenLogprobs* logprobs) {
  if (logprobs == nullptr) return nullptr;
  OrderedJson list = OrderedJson::array();
  for (const auto& [id, logprob] : logprobs->top)
    list.push_back(native_entry(tokenizer, id, logprob));
  return list;
}

void append_completion_logprobs(std::string& out, const Tokenizer* tokenizer, const Choice& choice,
                                std::span<const int32_t> prompt, std::span<const int32_t> ids,
                                std::span<const TokenLogprobs> logprobs) {
  if (logprobs.empty() && prompt.empty()) {
    out += "null";
    return;
  }
  std::string tokens, numbers, top, offsets;
  const auto append = [&](int32_t id, const TokenLogprobs* logprob, int64_t offset) {
    if (!tokens.empty())
      for (std::string* list : {&tokens, &numbers, &top, &offsets}) *list += ',';
    append_json_string(tokens, name_of(tokenizer, id));
    offsets += std::to_string(std::max<int64_t>(offset, 0));
    if (logprob == nullptr) {
      numbers += "null";
      top += "null";
    } else {
      append_number(numbers, logprob->chosen);
      append_top(top, tokenizer, id, *logprob);
    }
  };
  const auto width = [&](int32_t id) { return count_characters(bytes_of(tokenizer, id)); };
  const auto total_width = [&](std::span<const int32_t> list) {
    int64_t total = 0;
    for (const int32_t id : list) total += width(id);
    return total;
  };
  // Below 0 where the echo leaves out a begin token.
  int64_t offset = std::min<int64_t>(choice.echo_chars - total_width(prompt), 0);
  for (size_t i = 0; i < prompt.size(); ++i) {
    append(prompt[i], i == 0 ? nullptr : &choice.prompt_logprobs[i - 1], offset);
    offset += width(prompt[i]);
  }
  const std::span<const int32_t> told(choice.ids);
  offset = choice.echo_chars + total_width(told.first(told.size() - ids.size()));
  for (size_t i = 0; i < logprobs.size(); ++i) {
    append(ids[i], &logprobs[i], offset);
    offset += width(ids[i]);
  }
  fmt::format_to(std::back_inserter(out),
                 "{{\"tokens\":[{}],\"token_logprobs\":[{}],\"top_logprobs\":[{}],"
                 "\"text_offset\":[{}]}}",
                 tokens, numbers, top, offsets);
}

void append_chat_logprobs(std::string& out, const Tokenizer* tokenizer,
                          std::span<const int32_t> ids, std::span<const TokenLogprobs> logprobs) {
  if (logprobs.empty()) {
    out += "null";
    return;
  }
  out += "{\"content\":[";
  for (size_t i = 0; i < logprobs.size(); ++i) {
    if (i > 0) out += ',';
    append_entry(out, tokenizer, ids[i], logprobs[i].chosen);
    out += ",\"top_logprobs\":[";
    for (size_t k = 0; k < logprobs[i].top.size(); ++k) {
      if (k > 0) out += ',';
      append_entry(out, tokenizer, logprobs[i].top[k].first, logprobs[i].top[k].second);
      out += '}';
    }
    out += "]}";
  }
  out += "],\"refusal\":null}";
}

}  // namespace foresail
