#include "text/tokenizer.h"

#include "base/error.h"
#include "base/file.h"
#include "base/utf8.h"
#include "text/json_fields.h"

namespace foresail {
namespace {

constexpr uint64_t kMaxFileBytes = 64ull << 20;
constexpr const char* kJsonName = "tokenizer.json";
constexpr const char* kTiktokenName = "tiktoken.model";
constexpr const char* kConfigName = "tokenizer_config.json";

// Tokenizer files that are not read, and what a user can do.
struct ForeignTokenizer {
  const char* name;
  const char* advice;
};
constexpr ForeignTokenizer kForeignTokenizers[] = {
    {"tekken.json", "is Mistral's own format: add the tokenizer.json of the Hugging Face version"},
    {"tokenizer.model",
     "is a SentencePiece model, which is not supported: only token ids can go in and out"},
    {"vocab.json", "is half of an older format: save it with transformers as tokenizer.json"},
};

// The tokens that are matched in normalized text, or those that are matched before.
AddedTokenMatcher matcher_of(const TokenizerParts& parts, bool normalized) {
  std::vector<AddedToken> tokens;
  for (AddedToken token : parts.added_tokens) {
    if (token.normalized != normalized) continue;
    if (normalized) token.content = parts.normalizer.apply(token.content);
    tokens.push_back(std::move(token));
  }
  return AddedTokenMatcher(tokens);
}

}  // namespace

std::unique_ptr<Tokenizer> Tokenizer::load(const std::filesystem::path& model_dir) {
  std::error_code error;
  if (!is_present(model_dir)) throw_model_error("{}: no such folder", model_dir.string());
  if (!std::filesystem::is_directory(model_dir, error))
    throw_model_error("{}: {}", model_dir.string(), error ? error.message() : "is not a folder");
  const auto read = [&](const char* name) {
    return read_text_file(model_dir / name, kMaxFileBytes);
  };
  const auto path_of = [&](const char* name) { return (model_dir / name).string(); };
  const auto has = [&](const char* name) { return is_present(model_dir / name); };

  const TokenizerConfig config = TokenizerConfig::parse(
      has(kConfigName) ? read(kConfigName) : std::string(), path_of(kConfigName));
  TokenizerParts parts;
  if (has(kJsonName)) {
    parts = parse_tokenizer_json(read(kJsonName), path_of(kJsonName));
  } else if (has(kTiktokenName)) {
    parts = parse_tiktoken_model(read(kTiktokenName), config, path_of(kTiktokenName));
  } else {
    for (const ForeignTokenizer& foreign : kForeignTokenizers)
      if (has(foreign.name))
        throw_model_error("{}: {} is missing, and {} {}", model_dir.string(), kJsonName,
                          foreign.name, foreign.advice);
    throw_model_error("{}: has neither {} nor {}", model_dir.string(), kJsonName, kTiktokenName);
  }
  return std::unique_ptr<Tokenizer>(new Tokenizer(std::move(parts), config));
}

std::unique_ptr<Tokenizer> Tokenizer::from_json(std::string_view tokenizer_json,
                                                std::string_view config_json) {
  const TokenizerConfig config = TokenizerConfig::parse(config_json, kConfigName);
  return std::unique_ptr<Tokenizer>(
      new Tokenizer(parse_tokenizer_json(tokenizer_json, kJsonName), config));
}

std::unique_ptr<Tokenizer> Tokenizer::from_tiktoken(std::string_view tiktoken_model,
                                                    std::string_view config_json) {
  const TokenizerConfig config = TokenizerConfig::parse(config_json, kConfigName);
  return std::unique_ptr<Tokenizer>(
      new Tokenizer(parse_tiktoken_model(tiktoken_model, config, kTiktokenName), config));
}

Tokenizer::Tokenizer(TokenizerParts parts, const TokenizerConfig& config)
    : parts_(std::move(parts)),
      encoder_(parts_.tokens, parts_.merges, parts_.takes_whole_pieces),
      raw_matcher_(matcher_of(parts_, false)),
      normalized_matcher_(matcher_of(parts_, true)),
      flags_(parts_.tokens.vocab_size()) {
  parts_.merges = {};  // the encoder has its own form of them
  for (const AddedToken& token : parts_.added_tokens) {
    flags_[token.id] = static_cast<uint8_t>(kControl | (token.special ? kSpecial : 0));
    control_ids_.emplace(token.content, token.id);
  }
  const auto named = [&](const std::optional<std::string>& name,
                         const char* key) -> std::optional<int32_t> {
    if (!name || name->empty()) return std::nullopt;
    const auto id = find_control(*name);
    if (!id)
      throw_model_error("{}: {}: \"{}\" is not among the added tokens", kConfigName, key,
                        shown(*name));
    return id;
  };
  bos_id_ = named(config.bos_token, "bos_token");
  eos_id_ = named(config.eos_token, "eos_token");
  // The config overrules the post-processor, which DeepSeek's files leave empty.
  if (config.add_bos_token && !*config.add_bos_token) parts_.prefix_ids.clear();
  if (config.add_bos_token && *config.add_bos_token) {
    if (!bos_id_)
      throw_model_error("{}: add_bos_token is true, but bos_token is missing", kConfigName);
    parts_.prefix_ids = {*bos_id_};
  }
}

std::optional<int32_t> Tokenizer::find_control(std::string_view name) const {
  const auto found = control_ids_.find(std::string(name));
  if (found == control_ids_.end()) return std::nullopt;
  return found->second;
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  std::vector<int32_t> out;
  if (options.add_bos) out = parts_.prefix_ids;
  if (is_valid_utf8(text))
    encode_valid(text, options.allow_control, out);
  else
    encode_valid(replace_invalid_utf8(text), options.allow_control, out);
  return out;
}

std::vector<int32_t> Tokenizer::encode_pieces(std::span<const PromptPiece> pieces) const {
  std::vector<int32_t> out;
  std::string text;
  const auto flush = [&] {
    const std::vector<int32_t> ids = encode(text);
    out.insert(out.end(), ids.begin(), ids.end());
    text.clear();
  };
  for (const PromptPiece& piece : pieces) {
    if (piece.control_id < 0) {
      text += piece.text;
      continue;
    }
    flush();
    out.push_back(piece.control_id);
  }
  flush();
  return out;
}

std::vector<PromptPiece> Tokenizer::split_control(std::string_view text) const {
  std::vector<PromptPiece> pieces;
  const auto control = [&](int32_t id) { pieces.push_back({id, {}}); };
  const auto plain = [&](std::string_view part) { pieces.push_back({-1, std::string(part)}); };
  const auto rest = [&](std::string_view part) {
    if (normalized_matcher_.empty())
      plain(part);
    else
      normalized_matcher_.split(part, plain, control);
  };
  if (raw_matcher_.empty())
    rest(text);
  else
    raw_matcher_.split(text, rest, control);
  return pieces;
}

void Tokenizer::encode_valid(std::string_view text, bool allow_control,
                             std::vector<int32_t>& out) const {
  const auto rest = [&](std::string_view part) {
    if (parts_.normalizer.changes_text())
      encode_normalized(parts_.normalizer.apply(part), allow_control, out);
    else
      encode_normalized(part, allow_control, out);
  };
  if (allow_control && !raw_matcher_.empty())
    raw_matcher_.split(text, rest, [&](int32_t id) { out.push_back(id); });
  else
    rest(text);
}

void Tokenizer::encode_normalized(std::string_view text, bool allow_control,
                                  std::vector<int32_t>& out) const {
  const auto plain = [&](std::string_view part) { encode_plain(part, out); };
  if (allow_control && !normalized_matcher_.empty())
    normalized_matcher_.split(text, plain, [&](int32_t id) { out.push_back(id); });
  else
    plain(text);
}

void Tokenizer::encode_plain(std::string_view text, std::vector<int32_t>& out) const {
  parts_.pre_tokenizer.split(text, [&](std::string_view piece) { encoder_.encode(piece, out); });
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  std::string bytes;
  for (const int32_t id : ids)
    if (!skip_special || !is_special(id)) bytes += token_bytes(id);
  return replace_invalid_utf8(bytes);
}

}  // namespace foresail
