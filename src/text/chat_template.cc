#include "text/chat_template.h"

#include <fmt/core.h>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/utf8.h"
#include "text/jinja_interpreter.h"
#include "text/jinja_json_import.h"
#include "text/jinja_parser.h"
#include "text/render_input.h"

namespace foresail {
namespace {

constexpr uint64_t kMaxTemplateBytes = 4ull << 20;
constexpr uint64_t kMaxConfigBytes = 64ull << 20;
constexpr const char* kDefault = "default";
constexpr const char* kToolUse = "tool_use";

// A file of {"chat_template": ...}; null when it is absent.
Json read_config(const std::filesystem::path& path) {
  if (!is_present(path)) return {};
  auto json = parse_json(read_text_file(path, kMaxConfigBytes));
  if (!json) throw_model_error("{}: {}", path.string(), json.error().message);
  if (!json->is_object()) throw_model_error("{}: must be a JSON object", path.string());
  return *std::move(json);
}

// "<s>" or {"content": "<s>", ...}.
std::optional<std::string> token_text(const Json& config, const char* key) {
  if (!config.is_object() || !config.contains(key)) return std::nullopt;
  const Json& token = config[key];
  if (token.is_string()) return token.get<std::string>();
  if (token.is_object() && token.contains("content") && token["content"].is_string()) {
    return token["content"].get<std::string>();
  }
  return std::nullopt;
}

// The templates of a `chat_template` entry by name.
Result<std::map<std::string, std::string>> sources_of(const std::filesystem::path& path,
                                                      const Json& config) {
  std::map<std::string, std::string> out;
  if (!config.is_object() || !config.contains("chat_template")) return out;
  const Json& entry = config["chat_template"];
  if (entry.is_null()) return out;
  if (entry.is_string()) {
    out[kDefault] = entry.get<std::string>();
    return out;
  }
  const auto is_named = [](const Json& item) {
    return item.is_object() && item.contains("name") && item["name"].is_string() &&
           item.contains("template") && item["template"].is_string();
  };
  if (!entry.is_array())
    return input_error(fmt::format("{}: chat_template must be a string or a list", path.string()));
  for (const Json& item : entry) {
    if (!is_named(item))
      return input_error(
          fmt::format("{}: every chat_template must have a name and a template", path.string()));
    out[item["name"].get<std::string>()] = item["template"].get<std::string>();
  }
  return out;
}

std::string located(const std::string& name, const jinja::JinjaError& error) {
  const std::string which =
      name == kDefault ? "chat template" : fmt::format("chat template '{}'", name);
  if (error.line == 0) return fmt::format("{}: {}", which, error.what());
  return fmt::format("{} line {}: {}", which, error.line, error.what());
}

}  // namespace

struct ChatTemplate::Parsed {
  std::string name;
  std::string source;
  jinja::Body body;

  static Result<std::shared_ptr<const Parsed>> make(std::string name, std::string source,
                                                    const jinja::Limits& limits) {
    if (!is_valid_utf8(source)) return input_error("chat template: the source is not valid UTF-8");
    auto out = std::make_shared<Parsed>();
    try {
      out->body = jinja::parse_template(source, limits);
    } catch (const jinja::JinjaError& error) {
      return input_error(located(name, error));
    }
    out->name = std::move(name);
    out->source = std::move(source);
    return out;
  }
};

Result<ChatTemplate> ChatTemplate::parse(std::string source, const jinja::Limits& limits) {
  auto parsed = Parsed::make(kDefault, std::move(source), limits);
  if (!parsed) return tl::unexpected(parsed.error());
  ChatTemplate out;
  out.limits_ = limits;
  out.templates_[kDefault] = *std::move(parsed);
  return out;
}

ChatTemplate ChatTemplate::load(const std::filesystem::path& model_dir,
                                const jinja::Limits& limits) {
  auto found = find(model_dir, limits);
  if (!found) throw_model_error("{}", found.error().message);
  return *std::move(found);
}

Result<ChatTemplate> ChatTemplate::find(const std::filesystem::path& model_dir,
                                        const jinja::Limits& limits) {
  const auto config_path = model_dir / "tokenizer_config.json";
  const Json config = read_config(config_path);
  auto named = sources_of(config_path, config);
  if (named && named->empty()) {
    const auto old_path = model_dir / "chat_template.json";
    named = sources_of(old_path, read_config(old_path));
  }
  if (!named) return tl::unexpected(named.error());
  std::map<std::string, std::string> sources = *std::move(named);
  const auto main_path = model_dir / "chat_template.jinja";
  const auto extra_dir = model_dir / "additional_chat_templates";
  if (is_present(main_path)) sources = {{kDefault, read_text_file(main_path, kMaxTemplateBytes)}};
  if (is_present(extra_dir)) {
    std::error_code error;
    for (std::filesystem::directory_iterator entry(extra_dir, error), end; !error && entry != end;
         entry.increment(error))
      if (const auto& path = entry->path(); path.extension() == ".jinja")
        sources[path.stem().string()] = read_text_file(path, kMaxTemplateBytes);
    if (error) throw_model_error("cannot read {}: {}", extra_dir.string(), error.message());
  }
  if (sources.empty()) {
    return input_error(fmt::format(
        "{}: no chat template (chat_template.jinja or chat_template in tokenizer_config.json)",
        model_dir.string()));
  }
  ChatTemplate out;
  out.limits_ = limits;
  for (auto& [name, source] : sources) {
    auto parsed = Parsed::make(name, std::move(source), limits);
    if (!parsed)
      return input_error(fmt::format("{}: {}", model_dir.string(), parsed.error().message));
    out.templates_[name] = *std::move(parsed);
  }
  out.bos_token_ = token_text(config, "bos_token");
  out.eos_token_ = token_text(config, "eos_token");
  return out;
}

std::vector<std::string> ChatTemplate::names() const {
  std::vector<std::string> out;
  for (const auto& [name, parsed] : templates_) out.push_back(name);
  return out;
}

Result<const ChatTemplate::Parsed*> ChatTemplate::choose(bool with_tools) const {
  auto it = with_tools ? templates_.find(kToolUse) : templates_.end();
  if (it == templates_.end()) it = templates_.find(kDefault);
  if (it == templates_.end()) return input_error("the model has no chat template named 'default'");
  return it->second.get();
}

Result<std::string> ChatTemplate::source(bool with_tools) const {
  return choose(with_tools).map([](const Parsed* parsed) { return parsed->source; });
}

Result<std::vector<TemplatePiece>> ChatTemplate::render_pieces(const RenderInput& input) const {
  const auto parsed = choose(!input.tools.is_null());
  if (!parsed) return tl::unexpected(parsed.error());
  if (!input.extra.is_object()) return input_error("extra template variables must be an object");
  try {
    jinja::Interpreter interpreter(limits_, input.now);
    jinja::Heap& heap = interpreter.heap();
    jinja::Scope context;
    const auto set_token = [&](const char* name, const auto& given, const auto& own) {
      const auto& token = given ? given : own;
      if (token) context.set(name, jinja::string_value(*token));
    };
    set_token("bos_token", input.bos_token, bos_token_);
    set_token("eos_token", input.eos_token, eos_token_);
    context.set("messages", jinja::import_messages(heap, input.messages));
    context.set("tools", jinja::import_json(heap, input.tools));
    context.set("documents", jinja::import_json(heap, input.documents));
    context.set("add_generation_prompt", jinja::bool_value(input.add_generation_prompt));
    for (const auto& [name, value] : input.extra.items()) {
      context.set(name, jinja::import_json(heap, value));
    }
    const jinja::Text text = interpreter.render((*parsed)->body, context);
    std::vector<TemplatePiece> pieces;
    size_t begin = 0;
    for (const auto& [end, tainted] : text.runs()) {
      pieces.push_back({!tainted, text.bytes().substr(begin, end - begin)});
      begin = end;
    }
    return pieces;
  } catch (const jinja::JinjaError& error) {
    return input_error(located((*parsed)->name, error), "messages");
  }
}

Result<std::string> ChatTemplate::render(const RenderInput& input) const {
  return render_pieces(input).map([](const std::vector<TemplatePiece>& pieces) {
    std::string out;
    for (const TemplatePiece& piece : pieces) out += piece.text;
    return out;
  });
}

}  // namespace foresail
