// Tests over files that the repository does not hold: registered only when an environment variable
// names their folder, so that a plain run neither skips nor pretends.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <string>

namespace foresail {

class OptInTest : public testing::Test {
 public:
  OptInTest(std::function<void(const std::string&)> body, std::string folder)
      : body_(std::move(body)), folder_(std::move(folder)) {}
  void TestBody() override { body_(folder_); }

  static bool add(const char* suite, const char* name, const char* variable,
                  std::function<void(const std::string&)> body) {
    const char* folder = std::getenv(variable);
    if (folder == nullptr) return false;
    testing::RegisterTest(suite, name, nullptr, nullptr, __FILE__, __LINE__,
                          [body, folder] { return new OptInTest(body, folder); });
    return true;
  }

 private:
  std::function<void(const std::string&)> body_;
  std::string folder_;
};

}  // namespace foresail
