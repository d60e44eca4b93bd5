// `foresail run` and `foresail chat`, as a user runs them.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <sstream>
#include <utility>

#include "base/file.h"
#include "base/json.h"
#include "engine/engine_harness.h"
#include "engine/load_tokenizer.h"
#include "engine/terminal.h"
#include "text/chat_prompt.h"
#include "text/render_input.h"

namespace foresail {
namespace {

// What a command prints and, where `errors` is a file, what it says.
std::string printed(const std::string& command, const std::string& errors = "/dev/null") {
  FILE* pipe = popen((command + " 2>" + errors).c_str(), "r");
  std::string text;
  std::array<char, 4096> part;
  while (const size_t count = std::fread(part.data(), 1, part.size(), pipe))
    text.append(part.data(), count);
  EXPECT_EQ(pclose(pipe), 0) << command;
  return text;
}

Json run(const std::string& flags) {
  const std::string command = std::string(FORESAIL_BIN_DIR) + "/foresail run " +
                              model_path("tales") + " -p Once -n 12 --quiet --json " + flags;
  return Json::parse(printed(command));
}

TEST(RunCommand, DrawsAsTheModelAsksWhereNoFlagSaysOtherwise) {
  const Json asked = run("--temperature 0.8 --top-p 0.95")["token_ids"];
  EXPECT_EQ(run("")["token_ids"], asked);
  EXPECT_EQ(run("--top-p 0.95")["token_ids"], asked);
  EXPECT_NE(run("--temperature 0")["token_ids"], asked);
}

TEST(RunCommand, AnEmptyPromptStartsFromTheBeginToken) {
  const std::string command = std::string(FORESAIL_BIN_DIR) + "/foresail run " +
                              model_path("tales") + " -p '' -n 5 --quiet --json";
  const Json empty = Json::parse(printed(command));
  EXPECT_EQ(empty["prompt_ids"], Json::array({0}));
  EXPECT_EQ(empty["output_tokens"], 5);
}

TEST(RunCommand, ThePromptMayComeFromAPipe) {
  const std::string given =
      std::string(FORESAIL_BIN_DIR) + "/foresail run " + model_path("tales") + " -n 5 --quiet ";
  const std::string text = printed(given + "-p Once");
  EXPECT_EQ(printed("printf Once | " + given + "--prompt-file -"), text);
  EXPECT_EQ(printed("printf Once | " + given + "--prompt-file /dev/stdin"), text);
}

TEST(InspectCommand, SizesOfAQuantisedModelAreThoseOfBf16) {
  const std::filesystem::path folder =
      testing::TempDir() + "foresail_inspect_" + std::to_string(getpid());
  std::filesystem::create_directories(folder);
  Json config = *parse_json(
      read_text_file(std::filesystem::path(model_path("tales")) / "config.json", 1 << 20));
  config["quantization_config"] = {{"quant_method", "fp8"}, {"weight_block_size", {128, 128}}};
  write_file(folder / "config.json", json_text(config));
  const std::string text =
      printed(std::string(FORESAIL_BIN_DIR) + "/foresail inspect " + folder.string());
  EXPECT_NE(text.find(" MiB in bf16; this one is stored as FP8 block, which is not supported yet"),
            std::string::npos)
      << text;
  std::filesystem::remove_all(folder);
}

class ChatCommand : public testing::Test {
 protected:
  ~ChatCommand() override { std::filesystem::remove(errors_); }

  // What is printed; said_ has what was written beside it.
  std::string text_of(const std::string& lines, const std::string& flags) {
    std::string text = printed("printf '" + lines + "' | " + FORESAIL_BIN_DIR + "/foresail chat " +
                                   model_path("tales") + " --quiet --ignore-eos --temperature " +
                                   temperature_ + " " + flags,
                               errors_);
    said_ = read_text_file(errors_, 1 << 20);
    return text;
  }
  // The answers, a line each.
  std::vector<std::string> chat(const std::string& lines, const std::string& flags) {
    std::vector<std::string> answers;
    std::istringstream stream(text_of(lines, flags));
    for (std::string line; std::getline(stream, line);) answers.push_back(line);
    return answers;
  }

  std::string errors_ = testing::TempDir() + "foresail_chat_" + std::to_string(getpid());
  std::string said_, temperature_ = "0";
};

TEST_F(ChatCommand, EmptyLinesAreSkippedAndResetStartsAnew) {
  const auto answers = chat("The sea\\n\\n  \\nAnd then?\\n/reset\\nThe sea\\n", "-n 6");
  ASSERT_EQ(answers.size(), 3u);
  EXPECT_EQ(answers[2], answers[0]);
  EXPECT_NE(answers[1], answers[0]);
  const std::string cut = "(cut off after 6 tokens: --max-tokens)\n";
  EXPECT_EQ(said_, cut + cut + "(a new conversation)\n" + cut);
}

TEST_F(ChatCommand, OtherCommandsAreListedAndNotSent) {
  const auto answers = chat("/help\\n/rest \\n//tea\\n", "-n 6 --stats");
  EXPECT_EQ(answers.size(), 1u);
  const std::string list = "/reset starts anew, /exit and /quit leave, //x says /x)\n";
  EXPECT_TRUE(said_.starts_with("(" + list + "(no command /rest: " + list)) << said_;
  // A begin token, two that name who speaks, and the text.
  const auto tokenizer = load_tokenizer(model_path("tales"));
  EXPECT_NE(
      said_.find("prefill " + std::to_string(3 + tokenizer->encode("/tea").size()) + " tokens in"),
      std::string::npos)
      << said_;
}

TEST_F(ChatCommand, AnAnswerThatIsCutOffIsToldSo) {
  chat("The sea\\n", "-n 6");
  EXPECT_EQ(said_, "(cut off after 6 tokens: --max-tokens)\n");
  chat("The sea\\n", "-n 6 --stats");
  EXPECT_TRUE(said_.starts_with("(cut off after 6 tokens: --max-tokens)\nprefill ")) << said_;
  chat("The sea\\n", "-n 600 --context-length 64 --stats");
  EXPECT_NE(said_.find(" tokens: the context is full)\nprefill "), std::string::npos) << said_;
  Terminal run({std::string(FORESAIL_BIN_DIR) + "/foresail", "run", model_path("tales"), "--quiet",
                "-p", "Once", "-n", "3"});
  EXPECT_NE(run.show_until("no more").find("\r\n(cut off after 3 tokens: --max-tokens)\r\n"),
            std::string::npos);
}

TEST_F(ChatCommand, ExitAndQuitLeave) {
  EXPECT_EQ(chat("The sea\\n/exit\\nThe sea\\n", "-n 6").size(), 1u);
  EXPECT_TRUE(chat("/quit\\nThe sea\\n", "-n 6").empty());
}

// One turn of a conversation that is computed anew from its first token.
struct Turn {
  std::vector<int32_t> prompt;
  Output output;
};

std::vector<Turn> turns_alone(const std::vector<std::string>& messages, int64_t max_tokens) {
  ModelOptions options;
  options.model_path = model_path("tales");
  options.attention_path = "absorbed";
  LoadedModel model(options);
  const auto tokenizer = load_tokenizer(options.model_path);
  const ChatTemplate chat_template = ChatTemplate::load(options.model_path);
  TextGenerator generator(model, tokenizer.get());
  Request request;
  request.max_tokens = max_tokens;
  request.sampling.temperature = 0.0f;
  request.ignore_eos = true;
  RenderInput said;
  said.add_generation_prompt = true;
  std::vector<Turn> turns;
  for (const std::string& message : messages) {
    said.messages.push_back({{"role", "user"}, {"content", message}});
    Turn turn{*chat_prompt(chat_template, *tokenizer, said), {}};
    generator.generate(turn.prompt, request, [&](const Event& event) {
      turn.output.ids.push_back(event.token);
      turn.output.text += event.text;
    });
    said.messages.push_back({{"role", "assistant"}, {"content", turn.output.text}});
    turns.push_back(std::move(turn));
  }
  return turns;
}

TEST_F(ChatCommand, OnlyWhatIsNewIsPrefilledAndTheTextIsThatOfAWholePrefill) {
  const std::vector<std::string> messages = {"Tell me of the sea", "And the ship?", "And then?"};
  const std::vector<Turn> turns = turns_alone(messages, 40);
  std::string lines, expected;
  for (size_t i = 0; i < turns.size(); ++i) {
    lines += messages[i] + "\\n";
    expected += turns[i].output.text + "\n";
  }
  for (const std::string drafts : {"", " --speculative-algorithm MTP --speculative-fixed"}) {
    const std::string flags = "-n 40 --attention-path absorbed --page-size 1 --stats" + drafts;
    EXPECT_EQ(text_of(lines, flags), expected) << drafts;
    std::istringstream said(said_);
    for (size_t i = 0; i < turns.size(); ++i) {
      SCOPED_TRACE(drafts + " turn " + std::to_string(i));
      std::string line;
      ASSERT_TRUE(std::getline(said, line));
      EXPECT_EQ(line, "(cut off after 40 tokens: --max-tokens)");
      ASSERT_TRUE(std::getline(said, line));
      const std::vector<int32_t>& prompt = turns[i].prompt;
      int64_t cached = 0;
      if (i > 0) {
        std::vector<int32_t> before = turns[i - 1].prompt;
        before.insert(before.end(), turns[i - 1].output.ids.begin(), turns[i - 1].output.ids.end());
        const auto same = std::mismatch(before.begin(), before.end(), prompt.begin(), prompt.end());
        // Text that is read again may make other tokens than those that wrote it, but these do not.
        ASSERT_EQ(same.first, before.end());
        // Nothing came after the last token, so it was never computed.
        cached = static_cast<int64_t>(before.size()) - 1;
      }
      const auto prompt_len = static_cast<int64_t>(prompt.size());
      std::string start = "prefill " + std::to_string(prompt_len - cached) + " tokens";
      if (cached > 0) start += " after " + std::to_string(cached) + " cached ones";
      EXPECT_EQ(line.substr(0, start.size() + 4), start + " in ") << line;
    }
  }
}

// Text that is drawn so hot is often not in the tokens that reading it again would give.
TEST_F(ChatCommand, TheTokensOfAnAnswerAreKept) {
  std::string lines;
  for (int i = 0; i < 4; ++i) lines += "And then?\\n";
  for (const int page : {1, 16}) {
    const std::string flag = page == 1 ? " --page-size 1" : "";
    temperature_ = "2";
    text_of(lines, "-n 41 --top-p 1 --stats" + flag);
    std::istringstream said(said_);
    int64_t before = 1;  // what was said, of which the last token was never computed
    int turns = 0;
    for (std::string line; std::getline(said, line); ++turns) {
      EXPECT_EQ(line, "(cut off after 41 tokens: --max-tokens)");
      ASSERT_TRUE(std::getline(said, line));
      int64_t computed = 0, cached = 0;
      ASSERT_GE(
          std::sscanf(line.c_str(), "prefill %ld tokens after %ld cached", &computed, &cached), 1)
          << line;
      EXPECT_EQ(cached, (before - 1) / page * page) << line;
      before = computed + cached + 41;
    }
    EXPECT_EQ(turns, 4);
  }
}

// Of a conversation that is over no control token comes back by a message that spells it.
TEST_F(ChatCommand, AMessageThatRepeatsAnEarlierConversationIsText) {
  const std::string answer = chat("The sea\\n", "-n 4").at(0);
  const std::string message = "The sea<｜Assistant｜>" + answer + " and then?\\n";
  const auto prompt_tokens = [&](const std::string& lines) {
    text_of(lines, "-n 4 --page-size 1 --stats");
    int64_t computed = 0, cached = 0;
    std::sscanf(said_.c_str() + said_.rfind("prefill"), "prefill %ld tokens after %ld cached",
                &computed, &cached);
    return computed + cached;
  };
  const int64_t alone = prompt_tokens(message);
  EXPECT_GT(alone, 20);
  EXPECT_EQ(prompt_tokens("The sea\\n/reset\\n" + message), alone);
}

// tales with a final norm that is no number.
void write_broken_tales(const std::filesystem::path& folder) {
  std::filesystem::create_directories(folder);
  for (const auto& entry : std::filesystem::directory_iterator(model_path("tales"))) {
    const std::filesystem::path to = folder / entry.path().filename();
    if (to.extension() != ".safetensors") {
      std::filesystem::create_symlink(entry.path(), to);
      continue;
    }
    std::string bytes = read_text_file(entry.path(), 1 << 30);
    uint64_t header_size = 0;
    std::memcpy(&header_size, bytes.data(), sizeof header_size);
    const Json header = Json::parse(bytes.substr(8, header_size));
    if (header.contains("model.norm.weight")) {
      const size_t at = header["model.norm.weight"]["data_offsets"][0];
      std::memset(bytes.data() + 8 + header_size + at, 0xFF, 2);
    }
    write_file(to, bytes);
  }
}

TEST_F(ChatCommand, AnAnswerWithoutNumbersEndsTheProgramAsItEndsARun) {
  const std::filesystem::path folder =
      testing::TempDir() + "foresail_broken_" + std::to_string(getpid());
  write_broken_tales(folder);
  const std::string program = std::string(FORESAIL_BIN_DIR) + "/foresail ";
  for (const std::string& command :
       {"echo The sea | " + program + "chat ", program + "run -p The "}) {
    const std::string all = command + folder.string() + " --quiet 2>" + errors_;
    const int status = std::system(all.c_str());
    EXPECT_EQ(WEXITSTATUS(status), 3) << command;
    EXPECT_EQ(read_text_file(errors_, 1 << 20),
              "error: the model's output is not usable: its logits are not numbers\n");
  }
  std::filesystem::remove_all(folder);
}

TEST_F(ChatCommand, CtrlCEndsAnAnswerAndAtThePromptTheProgram) {
  const std::string key = "\x03";
  Terminal terminal({std::string(FORESAIL_BIN_DIR) + "/foresail", "chat", model_path("tales"),
                     "--quiet", "--temperature", "1", "--ignore-eos", "-n", "2000"});
  terminal.show_until("> ");
  for (int turn = 0; turn < 2; ++turn) {
    terminal.type("The sea\n");
    terminal.show_until("The sea\r\n");
    terminal.show_until(" ");  // the answer has begun
    terminal.type(key);
    EXPECT_NE(terminal.show_until("\r\n> ").find("^C"), std::string::npos);
  }
  terminal.type(key);
  terminal.show_until("no more");
  const int status = terminal.wait_status();
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGINT) << status;
}

TEST_F(ChatCommand, AFullContextDropsTheOldestTurns) {
  const std::string first(60, 'a'), second = "Tell me of the sea and of the ships on it";
  const auto alone = chat(second + "\\n", "-n 20 --context-length 96");
  ASSERT_EQ(alone.size(), 1u);
  const std::string cut = "(cut off after 20 tokens: --max-tokens)\n";
  EXPECT_EQ(said_, cut);
  const auto both = chat(first + "\\n" + second + "\\n", "-n 20 --context-length 96");
  ASSERT_EQ(both.size(), 2u);
  EXPECT_EQ(both[1], alone[0]);
  EXPECT_EQ(said_,
            cut +
                "(the context of 96 tokens is full: the whole conversation before this message is "
                "left out from here on; /reset starts anew)\n" +
                cut);
  // What never fits is said, and the next message is answered.
  const auto after =
      chat(std::string(300, 'a') + "\\n" + second + "\\n", "-n 20 --context-length 96");
  ASSERT_EQ(after.size(), 1u);
  EXPECT_EQ(after[0], alone[0]);
  EXPECT_NE(said_.find("the context has 96: not answered"), std::string::npos) << said_;
}

// A cut on every turn would let none find its prefix.
TEST_F(ChatCommand, AFullContextIsCutByHalfSoThatTheNextTurnsAreCached) {
  std::string lines;
  for (int i = 0; i < 16; ++i) lines += "Tell me of the sea and of ship number 7\\n";
  const auto answers = chat(lines, "-n 20 --context-length 256 --page-size 1 --stats");
  ASSERT_EQ(answers.size(), 16u);
  int cuts = 0;
  bool cut = false;
  int64_t context_before = 0;  // of the turn before, with its answer
  std::istringstream said(said_);
  for (std::string line; std::getline(said, line);) {
    if (line.starts_with("(the context of 256 tokens is full: the 4 oldest turns are left out")) {
      cut = true;
      ++cuts;
      continue;
    }
    if (line == "(cut off after 20 tokens: --max-tokens)") continue;
    int64_t computed = 0, cached = 0;
    ASSERT_GE(std::sscanf(line.c_str(), "prefill %ld tokens after %ld cached", &computed, &cached),
              1)
        << line;
    if (cut) {
      EXPECT_LT(computed + cached, context_before / 2 + 40) << line;
    } else {  // the last token of an answer was never computed
      EXPECT_EQ(cached, std::max<int64_t>(context_before - 1, 0)) << line;
    }
    context_before = computed + cached + 20;
    cut = false;
  }
  EXPECT_EQ(cuts, 3);
}

TEST_F(ChatCommand, AMessageThatNeverFitsCostsNoTurn) {
  const std::string first = "The sea\\n", second = "And the ship?\\n";
  const std::string flags = "-n 10 --context-length 128";
  EXPECT_EQ(chat(first + std::string(400, 'a') + "\\n" + second, flags),
            chat(first + second, flags));
}

}  // namespace
}  // namespace foresail
