#include "apps/command_line.h"

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <sstream>
#include <utility>

#include "apps/flag_groups.h"
#include "apps/usage_error.h"
#include "apps/value_checks.h"
#include "base/error.h"

namespace foresail {
namespace {

// The groups of a command in the order of flag_groups.h, wherever its flags were added: CLI11's own
// help has them in the order of their first flags.
class GroupedHelp final : public CLI::Formatter {
 public:
  std::string make_help(const CLI::App* app, std::string name,
                        CLI::AppFormatMode mode) const override {
    if (mode == CLI::AppFormatMode::Sub) return CLI::Formatter::make_help(app, name, mode);
    std::string text = make_description(app) + make_usage(app, name) + make_positionals(app);
    for (const std::string& group : app->get_groups())  // of flags that name none
      if (std::find(kFlagGroups.begin(), kFlagGroups.end(), group) == kFlagGroups.end())
        text += make_one(*app, group);
    for (const std::string_view group : kFlagGroups) text += make_one(*app, std::string(group));
    return text + make_subcommands(app, mode) + "\n" + make_footer(app);
  }

  // An argument that is a flag too is required once, as either of them.
  std::string make_option(const CLI::Option* option, bool is_positional) const override {
    if (!option->get_required() || !option->get_positional() || !option->nonpositional())
      return CLI::Formatter::make_option(option, is_positional);
    std::string kind = make_option_opts(option), help = make_option_desc(option);
    if (is_positional)
      help += ", here or by a flag";
    else
      kind = CLI::detail::find_and_replace(kind, " " + get_label("REQUIRED"), "");
    std::ostringstream out;
    CLI::detail::format_help(out, make_option_name(option, is_positional) + kind, help,
                             column_width_);
    return out.str();
  }

 private:
  std::string make_one(const CLI::App& app, const std::string& group) const {
    const std::vector<const CLI::Option*> options = app.get_options([&](const CLI::Option* option) {
      return option->get_group() == group && option->nonpositional();
    });
    return group.empty() || options.empty() ? std::string() : make_group(group, false, options);
  }
};

}  // namespace

Flag* Flag::required() {
  option_->required();
  return this;
}

Flag* Flag::capture_default_str() {
  option_->capture_default_str();
  return this;
}

Flag* Flag::check(const FlagCheck& check) {
  option_->check(CLI::Validator(
      [complaint = check.complaint](std::string& text) { return complaint(text); }, check.range));
  return this;
}

Flag* Flag::delimiter(char delimiter) {
  option_->delimiter(delimiter);
  return this;
}

Flag* Flag::envname(const std::string& name) {
  option_->envname(name);
  return this;
}

Flag* Flag::group(std::string_view name) {
  option_->group(std::string(name));
  return this;
}

Flag* Flag::excludes(const std::string& name) {
  option_->excludes(name);
  return this;
}

Command* Command::add_subcommand(const std::string& name, const std::string& help) {
  return commands_.emplace_back(std::make_unique<Command>(*app_->add_subcommand(name, help))).get();
}

void Command::require_subcommand() {
  app_->require_subcommand(1);
}

void Command::footer(const std::string& text) {
  app_->footer(text);
}

void Command::callback(std::function<void()> run) {
  app_->callback(std::move(run));
}

template <typename T>
Flag* Command::add_option(const std::string& names, T& value, const std::string& help) {
  return keep(app_->add_option(names, value, help));
}

Flag* Command::add_flag(const std::string& names, bool& value, const std::string& help) {
  return keep(app_->add_flag(names, value, help));
}

Flag* Command::add_flag_callback(const std::string& names, std::function<void()> given,
                                 const std::string& help) {
  return keep(app_->add_flag_callback(names, std::move(given), help));
}

size_t Command::count(const std::string& name) const {
  const CLI::Option* option = app_->get_option_no_throw(name);
  return option == nullptr ? 0 : option->count();
}

Flag* Command::keep(CLI::Option* option) {
  return &flags_.emplace_back(*option);
}

CommandLine::CommandLine(const std::string& name, const std::string& description,
                         const std::string& version)
    : app_(std::make_unique<CLI::App>(description, name)), root_(std::make_unique<Command>(*app_)) {
  app_->formatter(std::make_shared<GroupedHelp>());  // which every command inherits
  app_->require_subcommand(0, 1);
  if (!version.empty()) app_->set_version_flag("--version", version);
}

CommandLine::~CommandLine() = default;

void CommandLine::run(int argc, char** argv) {
  check_all_values(*app_);
  const bool has_commands = !app_->get_subcommands({}).empty();
  // "help run" is "run --help".
  std::vector<const char*> words(argv, argv + argc);
  if (has_commands && argc > 1 && words[1] == std::string_view("help")) {
    words.erase(words.begin() + 1);
    words.push_back("--help");
  }
  try {
    app_->parse(static_cast<int>(words.size()), words.data());
    if (has_commands && app_->get_subcommands().empty()) fmt::print("{}", app_->help());
  } catch (const CLI::CallForHelp& help) {
    const std::string unknown = unknown_command_message(*app_);
    if (!unknown.empty()) throw Error(ErrorCode::kUsage, unknown);
    app_->exit(help);
  } catch (const CLI::CallForVersion& asked) {
    app_->exit(asked);
  } catch (const CLI::ParseError& error) {
    throw Error(ErrorCode::kUsage, usage_message(*app_, error));
  }
}

using Pairs = std::vector<std::pair<int32_t, float>>;

template Flag* Command::add_option(const std::string&, std::string&, const std::string&);
template Flag* Command::add_option(const std::string&, int32_t&, const std::string&);
template Flag* Command::add_option(const std::string&, int64_t&, const std::string&);
template Flag* Command::add_option(const std::string&, uint32_t&, const std::string&);
template Flag* Command::add_option(const std::string&, uint64_t&, const std::string&);
template Flag* Command::add_option(const std::string&, float&, const std::string&);
template Flag* Command::add_option(const std::string&, double&, const std::string&);
template Flag* Command::add_option(const std::string&, Pairs&, const std::string&);
template Flag* Command::add_option(const std::string&, std::vector<int32_t>&, const std::string&);
template Flag* Command::add_option(const std::string&, std::vector<int64_t>&, const std::string&);
template Flag* Command::add_option(const std::string&, std::vector<std::string>&,
                                   const std::string&);

}  // namespace foresail
