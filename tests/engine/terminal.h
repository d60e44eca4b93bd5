// A program on a terminal: keys that are typed, and what is shown.
#pragma once

#include <gtest/gtest.h>
#include <pty.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <utility>
#include <vector>

namespace foresail {

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
  void signal(int number) { EXPECT_EQ(kill(child_, number), 0); }
  int wait_status() {
    int status = 0;
    EXPECT_GT(waitpid(std::exchange(child_, -1), &status, 0), 0);
    return status;
  }

 private:
  int terminal_ = -1;
  pid_t child_ = -1;
};

}  // namespace foresail
