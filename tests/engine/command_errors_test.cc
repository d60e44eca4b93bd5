// What a user gets wrong on the command line: one line on stderr, the right exit status, and
// nothing on stdout.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/file.h"
#include "base/json.h"
#include "engine/engine_harness.h"

namespace foresail {
namespace {

using testing::HasSubstr;

class CommandErrors : public testing::Test {
 protected:
  CommandErrors()
      : folder_(std::filesystem::temp_directory_path() /
                ("foresail_errors_" + std::to_string(getpid()))) {
    std::filesystem::create_directories(folder_);
  }
  ~CommandErrors() override { std::filesystem::remove_all(folder_); }

  // `arguments` as the shell reads them.
  void expect_refused(const std::string& arguments, int status, const std::string& message) {
    SCOPED_TRACE(arguments);
    const std::string out = (folder_ / "out").string();
    const std::string errors = (folder_ / "errors").string();
    const std::string command =
        std::string(FORESAIL_BIN_DIR) + "/foresail " + arguments + " >" + out + " 2>" + errors;
    EXPECT_EQ(WEXITSTATUS(std::system(command.c_str())), status);
    EXPECT_EQ(read_text_file(out, 1 << 20), "");
    const std::string text = read_text_file(errors, 1 << 20);
    EXPECT_THAT(text, HasSubstr(message));
    EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1) << text;
  }
  void expect_run_refused(const std::string& flags, const std::string& message) {
    expect_refused("run " + model_path("tales") + " --quiet -p Once " + flags, 2, message);
  }

  std::filesystem::path folder_;
};

TEST_F(CommandErrors, SamplingThatMakesNoSense) {
  expect_run_refused("--temperature nan", "temperature nan is out of range");
  expect_run_refused("--top-p nan", "top_p nan is out of range");
  expect_run_refused("--top-p 0", "top-p");
  expect_run_refused("--min-p nan", "min_p nan is out of range");
  expect_run_refused("--repetition-penalty nan", "repetition_penalty nan is out of range");
  expect_run_refused("--repetition-penalty 1e30", "repetition-penalty");
  expect_run_refused("--presence-penalty nan", "presence_penalty nan is out of range");
  expect_run_refused("--frequency-penalty nan", "frequency_penalty nan is out of range");
  expect_run_refused("--logit-bias 3 nan", "logit_bias");
  expect_run_refused("--logit-bias 3 inf", "logit_bias");
  expect_run_refused("--logit-bias 99999 1", "token 99999 is outside the vocabulary of 8192");
  expect_run_refused("--stop ''", "a stop string is empty");
  expect_run_refused("--min-tokens 200", "min_tokens 200 is not between 0 and max_tokens 128");
  expect_run_refused("--min-tokens -1", "min_tokens -1 is not between 0");
}

TEST_F(CommandErrors, NumbersThatAreTooLarge) {
  expect_run_refused("--max-tokens 9223372036854775807", "maximum context length is 2048");
  expect_run_refused("--context-length 9223372036854775807", "exceeds the model's 2048 positions");
  expect_run_refused("--context-length -5", "not in range 0 to 9223372036854775807");
  expect_run_refused("--speculative-simulate-accept-length nan", "choose 1 to 16");
  expect_run_refused("--speculative-simulate-accept-length -3", "choose 1 to 16");
}

TEST_F(CommandErrors, MoreCacheThanAnyMachineHas) {
  std::ofstream(folder_ / "in") << "{\"prompt\": \"Once\"}\n";
  const std::string command = "generate " + model_path("tales") + " --requests " +
                              (folder_ / "in").string() + " -o - --max-total-tokens ";
  for (const char* tokens : {"9223372036854775807", "100000000000000"})
    expect_refused(command + tokens, 4, "--max-total-tokens ");
}

TEST_F(CommandErrors, ALineBreakInANameStaysInTheLine) {
  expect_run_refused("\"$(printf -- '--temp\\nrature')\"", "unknown flag --temp\\x0arature");
  expect_run_refused("\"$(printf 'a\\nb')\"", "unknown argument a\\x0ab");
  expect_run_refused("--temperature \"$(printf 'a\\nb')\"", "a\\x0ab");
  expect_run_refused("--dtype \"$(printf 'a\\nb')\"", "a\\x0ab");
  expect_refused("run \"$(printf '/no\\nfolder')\" -p x", 3, "/no\\x0afolder");
}

TEST_F(CommandErrors, TokenizerOfAnotherModel) {
  const std::filesystem::path tales = model_path("tales");
  for (const auto& entry : std::filesystem::directory_iterator(tales))
    if (entry.path().filename() != "config.json")
      std::filesystem::create_symlink(entry.path(), folder_ / entry.path().filename());
  Json config = *parse_json(read_text_file(tales / "config.json", 1 << 20));
  config["vocab_size"] = 8191;
  write_file(folder_ / "config.json", config.dump());
  std::ofstream(folder_ / "in") << "{\"prompt\": \"Once\"}\n";
  const std::string message =
      "the tokenizer has ids up to 8191 but config.json has vocab_size 8191";
  expect_refused("run " + folder_.string() + " -p x", 3, message);
  expect_refused("chat " + folder_.string(), 3, message);
  expect_refused("generate " + folder_.string() + " -o - --requests " + (folder_ / "in").string(),
                 3, message);
}

}  // namespace
}  // namespace foresail
