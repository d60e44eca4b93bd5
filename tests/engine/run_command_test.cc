// `foresail run`, as a user runs it.
#include <gtest/gtest.h>

#include <array>
#include <cstdio>

#include "base/json.h"
#include "engine/engine_harness.h"

namespace foresail {
namespace {

Json run(const std::string& flags) {
  const std::string command = std::string(FORESAIL_BIN_DIR) + "/foresail run " +
                              model_path("tales") + " -p Once -n 12 --quiet --json " + flags;
  FILE* pipe = popen(command.c_str(), "r");
  std::string text;
  std::array<char, 4096> part;
  while (const size_t count = std::fread(part.data(), 1, part.size(), pipe))
    text.append(part.data(), count);
  EXPECT_EQ(pclose(pipe), 0) << command;
  return Json::parse(text);
}

TEST(RunCommand, DrawsAsTheModelAsksWhereNoFlagSaysOtherwise) {
  const Json asked = run("--temperature 0.8 --top-p 0.95")["token_ids"];
  EXPECT_EQ(run("")["token_ids"], asked);
  EXPECT_EQ(run("--top-p 0.95")["token_ids"], asked);
  EXPECT_NE(run("--temperature 0")["token_ids"], asked);
}

}  // namespace
}  // namespace foresail
