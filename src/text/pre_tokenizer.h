// Cuts plain text into the pieces that byte-pair merges never cross.
// Immutable after parsing; any thread may split with it at once.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_types.h"
#include "text/pattern.h"

namespace foresail {

class PreTokenizer {
 public:
  using OnPiece = std::function<void(std::string_view)>;

  // The `pre_tokenizer` value of tokenizer.json; `where` names it in errors. A chain of Split,
  // Digits and ByteLevel; anything else is Error{kModel} with its name.
  static PreTokenizer parse(const Json& json, const std::string& where);
  // Whether the chain ends in ByteLevel, so that the vocabulary spells bytes.
  bool is_byte_level() const { return byte_level_; }
  // One Split that isolates matches, as tiktoken does.
  static PreTokenizer isolating(std::string_view pattern, const std::string& where);

  // Precondition: valid UTF-8. Pieces live until on_piece returns. Returns the characters looked
  // at.
  uint64_t split(std::string_view text, const OnPiece& on_piece) const;

 private:
  enum class Behavior { kIsolated, kRemoved, kMergedWithPrevious, kMergedWithNext };
  struct Step {
    Pattern pattern;
    Behavior behavior = Behavior::kIsolated;
    bool invert = false;
    bool add_prefix_space = false;  // to every piece, before the pattern
    bool has_pattern = true;
  };

  static std::optional<Behavior> behavior_of(std::string_view name);
  void parse_step(const Json& json, const std::string& where, int depth);
  void add_pattern(std::string_view pattern, Behavior behavior, bool invert,
                   const std::string& where);
  uint64_t run(size_t step_index, std::string_view text, const OnPiece& on_piece) const;
  uint64_t merge(size_t step_index, std::string_view text, const OnPiece& on_piece) const;

  std::vector<Step> steps_;
  bool byte_level_ = false;  // set by the last step of a chain; no step may follow it
};

}  // namespace foresail
