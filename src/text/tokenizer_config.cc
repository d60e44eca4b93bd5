#include "text/tokenizer_config.h"

#include <charconv>

#include "base/error.h"
#include "base/json.h"
#include "text/json_fields.h"
#include "text/token_table.h"

namespace foresail {
namespace {

constexpr size_t kMaxContentBytes = 1024;  // keeps matching linear in the text

// A name, or an object with the name in `content`.
std::optional<std::string> token_name(const JsonFields& config, const char* key) {
  if (!config.has(key)) return std::nullopt;
  const Json& value = config.json()[key];
  if (value.is_string()) return value.get<std::string>();
  return std::string(JsonFields(value, config.where(key)).text("content"));
}

}  // namespace

int32_t checked_token_id(int64_t id, const std::string& where) {
  if (id < 0 || id > TokenTable::kMaxId)
    throw_model_error("{}: token id {} is outside 0..{}", where, id, TokenTable::kMaxId);
  return static_cast<int32_t>(id);
}

AddedToken parse_added_token(const Json& json, const std::string& where) {
  const JsonFields token(json, where);
  AddedToken out;
  out.content = token.text("content");
  if (out.content.size() > kMaxContentBytes)
    throw_model_error("{}: is longer than {} bytes", token.where("content"), kMaxContentBytes);
  out.special = token.flag("special", false);
  out.lstrip = token.flag("lstrip", false);
  out.rstrip = token.flag("rstrip", false);
  out.single_word = token.flag("single_word", false);
  out.normalized = token.flag("normalized", !out.special);
  return out;
}

TokenizerConfig TokenizerConfig::parse(std::string_view text, const std::string& where) {
  TokenizerConfig out;
  if (text.empty()) return out;
  const Result<Json> json = parse_json(text);
  if (!json) throw_model_error("{}: {}", where, json.error().message);
  const JsonFields config(*json, where);
  out.bos_token = token_name(config, "bos_token");
  out.eos_token = token_name(config, "eos_token");
  if (config.has("add_bos_token")) out.add_bos_token = config.flag("add_bos_token", false);
  if (!config.has("added_tokens_decoder")) return out;
  const Json& decoder = config.object("added_tokens_decoder");
  const std::string decoder_where = config.where("added_tokens_decoder");
  for (const auto& [key, value] : decoder.items()) {
    int64_t id = 0;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc() || end != key.data() + key.size())
      throw_model_error("{}: \"{}\" is not a token id", decoder_where, shown(key));
    AddedToken token = parse_added_token(value, fmt::format("{}.{}", decoder_where, id));
    token.id = checked_token_id(id, decoder_where);
    out.added_tokens.push_back(std::move(token));
  }
  return out;
}

}  // namespace foresail
