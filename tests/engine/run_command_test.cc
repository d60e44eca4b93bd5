// `foresail run` and `foresail chat`, as a user runs them.
#include <gtest/gtest.h>
#include <pty.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <sstream>
#include <utility>

#include "base/file.h"
#include "base/json.h"
#include "engine/engine_harness.h"

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

  // The answers, a line each; said_ has what was written beside them.
  std::vector<std::string> chat(const std::string& lines, const std::string& flags) {
    const std::string text =
        printed("printf '" + lines + "' | " + FORESAIL_BIN_DIR + "/foresail chat " +
                    model_path("tales") + " --quiet --temperature 0 --ignore-eos " + flags,
                errors_);
    said_ = read_text_file(errors_, 1 << 20);
    std::vector<std::string> answers;
    std::istringstream stream(text);
    for (std::string line; std::getline(stream, line);) answers.push_back(line);
    return answers;
  }

  std::string errors_ = testing::TempDir() + "foresail_chat_" + std::to_string(getpid());
  std::string said_;
};

TEST_F(ChatCommand, EmptyLinesAreSkippedAndResetStartsAnew) {
  const auto answers = chat("The sea\\n\\n  \\nAnd then?\\n/reset\\nThe sea\\n", "-n 6");
  ASSERT_EQ(answers.size(), 3u);
  EXPECT_EQ(answers[2], answers[0]);
  EXPECT_NE(answers[1], answers[0]);
  EXPECT_EQ(said_, "(a new conversation)\n");
}

TEST_F(ChatCommand, ExitAndQuitLeave) {
  EXPECT_EQ(chat("The sea\\n/exit\\nThe sea\\n", "-n 6").size(), 1u);
  EXPECT_TRUE(chat("/quit\\nThe sea\\n", "-n 6").empty());
}

// A conversation on a terminal, until what is shown holds some text.
class Terminal {
 public:
  explicit Terminal(std::vector<std::string> command) {
    std::vector<char*> arguments;
    for (std::string& argument : command) arguments.push_back(argument.data());
    arguments.push_back(nullptr);
    child_ = forkpty(&terminal_, nullptr, nullptr, nullptr);
    if (child_ == 0) {
      execv(arguments[0], arguments.data());
      _exit(127);
    }
  }
  ~Terminal() {
    close(terminal_);
    if (child_ < 0) return;
    kill(child_, SIGKILL);
    waitpid(child_, nullptr, 0);
  }

  void type(const std::string& keys) {
    EXPECT_EQ(write(terminal_, keys.data(), keys.size()), static_cast<ssize_t>(keys.size()));
  }
  // What is shown from where the last call ended up to `end`, or to the end of the program.
  std::string show_until(const std::string& end) {
    std::string text;
    for (char c; text.find(end) == std::string::npos && read(terminal_, &c, 1) == 1;)
      text.push_back(c);
    return text;
  }
  int wait_status() {
    int status = 0;
    EXPECT_GT(waitpid(std::exchange(child_, -1), &status, 0), 0);
    return status;
  }

 private:
  int terminal_ = -1;
  pid_t child_ = -1;
};

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
  EXPECT_EQ(said_, "");
  const auto both = chat(first + "\\n" + second + "\\n", "-n 20 --context-length 96");
  ASSERT_EQ(both.size(), 2u);
  EXPECT_EQ(both[1], alone[0]);
  EXPECT_EQ(said_,
            "(the context of 96 tokens is full: the oldest turn is left out from here on; "
            "/reset starts anew)\n");
  // What never fits is said, and the next message is answered.
  const auto after =
      chat(std::string(300, 'a') + "\\n" + second + "\\n", "-n 20 --context-length 96");
  ASSERT_EQ(after.size(), 1u);
  EXPECT_EQ(after[0], alone[0]);
  EXPECT_NE(said_.find("the context has 96: not answered"), std::string::npos) << said_;
}

}  // namespace
}  // namespace foresail
