// Conversations to prompts: the Jinja templates that come with a model, run in an own sandbox.
// A ChatTemplate is immutable after loading; any number of threads may render from one.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/jinja_limits.h"

namespace foresail {

struct RenderInput;  // render_input.h

// A run of the prompt. Text of the conversation (contents, names, tool JSON, ...) is never
// from_template. Look for control tokens inside from_template pieces only, then join neighbouring
// plain text before encoding it. The usual role names ("user", "tool", ...) count as template text.
struct TemplatePiece {
  bool from_template;
  std::string text;
};

class ChatTemplate {
 public:
  static Result<ChatTemplate> parse(std::string source, const jinja::Limits& limits = {});
  // chat_template.jinja, else `chat_template` of tokenizer_config.json (a string, or a list of
  // {name, template}), and additional_chat_templates/*.jinja. Throws Error{kModel} for files that
  // cannot be read; that there is no template, or none that is one, is a value.
  static Result<ChatTemplate> find(const std::filesystem::path& model_dir,
                                   const jinja::Limits& limits = {});
  // Throws for all of that.
  static ChatTemplate load(const std::filesystem::path& model_dir,
                           const jinja::Limits& limits = {});

  Result<std::string> render(const RenderInput& input) const;
  Result<std::vector<TemplatePiece>> render_pieces(const RenderInput& input) const;

  std::vector<std::string> names() const;  // "default", "tool_use", ...
  // What a render with these tools uses: "tool_use" if there is one and tools are given.
  Result<std::string> source(bool with_tools) const;
  const std::optional<std::string>& bos_token() const { return bos_token_; }
  const std::optional<std::string>& eos_token() const { return eos_token_; }

 private:
  struct Parsed;
  Result<const Parsed*> choose(bool with_tools) const;

  std::map<std::string, std::shared_ptr<const Parsed>> templates_;
  std::optional<std::string> bos_token_, eos_token_;
  jinja::Limits limits_;
};

}  // namespace foresail
