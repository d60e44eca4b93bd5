#include "server/api/logprobs.h"

#include <fmt/format.h>

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

// A token of several bytes of one character counts where the character begins.
int64_t characters(std::string_view bytes) {
  int64_t count = 0;
  for (const char byte : bytes) count += (static_cast<uint8_t>(byte) & 0xC0) != 0x80 ? 1 : 0;
  return count;
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

}  // namespace

void append_completion_logprobs(std::string& out, const Tokenizer* tokenizer, const Choice& choice,
                                std::span<const int32_t> ids,
                                std::span<const TokenLogprobs> logprobs) {
  if (logprobs.empty()) {
    out += "null";
    return;
  }
  std::string tokens, numbers, top, offsets;
  int64_t offset = 0;
  for (size_t i = 0; i + ids.size() < choice.ids.size(); ++i)
    offset += characters(bytes_of(tokenizer, choice.ids[i]));
  for (size_t i = 0; i < logprobs.size(); ++i) {
    for (std::string* list : {&tokens, &numbers, &top, &offsets})
      if (i > 0) *list += ',';
    append_json_string(tokens, name_of(tokenizer, ids[i]));
    append_number(numbers, logprobs[i].chosen);
    append_top(top, tokenizer, ids[i], logprobs[i]);
    offsets += std::to_string(offset);
    offset += characters(bytes_of(tokenizer, ids[i]));
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
