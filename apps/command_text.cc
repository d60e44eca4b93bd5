#include <fmt/format.h>

#include <cstdio>

#include "apps/command.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "text/chat_template.h"
#include "text/render_input.h"
#include "text/tokenizer.h"

namespace foresail {
namespace {

constexpr uint64_t kMaxTextBytes = 256ull << 20;

struct TextFlags {
  std::string model, text, file, ids, messages, tools, template_file;
  std::vector<std::string> kwargs;
  bool has_text = false, json = false, bos = true, allow_control = false, skip_special = false,
       generation_prompt = false;
};

std::string input_text(const TextFlags& flags) {
  if (flags.has_text) return flags.text;
  return read_input(flags.file.empty() ? "-" : flags.file, kMaxTextBytes);
}

OrderedJson read_json(const std::string& path) {
  const auto parsed = parse_ordered_json(read_input(path, kMaxTextBytes));
  if (!parsed) throw_error(ErrorCode::kUsage, "{}: {}", path, parsed.error().message);
  return *parsed;
}

void tokenize(const TextFlags& flags) {
  const auto tokenizer = Tokenizer::load(flags.model);
  const std::vector<int32_t> ids = tokenizer->encode(
      input_text(flags), {.add_bos = flags.bos, .allow_control = flags.allow_control});
  if (!flags.json) {
    fmt::print("{}\n", fmt::join(ids, ","));
    return;
  }
  Json pieces = Json::array();
  for (const int32_t id : ids) pieces.push_back(std::string(tokenizer->decode({&id, 1}, false)));
  fmt::print("{}\n", json_text(Json{{"count", ids.size()}, {"tokens", ids}, {"pieces", pieces}}));
}

void detokenize(const TextFlags& flags) {
  const auto tokenizer = Tokenizer::load(flags.model);
  const auto parsed = parse_json("[" + flags.ids + "]");
  if (!parsed)
    throw_error(ErrorCode::kUsage, "\"{}\" is not a list of token ids like 1,2,3", flags.ids);
  std::vector<int32_t> ids;
  for (const Json& id : *parsed) {
    if (!id.is_number_integer() || id < 0 || id > INT32_MAX)
      throw_error(ErrorCode::kUsage, "{} is not a token id", json_text(id));
    if (id.get<int64_t>() >= static_cast<int64_t>(tokenizer->vocab_size()))
      throw_error(ErrorCode::kUsage, "token id {} is outside the tokenizer's {} ids", json_text(id),
                  tokenizer->vocab_size());
    ids.push_back(id.get<int32_t>());
  }
  const std::string text = tokenizer->decode(ids, flags.skip_special);
  fmt::print("{}\n", flags.json ? json_text(Json{{"prompt", text}}) : text);
}

// key=value; the value is JSON where it parses, otherwise text.
void add_kwarg(OrderedJson& extra, const std::string& item) {
  const size_t equals = item.find('=');
  if (equals == 0 || equals == std::string::npos)
    throw_error(ErrorCode::kUsage, "--kwarg {} must look like name=value", item);
  const std::string value = item.substr(equals + 1);
  const auto parsed = parse_ordered_json(value);
  extra[item.substr(0, equals)] = parsed ? *parsed : OrderedJson(value);
}

ChatTemplate load_template(const TextFlags& flags) {
  if (flags.model.empty() == flags.template_file.empty())
    throw_error(ErrorCode::kUsage, "give either MODEL or --template-file FILE");
  if (!flags.model.empty()) return ChatTemplate::load(flags.model);
  auto parsed = ChatTemplate::parse(read_input(flags.template_file, kMaxTextBytes));
  if (!parsed) throw_model_error("{}: {}", flags.template_file, parsed.error().message);
  return std::move(*parsed);
}

void render(const TextFlags& flags) {
  RenderInput input;
  input.messages = read_json(flags.messages);
  if (input.messages.is_object() && input.messages.contains("messages"))
    input.messages = OrderedJson(input.messages["messages"]);
  if (!flags.tools.empty()) input.tools = read_json(flags.tools);
  input.add_generation_prompt = flags.generation_prompt;
  for (const std::string& item : flags.kwargs) add_kwarg(input.extra, item);
  const ChatTemplate chat_template = load_template(flags);
  const auto pieces = chat_template.render_pieces(input);
  if (!pieces) throw_error(ErrorCode::kUsage, "template: {}", pieces.error().message);
  std::string prompt;
  Json list = Json::array();
  for (const TemplatePiece& piece : *pieces) {
    prompt += piece.text;
    list.push_back({{"from_template", piece.from_template}, {"text", piece.text}});
  }
  if (flags.json)
    fmt::print("{}\n", json_text(Json{{"prompt", prompt}, {"pieces", list}}));
  else
    fmt::print("{}", prompt);
}

}  // namespace

void add_text_commands(Command& app) {
  auto flags = std::make_shared<TextFlags>();
  Command* command = app.add_subcommand("tokenize", "Text to token ids");
  command->add_option("model,-m,--model-path,--model", flags->model, "model folder")->required();
  command->add_option("-p,--prompt,--text", flags->text, "the text; default: standard input");
  command->add_option("--text-file,--prompt-file", flags->file, "read the text from a file")
      ->excludes("--text");
  command->add_flag("--bos,!--no-bos", flags->bos,
                    "the begin token comes first where the model asks for one, as in a prompt; "
                    "--no-bos leaves it out");
  command->add_flag("--allow-control", flags->allow_control,
                    "control tokens spelled in the text become their ids");
  command->add_flag("--json", flags->json, "print one JSON object");
  command->callback([flags, command] {
    flags->has_text = command->count("--text") > 0;
    tokenize(*flags);
  });

  command = app.add_subcommand("detokenize", "Token ids to text");
  command->add_option("model,-m,--model-path,--model", flags->model, "model folder")->required();
  command->add_option("--ids,ids", flags->ids, "token ids, \"1,2,3\"")->required();
  command->add_flag("--skip-special", flags->skip_special, "leave special tokens out");
  command->add_flag("--json", flags->json, "print one JSON object");
  command->callback([flags] { detokenize(*flags); });

  command = app.add_subcommand("template", "Render a conversation through a chat template");
  command->add_option("model,-m,--model-path,--model", flags->model, "model folder");
  command->add_option("--template-file", flags->template_file, "a Jinja file instead of a model");
  command->add_option("--messages", flags->messages, "JSON file with the messages")->required();
  command->add_option("--tools", flags->tools, "JSON file with the tools");
  command->add_option("--kwarg", flags->kwargs,
                      "further template variable, name=value, repeatable");
  command->add_flag("--add-generation-prompt", flags->generation_prompt,
                    "end where the assistant begins");
  command->add_flag("--json", flags->json, "print the prompt and its pieces as JSON");
  command->callback([flags] { render(*flags); });
}

}  // namespace foresail
