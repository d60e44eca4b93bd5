#include "engine/output_grammars.h"

#include <algorithm>

#include "grammar/compile.h"

namespace foresail {
namespace {

constexpr size_t kMostMatchers = 16;

Result<GrammarPtr> compile(const Request& request) {
  switch (request.output_format) {
    case OutputFormat::kJsonSchema:
      return compile_schema_text(request.output_pattern);
    case OutputFormat::kRegex:
      return compile_regex(request.output_pattern);
    default:
      return compile_json_object();
  }
}

const char* name_of(OutputFormat format) {
  return format == OutputFormat::kJsonSchema ? "json_schema"
         : format == OutputFormat::kRegex    ? "regex"
                                             : "json_object";
}

}  // namespace

std::optional<InputError> OutputGrammars::prepare(Request& request) const {
  if (request.output_format != OutputFormat::kText) {
    const std::string name = name_of(request.output_format);
    Result<GrammarPtr> grammar =
        cache_.get(name + request.output_pattern, [&] { return compile(request); });
    if (!grammar) return InputError{"'" + name + "' " + grammar.error().message, name};
    request.grammar = std::move(*grammar);
  }
  if (request.grammar == nullptr) return std::nullopt;
  if (tokenizer_ == nullptr)
    return InputError{"structured output needs a tokenizer, and the model folder has none", ""};
  // The text may have to end before the minimum.
  if (request.min_tokens > 0)
    return InputError{"'min_tokens' cannot be combined with structured output", "min_tokens"};
  std::call_once(trie_made_, [&] { trie_ = make_trie(); });
  const std::string limit = find_exceeded_limit(request.grammar);
  if (limit.empty()) return std::nullopt;
  return InputError{too_complex(limit), ""};
}

std::string OutputGrammars::too_complex(const std::string& limit) {
  return "the grammar of this request is too complex to be followed (" + limit +
         "): simplify its schema or regular expression";
}

bool OutputGrammars::knows(const GrammarPtr& grammar) const {
  return grammar == nullptr || known_limit(grammar);
}

std::optional<std::string> OutputGrammars::known_limit(const GrammarPtr& grammar) const {
  const std::lock_guard lock(trials_mutex_);
  for (const Trial& trial : trials_)
    if (trial.grammar.lock() == grammar) return trial.exceeded_limit;
  return std::nullopt;
}

std::string OutputGrammars::find_exceeded_limit(const GrammarPtr& grammar) const {
  if (auto known = known_limit(grammar)) return *std::move(known);
  GrammarMatcher matcher(grammar, trie_);
  matcher.allowed(matcher.start());
  const std::string limit = matcher.exhausted() ? matcher.limit() : std::string();
  const std::lock_guard lock(trials_mutex_);
  trials_.push_back({grammar, limit});
  if (trials_.size() > 2 * kMostMatchers) trials_.pop_front();
  return limit;
}

std::shared_ptr<const TokenTrie> OutputGrammars::make_trie() const {
  std::vector<std::string_view> bytes(vocab_size_);
  std::vector<int32_t> control_ids;
  for (int32_t id = 0; id < vocab_size_; ++id) {
    // Ends are no part of an output.
    if (std::find(end_ids_.begin(), end_ids_.end(), id) != end_ids_.end()) continue;
    bytes[id] = tokenizer_->token_bytes(id);
    if (tokenizer_->is_control(id)) control_ids.push_back(id);
  }
  return std::make_shared<const TokenTrie>(std::move(bytes), std::move(control_ids), vocab_size_);
}

OutputGuide OutputGrammars::guide(const Request& request) {
  if (request.grammar == nullptr) return {};
  std::vector<int32_t> ends = request.stop_token_ids;
  if (!request.ignore_eos) ends.insert(ends.end(), end_ids_.begin(), end_ids_.end());
  return {matcher(request.grammar), std::move(ends)};
}

std::shared_ptr<GrammarMatcher> OutputGrammars::matcher(const GrammarPtr& grammar) {
  const auto known = std::find_if(matchers_.begin(), matchers_.end(), [&](const auto& matcher) {
    return matcher->grammar() == grammar && !matcher->nearly_exhausted();
  });
  if (known != matchers_.end()) {
    std::rotate(matchers_.begin(), known, known + 1);
    return matchers_.front();
  }
  if (matchers_.size() == kMostMatchers) matchers_.pop_back();
  matchers_.insert(matchers_.begin(), std::make_shared<GrammarMatcher>(grammar, trie_));
  return matchers_.front();
}

}  // namespace foresail
