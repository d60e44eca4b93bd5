// The command line as a command sees it. CLI11 does the parsing and stays inside command_line.cc:
// its headers cost every file that sees them five seconds of compiling.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace foresail {

// What a flag's value may be; flag_checks.h makes them.
struct FlagCheck {
  std::function<std::string(const std::string& text)> complaint;  // empty: the value is fine
  std::string range;                                              // as the help shows it
};

// One flag or argument; lives as long as its command.
class Flag {
 public:
  explicit Flag(CLI::Option& option) : option_(&option) {}
  Flag* required();
  Flag* capture_default_str();  // the help shows the value that stands there now
  Flag* check(const FlagCheck& check);
  Flag* delimiter(char delimiter);  // of several values in one word
  Flag* envname(const std::string& name);
  Flag* group(std::string_view name);       // one of flag_groups.h, which the help shows it under
  Flag* excludes(const std::string& name);  // of a flag there is already: only one may be given

 private:
  CLI::Option* option_;
};

// One command. What is read is written to the values when the line is parsed; they must live on.
class Command {
 public:
  explicit Command(CLI::App& app) : app_(&app) {}
  Command(const Command&) = delete;

  Command* add_subcommand(const std::string& name, const std::string& help);
  void require_subcommand();
  void footer(const std::string& text);
  void callback(std::function<void()> run);

  // The types of values are listed at the end of command_line.cc.
  template <typename T>
  Flag* add_option(const std::string& names, T& value, const std::string& help);
  Flag* add_flag(const std::string& names, bool& value, const std::string& help);
  Flag* add_flag_callback(const std::string& names, std::function<void()> given,
                          const std::string& help);
  // How often a flag was given, 0 if there is none of that name; valid once the line is parsed.
  size_t count(const std::string& name) const;

 private:
  Flag* keep(CLI::Option* option);

  CLI::App* app_;
  std::vector<std::unique_ptr<Command>> commands_;
  std::deque<Flag> flags_;
};

// Adds flags to a command under one heading of its help.
class FlagGroup {
 public:
  FlagGroup(Command& command, std::string_view name) : command_(command), name_(name) {}
  template <typename T>
  Flag* add_option(const std::string& names, T& value, const std::string& help) {
    return command_.add_option(names, value, help)->group(name_);
  }
  Flag* add_flag(const std::string& names, bool& value, const std::string& help) {
    return command_.add_flag(names, value, help)->group(name_);
  }
  Flag* add_flag_callback(const std::string& names, std::function<void()> given,
                          const std::string& help) {
    return command_.add_flag_callback(names, std::move(given), help)->group(name_);
  }

 private:
  Command& command_;
  std::string_view name_;
};

class CommandLine {
 public:
  // An empty version: no flag asks for one.
  CommandLine(const std::string& name, const std::string& description,
              const std::string& version = "");
  ~CommandLine();
  Command& root() { return *root_; }
  // Runs the command that was chosen, or prints the help or version that was asked for. Throws
  // Error{kUsage}, and what the command throws.
  void run(int argc, char** argv);

 private:
  std::unique_ptr<CLI::App> app_;
  std::unique_ptr<Command> root_;
};

}  // namespace foresail
