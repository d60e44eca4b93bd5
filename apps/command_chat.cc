#include <fmt/core.h>
#include <unistd.h>

#include <iostream>

#include "apps/model_flags.h"
#include "apps/sampling_flags.h"
#include "apps/token_printer.h"
#include "base/error.h"
#include "engine/validate_request.h"
#include "text/chat_prompt.h"
#include "text/render_input.h"

namespace foresail {
namespace {

struct ChatFlags {
  ModelFlags model;
  Request generation;
  std::string system;
};

void chat(ChatFlags& flags) {
  const auto tokenizer = load_tokenizer(flags.model.options.model_path);
  const ChatTemplate chat_template = ChatTemplate::load(flags.model.options.model_path);
  const ModelConfig config = read_model_config(flags.model.options.model_path);
  const auto valid = validate_request(flags.generation, tokenizer.get(), config.vocab_size);
  if (!valid) throw_error(ErrorCode::kUsage, "{}", valid.error().message);
  const auto model = load_model(flags.model);
  TextGenerator generator(*model, tokenizer.get());
  const TokenPrinter printer;
  RenderInput input;
  input.add_generation_prompt = true;
  if (!flags.system.empty())
    input.messages.push_back({{"role", "system"}, {"content", flags.system}});
  const bool prompts = isatty(STDIN_FILENO) != 0;
  if (prompts) fmt::print(stderr, "type a message; an empty line or end of input leaves\n");
  for (std::string line;;) {
    if (prompts) fmt::print(stderr, "> ");
    if (!std::getline(std::cin, line) || line.empty()) return;
    input.messages.push_back({{"role", "user"}, {"content", line}});
    const auto ids = chat_prompt(chat_template, *tokenizer, input);
    if (!ids) throw_error(ErrorCode::kUsage, "template: {}", ids.error().message);
    std::string reply;
    generator.generate(*ids, flags.generation, [&](const Event& event) {
      reply += event.text;
      printer(event);
    });
    fmt::print("\n");
    input.messages.push_back({{"role", "assistant"}, {"content", reply}});
  }
}

}  // namespace

void add_chat_command(Command& app) {
  auto flags = std::make_shared<ChatFlags>();
  Command* command = app.add_subcommand("chat", "Talk to a model, one line at a time");
  add_model_flags(*command, flags->model, true);
  add_sampling_flags(*command, flags->generation);
  command->add_option("--system", flags->system, "system message");
  command->callback([flags, command] {
    add_model_defaults(*command, flags->model.options.model_path, flags->generation.sampling);
    chat(*flags);
  });
}

}  // namespace foresail
