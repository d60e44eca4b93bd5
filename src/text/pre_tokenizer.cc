#include "text/pre_tokenizer.h"

#include "base/error.h"
#include "base/json.h"
#include "text/json_fields.h"

namespace foresail {
namespace {

constexpr int kMaxDepth = 8;
constexpr size_t kMaxSteps = 32;

constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

Pattern compile(const Result<PatternNode>& tree, const std::string& where) {
  if (!tree) throw_model_error("{}: unsupported pattern: {}", where, tree.error().message);
  Result<Pattern> pattern = Pattern::compile(*tree);
  if (!pattern) throw_model_error("{}: unsupported pattern: {}", where, pattern.error().message);
  return *std::move(pattern);
}

}  // namespace

PreTokenizer PreTokenizer::parse(const Json& json, const std::string& where) {
  PreTokenizer out;
  if (!json.is_null()) out.parse_step(json, where, 0);
  return out;
}

PreTokenizer PreTokenizer::isolating(std::string_view pattern, const std::string& where) {
  PreTokenizer out;
  out.add_pattern(pattern, Behavior::kIsolated, false, where);
  out.byte_level_ = true;
  return out;
}

void PreTokenizer::add_pattern(std::string_view pattern, Behavior behavior, bool invert,
                               const std::string& where) {
  steps_.push_back(
      {.pattern = compile(parse_pattern(pattern), where), .behavior = behavior, .invert = invert});
}

std::optional<PreTokenizer::Behavior> PreTokenizer::behavior_of(std::string_view name) {
  if (name == "Isolated") return Behavior::kIsolated;
  if (name == "Removed") return Behavior::kRemoved;
  if (name == "MergedWithPrevious") return Behavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return Behavior::kMergedWithNext;
  return std::nullopt;
}

void PreTokenizer::parse_step(const Json& json, const std::string& where, int depth) {
  const JsonFields step(json, where);
  const std::string_view type = step.text("type");
  if (steps_.size() >= kMaxSteps || depth > kMaxDepth)
    throw_model_error("{}: more than {} steps", where, kMaxSteps);

  if (byte_level_) throw_model_error("{}: a step after ByteLevel is not supported", where);

  if (type == "Sequence") {
    const Json& parts = step.array("pretokenizers");
    for (size_t i = 0; i < parts.size(); ++i)
      parse_step(parts[i], fmt::format("{}[{}]", where, i), depth + 1);
  } else if (type == "Digits") {
    const bool individual = step.flag("individual_digits", false);
    add_pattern(individual ? R"(\p{N})" : R"(\p{N}+)", Behavior::kIsolated, false, where);
  } else if (type == "ByteLevel") {
    byte_level_ = true;
    if (step.flag("add_prefix_space", true))
      steps_.push_back({.add_prefix_space = true, .has_pattern = false});
    if (step.flag("use_regex", true)) add_pattern(kGpt2Pattern, Behavior::kIsolated, false, where);
  } else if (type == "Split") {
    const std::string_view name = step.text("behavior");
    const std::optional<Behavior> behavior = behavior_of(name);
    if (!behavior) throw_model_error("{}: unsupported Split behavior \"{}\"", where, shown(name));
    const bool invert = step.flag("invert", false);
    const JsonFields pattern(step.object("pattern"), step.where("pattern"));
    if (pattern.has("String"))
      steps_.push_back({.pattern = compile(literal_pattern(pattern.text("String")), where),
                        .behavior = *behavior,
                        .invert = invert});
    else
      add_pattern(pattern.text("Regex"), *behavior, invert, where);
  } else {
    throw_model_error("{}: unsupported pre-tokenizer \"{}\"", where, shown(type));
  }
}

uint64_t PreTokenizer::split(std::string_view text, const OnPiece& on_piece) const {
  return run(0, text, on_piece);
}

uint64_t PreTokenizer::run(size_t step_index, std::string_view text,
                           const OnPiece& on_piece) const {
  if (text.empty()) return 0;
  if (step_index == steps_.size()) {
    on_piece(text);
    return 0;
  }
  const Step& step = steps_[step_index];
  if (step.add_prefix_space && text[0] != ' ') {
    std::string prefixed(1, ' ');
    prefixed += text;
    return run(step_index + 1, prefixed, on_piece);
  }
  if (!step.has_pattern) return run(step_index + 1, text, on_piece);
  if (step.behavior != Behavior::kIsolated && step.behavior != Behavior::kRemoved)
    return merge(step_index, text, on_piece);

  uint64_t inner_work = 0;
  const uint64_t work = step.pattern.split(text, [&](std::string_view piece, bool is_match) {
    if (step.behavior == Behavior::kRemoved && is_match != step.invert) return;
    inner_work += run(step_index + 1, piece, on_piece);
  });
  return work + inner_work;
}

// A match joins the gap before it, or the gap after it.
uint64_t PreTokenizer::merge(size_t step_index, std::string_view text,
                             const OnPiece& on_piece) const {
  const Step& step = steps_[step_index];
  const bool joins_previous = step.behavior == Behavior::kMergedWithPrevious;
  uint64_t inner_work = 0;
  size_t open_begin = 0, position = 0;  // the piece being joined is [open_begin, position)
  bool previous_match = false;
  const auto close = [&] {
    inner_work += run(step_index + 1, text.substr(open_begin, position - open_begin), on_piece);
    open_begin = position;
  };
  const uint64_t work = step.pattern.split(text, [&](std::string_view piece, bool matched) {
    const bool is_match = matched != step.invert;
    const bool joins = joins_previous ? is_match && !previous_match : !is_match && previous_match;
    if (!joins && position > open_begin) close();
    position += piece.size();
    previous_match = is_match;
  });
  close();
  return work + inner_work;
}

}  // namespace foresail
