#include <charconv>

#include "base/error.h"
#include "text/json_fields.h"
#include "text/tokenizer_parts.h"

namespace foresail {
namespace {

constexpr int32_t kNumReserved = 256;   // ids after the ranks, named or not
constexpr size_t kMaxTokenBytes = 512;  // the longest known token has 128
constexpr uint64_t kMaxSplitWork = 1ull << 32;

constexpr std::string_view kKimiPattern =
    R"([\p{Han}]+)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

int base64_digit(char c) {
  if (c >= 'A' && c <= 'Z') return c - 'A';
  if (c >= 'a' && c <= 'z') return c - 'a' + 26;
  if (c >= '0' && c <= '9') return c - '0' + 52;
  return c == '+' ? 62 : c == '/' ? 63 : -1;
}

bool decode_base64(std::string_view text, std::string& out) {
  out.clear();
  if (text.size() % 4 != 0) return false;
  while (!text.empty() && text.back() == '=' && text.size() % 4 != 2) text.remove_suffix(1);
  uint32_t bits = 0;
  int num_bits = 0;
  for (const char c : text) {
    const int digit = base64_digit(c);
    if (digit < 0) return false;
    bits = bits << 6 | static_cast<uint32_t>(digit);
    num_bits += 6;
    if (num_bits < 8) continue;
    num_bits -= 8;
    out += static_cast<char>(bits >> num_bits & 0xFF);
  }
  return true;
}

// Each way to make a token out of two others is a merge, ranked by the token's own rank.
std::vector<Merge> merges_of(const TokenTable& tokens, const std::string& where) {
  std::vector<Merge> merges;
  uint64_t work = 0;
  for (int32_t id = 0; id < static_cast<int32_t>(tokens.vocab_size()); ++id) {
    const std::string_view bytes = tokens.bytes(id);
    work += bytes.size() * bytes.size();
    if (work > kMaxSplitWork) throw_model_error("{}: has too many long tokens", where);
    for (size_t cut = 1; cut < bytes.size(); ++cut) {
      const int32_t left = tokens.find(bytes.substr(0, cut));
      const int32_t right = left < 0 ? -1 : tokens.find(bytes.substr(cut));
      if (right >= 0) merges.push_back({left, right, id, static_cast<uint32_t>(id)});
    }
  }
  return merges;
}

}  // namespace

TokenizerParts parse_tiktoken_model(std::string_view text, const TokenizerConfig& config,
                                    const std::string& where) {
  TokenizerParts parts;
  std::vector<int32_t> ids;
  std::string bytes;
  for (size_t line_number = 1; !text.empty(); ++line_number) {
    const size_t line_end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, line_end);
    text.remove_prefix(std::min(line_end + 1, text.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty()) continue;
    const std::string line_where = fmt::format("{}:{}", where, line_number);
    const size_t space = line.find(' ');
    int64_t rank = 0;
    const bool split = space != std::string_view::npos;
    const std::string_view rank_text = split ? line.substr(space + 1) : std::string_view();
    const auto [end, error] =
        std::from_chars(rank_text.data(), rank_text.data() + rank_text.size(), rank);
    if (!split || error != std::errc() || end != rank_text.data() + rank_text.size() ||
        !decode_base64(line.substr(0, space), bytes) || bytes.empty())
      throw_model_error("{}: must be a base64 token, a space and a rank", line_where);
    if (bytes.size() > kMaxTokenBytes)
      throw_model_error("{}: the token is longer than {} bytes", line_where, kMaxTokenBytes);
    const int32_t id = checked_token_id(rank, line_where);
    if (!parts.tokens.add(id, bytes))
      throw_model_error("{}: rank {} appears twice", line_where, id);
    ids.push_back(id);
  }
  parts.tokens.index(ids);
  for (const int32_t id : ids)
    if (parts.tokens.find(parts.tokens.bytes(id)) != id)
      throw_model_error("{}: the token of rank {} appears twice", where, id);
  check_byte_tokens(parts.tokens, where);
  parts.merges = merges_of(parts.tokens, where);
  parts.takes_whole_pieces = true;
  parts.pre_tokenizer = PreTokenizer::isolating(kKimiPattern, where);

  const auto num_base = static_cast<int32_t>(parts.tokens.vocab_size());
  checked_token_id(num_base + kNumReserved, where);
  for (const AddedToken& token : config.added_tokens) {
    if (!parts.tokens.add(token.id, token.content))
      throw_model_error("{}: id {} of \"{}\" in tokenizer_config.json is taken", where, token.id,
                        shown(token.content));
    parts.added_tokens.push_back(token);
  }
  for (int32_t id = num_base; id < num_base + kNumReserved; ++id) {
    if (parts.tokens.has(id)) continue;
    const std::string name = fmt::format("<|reserved_token_{}|>", id);
    parts.tokens.add(id, name);
    parts.added_tokens.push_back({.id = id, .content = name, .special = true});
  }
  // Ranks are looked up in the raw text, so names are too.
  for (AddedToken& token : parts.added_tokens) token.normalized = false;
  return parts;
}

}  // namespace foresail
