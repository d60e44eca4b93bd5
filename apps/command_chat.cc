#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <numeric>
#include <optional>

#include "apps/engine_flags.h"
#include "apps/generation_stats.h"
#include "apps/sampling_flags.h"
#include "apps/standard_error.h"
#include "apps/stop_key.h"
#include "apps/token_printer.h"
#include "base/error.h"
#include "base/utf8.h"
#include "engine/validate_request.h"
#include "text/chat_prompt.h"
#include "text/render_input.h"

namespace foresail {
namespace {

struct ChatFlags {
  EngineFlags engine;
  Request generation;
  std::string system;
  bool stats = false;
};

// What was said so far, as much of it as the context has room for.
class Conversation {
 public:
  explicit Conversation(const std::string& system) {
    input_.add_generation_prompt = true;
    if (!system.empty()) input_.messages.push_back({{"role", "system"}, {"content", system}});
    first_turn_ = input_.messages.size();
  }

  void say(const char* role, const std::string& text) {
    input_.messages.push_back({{"role", role}, {"content", text}});
  }
  bool has_turns() const { return input_.messages.size() > first_turn_ + 2; }
  void take_back() { input_.messages.erase(input_.messages.size() - 1); }
  void reset() {
    while (input_.messages.size() > first_turn_) take_back();
  }
  Conversation without_turns() const {
    Conversation left = *this;
    while (left.drop_oldest_turn()) {
    }
    return left;
  }
  // A message and its answer; false when only the message to answer is left.
  bool drop_oldest_turn() {
    if (!has_turns()) return false;
    for (int i = 0; i < 2; ++i) input_.messages.erase(first_turn_);
    return true;
  }
  const RenderInput& input() const { return input_; }

 private:
  RenderInput input_;
  size_t first_turn_ = 0;
};

// What of a conversation a message is answered from.
class Window {
 public:
  Window(const ChatTemplate& chat_template, const Tokenizer& tokenizer, int64_t context,
         int64_t wanted_room)
      : template_(chat_template),
        tokenizer_(tokenizer),
        context_(context),
        wanted_room_(wanted_room) {}

  int64_t room_after(const std::vector<int32_t>& ids) const {
    return context_ - static_cast<int64_t>(ids.size());
  }
  // What the engine has read and written of the conversation that goes on: what follows goes on
  // from these ids. Another conversation must not, whatever its text: it could spell their control
  // tokens.
  void remember(std::vector<int32_t> said) { said_ = std::move(said); }
  void forget() { said_.clear(); }
  // The prompt; the oldest turns are dropped where there is little room for an answer. Nothing,
  // and nothing dropped, where the message alone leaves none. Both are said.
  std::optional<std::vector<int32_t>> fit(Conversation& conversation) const {
    std::vector<int32_t> ids = ids_of(conversation, said_);
    if (room_after(ids) >= wanted_room_) return ids;
    const std::vector<int32_t> fewest = ids_of(conversation.without_turns(), {});
    const int64_t most_room = room_after(fewest);
    if (most_room < 1) {
      tell("(that makes a prompt of {} tokens, the context has {}: not answered; say less)\n",
           fewest.size(), context_);
      return {};
    }
    // Half of what fits goes at once: each cut costs the turns after it what was cached.
    const int64_t room = std::midpoint(wanted_room_, most_room);
    int dropped = 0;
    while (room_after(ids) < room && conversation.drop_oldest_turn()) {
      ++dropped;
      ids = ids_of(conversation, {});
    }
    if (dropped > 0)
      tell("(the context of {} tokens is full: {} left out from here on; /reset starts anew)\n",
           context_,
           !conversation.has_turns() ? "the whole conversation before this message is"
           : dropped == 1            ? "the oldest turn is"
                                     : fmt::format("the {} oldest turns are", dropped));
    return ids;
  }

 private:
  std::vector<int32_t> ids_of(const Conversation& conversation,
                              std::span<const int32_t> said) const {
    const auto pieces = template_.render_pieces(conversation.input());
    if (!pieces) throw_error(ErrorCode::kUsage, "template: {}", pieces.error().message);
    return encode_chat_after(said, *pieces, tokenizer_);
  }

  const ChatTemplate& template_;
  const Tokenizer& tokenizer_;
  const int64_t context_, wanted_room_;
  std::vector<int32_t> said_;
};

[[noreturn]] void throw_failure(const EngineLoop& loop) {
  if (loop.stats().nan_logits > 0) throw_error(ErrorCode::kModel, "{}", kNoNumbers);
  throw_error(ErrorCode::kDevice, "no answer, because of the error told above");
}

constexpr const char* kCommands = "/reset starts anew, /exit and /quit leave, //x says /x";

// Runs the one request to its end, or until it is told to stop.
GenerationStats answer(EngineLoop& loop, Request request,
                       const std::function<void(const Event&)>& on_token, const StopKey* key) {
  Result<PreparedRequest> prepared = loop.prepare(std::move(request));
  if (!prepared) throw_error(ErrorCode::kUsage, "{}", prepared.error().message);
  GenerationStats stats;
  const RequestId id =
      loop.submit(std::move(*prepared), [&](const Event& event, const GenerationStats& figures) {
        on_token(event);
        stats = figures;
      });
  while (loop.step())
    if (key != nullptr && key->was_pressed()) loop.abort(id);
  if (stats.finish == FinishReason::kFailed) throw_failure(loop);
  return stats;
}

void chat(ChatFlags& flags) {
  const std::string& model_path = flags.engine.model.options.model_path;
  const auto tokenizer = load_tokenizer(model_path);
  const ChatTemplate chat_template = ChatTemplate::load(model_path);
  const ModelConfig config = read_model_config(model_path);
  Request request = flags.generation;
  request.input_ids = {0};  // the others are looked at before the weights are
  const auto valid = validate_request(request, tokenizer.get(), config.vocab_size);
  if (!valid) throw_error(ErrorCode::kUsage, "{}", valid.error().message);
  request.input_ids.clear();
  const auto model = load_engine_model(flags.engine);
  warn_of_begin_token(model_path, tokenizer.get());
  // Its prefix cache keeps the turns before.
  EngineLoop loop(*model, tokenizer.get(), flags.engine.engine);
  const TokenPrinter printer;
  Conversation conversation(flags.system);
  const int64_t context = model->context_length();
  // A quarter at most is kept free for an answer, whatever --max-tokens says.
  const int64_t wanted_room = std::clamp<int64_t>(context / 4, 1, flags.generation.max_tokens);
  Window window(chat_template, *tokenizer, context, wanted_room);
  const bool prompts = isatty(STDIN_FILENO) != 0;
  if (prompts)
    tell(
        "type a message; /reset starts anew, /help lists commands, Ctrl-C ends an answer, "
        "Ctrl-D leaves\n");
  for (std::string line;;) {
    if (prompts) tell("> ");
    if (!std::getline(std::cin, line)) return;
    const size_t end = line.find_last_not_of(" \t\r");
    if (end == std::string::npos) continue;
    if (line[0] == '/') line.resize(end + 1);
    if (line == "/exit" || line == "/quit") return;
    if (line == "/reset") {
      conversation.reset();
      window.forget();
      tell("(a new conversation)\n");
      continue;
    }
    if (line.starts_with("//")) {
      line.erase(0, 1);
    } else if (line[0] == '/') {
      tell("({}{})\n", line == "/help" ? "" : "no command " + for_terminal(line) + ": ", kCommands);
      continue;
    }
    conversation.say("user", line);
    std::optional<std::vector<int32_t>> ids = window.fit(conversation);
    if (!ids) {
      conversation.take_back();
      continue;
    }
    const int64_t room = window.room_after(*ids);
    request.input_ids = *std::move(ids);
    request.max_tokens = std::min(flags.generation.max_tokens, room);
    request.min_tokens = std::min(flags.generation.min_tokens, request.max_tokens);
    std::string reply;
    std::vector<int32_t> said = request.input_ids;
    // While an answer is written Ctrl-C ends it and not the conversation; a second one does that.
    const auto key =
        prompts ? std::make_unique<StopKey>(std::initializer_list<int>{SIGINT}) : nullptr;
    const GenerationStats stats = answer(
        loop, request,
        [&](const Event& event) {
          reply += event.text;
          if (event.token >= 0) said.push_back(event.token);
          printer(event);
        },
        key.get());
    fmt::print("\n");
    std::fflush(stdout);
    if (stats.finish == FinishReason::kLength)
      print_cut(stats.output_tokens, room < flags.generation.max_tokens);
    if (flags.stats)
      print_stats(stats, model->drafter() != nullptr,
                  flags.engine.model.simulate_accept_length > 0);
    conversation.say("assistant", reply);
    window.remember(std::move(said));
  }
}

}  // namespace

void add_chat_command(Command& app) {
  auto flags = std::make_shared<ChatFlags>();
  flags->engine.engine.max_running_requests = 1;
  // Only whole pages are found again, so that with small ones little is computed twice.
  flags->engine.model.options.page_size = 16;
  Command* command =
      app.add_subcommand("chat", "Talk to a model, one line at a time; /reset starts anew");
  add_model_flags(*command, flags->engine.model, true);
  add_sampling_flags(*command, flags->generation);
  command->add_option("--system", flags->system, "system message");
  command->add_flag("--stats", flags->stats,
                    "print tokens/s, what was cached of the prompt, and accept length");
  command->callback([flags, command] {
    add_model_defaults(*command, flags->engine.model.options.model_path,
                       flags->generation.sampling);
    chat(*flags);
  });
}

}  // namespace foresail
