// What a user gets wrong, as the shell gives it to a program of the build.
#pragma once

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "base/file.h"
#include "engine/engine_harness.h"

namespace foresail {

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
    expect_refused_by("foresail", arguments, status, message);
  }
  void expect_refused_by(const std::string& program, const std::string& arguments, int status,
                         const std::string& message) {
    SCOPED_TRACE(program + " " + arguments);
    const std::string out = (folder_ / "out").string();
    const std::string errors = (folder_ / "errors").string();
    // So that a refusal is the same on every machine.
    const std::string command = "CUDA_VISIBLE_DEVICES= " + std::string(FORESAIL_BIN_DIR) + "/" +
                                program + " " + arguments + " >" + out + " 2>" + errors;
    EXPECT_EQ(WEXITSTATUS(std::system(command.c_str())), status);
    EXPECT_EQ(read_text_file(out, 1 << 20), "");
    const std::string text = read_text_file(errors, 1 << 20);
    EXPECT_THAT(text, testing::HasSubstr(message));
    EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1) << text;
  }
  static std::string output_of(const std::string& arguments) {
    return output_of_shell(std::string(FORESAIL_BIN_DIR) + "/foresail " + arguments);
  }
  static std::string output_of_shell(const std::string& command) {
    std::string text;
    std::FILE* const pipe = popen(command.c_str(), "r");
    for (int c; (c = std::fgetc(pipe)) != EOF;) text.push_back(static_cast<char>(c));
    EXPECT_EQ(pclose(pipe), 0) << command;
    return text;
  }
  void expect_run_refused(const std::string& flags, const std::string& message) {
    expect_refused("run " + model_path("tales") + " --quiet -p Once " + flags, 2, message);
  }

  std::filesystem::path folder_;
};

}  // namespace foresail
