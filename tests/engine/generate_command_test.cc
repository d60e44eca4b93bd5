// `foresail generate`, as a user runs it.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/file.h"
#include "base/json.h"
#include "engine/engine_harness.h"
#include "engine/terminal.h"

namespace foresail {
namespace {

class GenerateCommand : public testing::Test {
 protected:
  GenerateCommand()
      : folder_(std::filesystem::temp_directory_path() /
                ("foresail_generate_" + std::to_string(getpid()))) {
    std::filesystem::create_directories(folder_);
  }
  ~GenerateCommand() override { std::filesystem::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }

  // The exit status; answers_ and errors_ hold what was written.
  int run(const std::string& lines, const std::string& flags,
          const std::string& output = "out.jsonl") {
    std::ofstream(path("in.jsonl")) << lines;
    std::filesystem::remove(path("out.jsonl"));
    const std::string command = std::string(FORESAIL_BIN_DIR) + "/foresail generate " + model_ +
                                " --quiet --dtype f32 --threads 1 " +
                                "--context-length 256 --requests " + path("in.jsonl") +
                                " --output " + path(output) + " " + flags + " 2>" + path("errors");
    const int status = std::system(command.c_str());
    errors_ = read_text_file(path("errors"), 1 << 20);
    answers_.clear();
    std::ifstream out(path("out.jsonl"));
    for (std::string line; std::getline(out, line);) answers_.push_back(Json::parse(line));
    return WEXITSTATUS(status);
  }

  std::filesystem::path folder_;
  std::string model_ = golden_path("g13_v3_mtp");
  std::vector<Json> answers_;
  std::string errors_;
};

std::string request_lines(int count) {
  std::string lines;
  for (const Request& request : random_requests(77, count))
    lines += json_text(Json{{"input_ids", request.input_ids},
                            {"max_tokens", request.max_tokens},
                            {"temperature", request.sampling.temperature},
                            {"top_p", request.sampling.top_p},
                            {"seed", request.sampling.seed >> 1},
                            {"ignore_eos", request.ignore_eos},
                            {"priority", request.priority}}) +
             "\n";
  return lines;
}

TEST_F(GenerateCommand, ATerminalShowsHowFarItIs) {
  std::ofstream(path("in.jsonl")) << request_lines(3);
  Terminal terminal({std::string(FORESAIL_BIN_DIR) + "/foresail", "generate", model_, "--requests",
                     path("in.jsonl"), "-o", path("out.jsonl"), "--context-length", "256"});
  const std::string shown = terminal.show_until("no more");
  EXPECT_NE(shown.find(" of 3 lines, "), std::string::npos) << shown;
  EXPECT_TRUE(shown.ends_with("\r\033[K")) << shown;
  EXPECT_EQ(terminal.wait_status(), 0);
}

TEST_F(GenerateCommand, SchedulingAndSpeculationChangeNoToken) {
  const std::string lines = request_lines(9);
  ASSERT_EQ(run(lines, "--max-running-requests 1 --disable-radix-cache"), 0) << errors_;
  ASSERT_EQ(answers_.size(), 9u);
  std::vector<Json> ids;
  for (const Json& answer : answers_) ids.push_back(answer["token_ids"]);
  for (const char* flags :
       {"--seed-schedule 5 --max-running-requests 4 --max-total-tokens 512 --page-size 16",
        "--speculative-algorithm MTP --speculative-num-steps 4 --chunked-prefill-size 8",
        "--speculative-algorithm NGRAM --seed-schedule 9 --page-size 1"}) {
    ASSERT_EQ(run(lines, flags), 0) << errors_;
    ASSERT_EQ(answers_.size(), 9u);
    for (size_t i = 0; i < 9; ++i) {
      EXPECT_EQ(answers_[i]["token_ids"], ids[i]) << flags;
      EXPECT_EQ(answers_[i]["line"], i + 1);
      EXPECT_EQ(answers_[i]["output_tokens"], answers_[i]["token_ids"].size());
    }
  }
}

TEST_F(GenerateCommand, ItsInputIsNotWrittenOver) {
  const std::string lines = request_lines(1);
  std::filesystem::create_symlink(path("in.jsonl"), path("link.jsonl"));
  for (const char* name : {"in.jsonl", "link.jsonl"}) {
    EXPECT_EQ(run(lines, "", name), 2);
    EXPECT_NE(errors_.find("it is the input, choose another file"), std::string::npos) << errors_;
    EXPECT_EQ(read_text_file(path("in.jsonl"), 1 << 20), lines);
  }
}

// Minutes of work, of which what was done by then is there when the program is killed.
TEST_F(GenerateCommand, AnInterruptedRunKeepsItsAnswers) {
  const std::string answered = R"({"input_ids": [5, 6, 7], "max_tokens": 3, "ignore_eos": true})";
  std::string lines = answered + "\n{\n" + answered + "\n";
  for (int i = 0; i < 2000; ++i)
    lines += R"({"prompt": "Once", "max_tokens": 1900, "ignore_eos": true})"
             "\n";
  std::ofstream(path("in.jsonl")) << lines;
  const std::string out = path("out.jsonl");
  const std::string script =
      std::string(FORESAIL_BIN_DIR) + "/foresail generate " + model_path("tales") +
      " --quiet --max-running-requests 1 --requests " + path("in.jsonl") + " -o " + out +
      " 2>/dev/null & while kill -0 $! 2>/dev/null && " + "[ \"$(cat " + out +
      " 2>/dev/null | wc -l)\" -lt 3 ]; do sleep 0.01; done; kill -9 $!";
  ASSERT_EQ(WEXITSTATUS(std::system(script.c_str())), 0) << "it had ended by itself";
  std::vector<Json> answers;
  std::ifstream file(out);
  for (std::string line; answers.size() < 3 && std::getline(file, line);)
    answers.push_back(Json::parse(line));
  ASSERT_EQ(answers.size(), 3u);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(answers[i]["line"], i + 1);
  EXPECT_EQ(answers[0]["token_ids"].size(), 3u);
  EXPECT_TRUE(answers[1].contains("error"));
  EXPECT_EQ(answers[2]["token_ids"], answers[0]["token_ids"]);
}

// Before anything is computed, and with what was written before as it was.
TEST_F(GenerateCommand, WhatCannotBeWrittenIsSaid) {
  const std::string lines = request_lines(2);
  EXPECT_EQ(run(lines, "", "no/such/folder"), 2);
  EXPECT_NE(errors_.find("cannot write "), std::string::npos) << errors_;
  std::ofstream(path("kept.jsonl")) << "answers of another run\n";
  EXPECT_EQ(run(lines, "--cpu-isa none", "kept.jsonl"), 2);
  EXPECT_EQ(read_text_file(path("kept.jsonl"), 1 << 20), "answers of another run\n");
}

TEST_F(GenerateCommand, ABadLineIsNamedAndTheOthersRun) {
  const std::string good = R"({"input_ids": [5, 6, 7], "max_tokens": 3, "ignore_eos": true})";
  EXPECT_EQ(run(good + "\n\n{\"input_ids\": [5], \"max_tokens\": \"x\"}\n" + good + "\n", ""), 2);
  ASSERT_EQ(answers_.size(), 3u);
  EXPECT_EQ(answers_[0]["token_ids"].size(), 3u);
  EXPECT_EQ(answers_[2]["token_ids"], answers_[0]["token_ids"]);
  EXPECT_EQ(answers_[1]["error"]["message"], "\"max_tokens\" must be an integer");
  EXPECT_NE(errors_.find("in.jsonl line 3: \"max_tokens\" must be an integer"), std::string::npos)
      << errors_;
  for (const auto& [line, message] : std::vector<std::pair<std::string, std::string>>{
           {"{", ""},
           {"[1]", "a request is a JSON object"},
           {"{}", "give a prompt or input_ids"},
           {R"({"input_ids": []})", "\"input_ids\" is an empty list"},
           {R"({"prompt": ""})", "the prompt has no token"},
           {R"({"promt": "x"})", "unknown field \"promt\""},
           {R"({"prompt": "x"})", "a text prompt needs a tokenizer"},
           {R"({"input_ids": [1], "max_tokens": 100000})", "exceed the context of 256"},
           {R"({"input_ids": [1], "speculative": "yes"})", "\"speculative\" must be an integer"}}) {
    EXPECT_EQ(run(line + "\n" + good, ""), 2) << line;
    ASSERT_EQ(answers_.size(), 2u);
    EXPECT_NE(errors_.find("line 1: "), std::string::npos) << errors_;
    EXPECT_NE(errors_.find(message), std::string::npos) << errors_;
    EXPECT_EQ(answers_[1]["token_ids"].size(), 3u);
  }
}

// As `run`: generation_config.json of models/tales says temperature 0.8 and top-p 0.95.
TEST_F(GenerateCommand, DrawsAsTheModelAsksWhereALineSaysNothing) {
  model_ = model_path("tales");
  const std::string line = R"({"prompt": "Once", "max_tokens": 16, "ignore_eos": true)";
  ASSERT_EQ(run(line + "}\n" + line + R"(, "temperature": 0.8})" + "\n" + line +
                    R"(, "temperature": 0.8, "top_p": 0.95})" + "\n" + line +
                    R"(, "temperature": 0})" + "\n",
                ""),
            0)
      << errors_;
  ASSERT_EQ(answers_.size(), 4u);
  EXPECT_EQ(answers_[0]["token_ids"], answers_[2]["token_ids"]);
  EXPECT_EQ(answers_[1]["token_ids"], answers_[2]["token_ids"]);
  EXPECT_NE(answers_[3]["token_ids"], answers_[2]["token_ids"]);
}

TEST_F(GenerateCommand, StandardInputIsCalledSo) {
  const std::string command = std::string("echo '[1]' | ") + FORESAIL_BIN_DIR +
                              "/foresail generate " + model_ + " --quiet --requests - -o " +
                              path("out.jsonl") + " 2>" + path("errors");
  EXPECT_EQ(WEXITSTATUS(std::system(command.c_str())), 2);
  EXPECT_EQ(read_text_file(path("errors"), 1 << 20),
            "error: standard input line 1: a request is a JSON object\n");
}

TEST_F(GenerateCommand, AnEmptyPromptStartsFromTheBeginToken) {
  model_ = model_path("tales");
  ASSERT_EQ(
      run("{\"prompt\": \"\", \"max_tokens\": 5}\n{\"input_ids\": [0], \"max_tokens\": 5}\n", ""),
      0)
      << errors_;
  ASSERT_EQ(answers_.size(), 2u);
  EXPECT_EQ(answers_[0]["prompt_tokens"], 1);
  EXPECT_EQ(answers_[0]["token_ids"], answers_[1]["token_ids"]);
}

}  // namespace
}  // namespace foresail
