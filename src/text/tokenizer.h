// Text <-> token ids of one model. The engine owns one; every const member may be called from any
// thread at once.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/tokenizer_parts.h"

namespace foresail {

struct EncodeOptions {
  bool add_bos = false;        // put bos first, if the model's files ask for one
  bool allow_control = false;  // control tokens spelled in the text become their ids
};

// A prompt is a list of these: what a template means as control is an id, all else is text.
struct PromptPiece {
  int32_t control_id = -1;  // >= 0: this id, and no text
  std::string text;
};

class Tokenizer {
 public:
  // Reads tokenizer.json or else tiktoken.model, and tokenizer_config.json if there is one.
  // Throws Error{kModel} with the file and the reason.
  static std::unique_ptr<Tokenizer> load(const std::filesystem::path& model_dir);
  // The same from the content of the files; an empty config means there is none.
  static std::unique_ptr<Tokenizer> from_json(std::string_view tokenizer_json,
                                              std::string_view config_json);
  static std::unique_ptr<Tokenizer> from_tiktoken(std::string_view tiktoken_model,
                                                  std::string_view config_json);

  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // Invalid UTF-8 in a text is read as U+FFFD.
  std::vector<int32_t> encode(std::string_view text, const EncodeOptions& options = {}) const;
  // Text pieces never become control ids. Neighbouring texts are one text, as if never cut.
  std::vector<int32_t> encode_pieces(std::span<const PromptPiece> pieces) const;

  // Text that may hold control tokens (a template's own) as pieces.
  std::vector<PromptPiece> split_control(std::string_view text) const;

  // Broken UTF-8 becomes U+FFFD; ids without a name are empty.
  std::string decode(std::span<const int32_t> ids, bool skip_special) const;
  std::string_view token_bytes(int32_t id) const { return parts_.tokens.bytes(id); }
  bool is_special(int32_t id) const { return has_flag(id, kSpecial); }
  bool is_control(int32_t id) const { return has_flag(id, kControl); }  // any added token
  std::optional<int32_t> find_control(std::string_view name) const;

  std::optional<int32_t> bos_id() const { return bos_id_; }
  std::optional<int32_t> eos_id() const { return eos_id_; }
  bool adds_bos() const { return !parts_.prefix_ids.empty(); }
  size_t vocab_size() const { return parts_.tokens.vocab_size(); }  // highest id + 1

 private:
  static constexpr uint8_t kControl = 1, kSpecial = 2;

  Tokenizer(TokenizerParts parts, const TokenizerConfig& config);
  bool has_flag(int32_t id, uint8_t flag) const {
    return id >= 0 && static_cast<size_t>(id) < flags_.size() && (flags_[id] & flag) != 0;
  }
  void encode_valid(std::string_view text, bool allow_control, std::vector<int32_t>& out) const;
  void encode_normalized(std::string_view text, bool allow_control,
                         std::vector<int32_t>& out) const;
  void encode_plain(std::string_view text, std::vector<int32_t>& out) const;

  TokenizerParts parts_;
  BytePairEncoder encoder_;  // refers to parts_.tokens
  AddedTokenMatcher raw_matcher_, normalized_matcher_;
  std::vector<uint8_t> flags_;  // [vocab_size]
  std::unordered_map<std::string, int32_t> control_ids_;
  std::optional<int32_t> bos_id_, eos_id_;
};

}  // namespace foresail
