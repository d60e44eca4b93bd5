#include "apps/usage_error.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "apps/nearest_name.h"

namespace foresail {
namespace {

bool all(const CLI::App*) {
  return true;
}

// The innermost command that was chosen: its options are the ones to compare a typo with.
const CLI::App& chosen_command(const CLI::App& app) {
  const CLI::App* current = &app;
  while (!current->get_subcommands().empty()) current = current->get_subcommands()[0];
  return *current;
}

// "foresail bench latency"
std::string full_name(const CLI::App& command) {
  const CLI::App* parent = command.get_parent();
  return parent == nullptr ? command.get_name() : full_name(*parent) + " " + command.get_name();
}

std::vector<std::string> subcommand_names(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::App* sub : command.get_subcommands(all)) names.push_back(sub->get_name());
  return names;
}

std::vector<std::string> flag_names(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options())
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  return names;
}

// An argument by its place in capitals, as in the README; a flag by its longest spelling.
std::string shown_name(const CLI::Option& option) {
  if (!option.get_positional()) return option.get_name();
  std::string name = option.get_name(true);
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return std::toupper(c); });
  return name;
}

std::string first_line(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

std::string unknown_message(const CLI::App& command, const std::string& extra) {
  const bool is_flag = extra.starts_with("-");
  const std::string typed = extra.substr(0, extra.find('='));
  const std::vector<std::string> known = is_flag ? flag_names(command) : subcommand_names(command);
  const std::string near = nearest_name(typed, known);
  const char* kind = is_flag ? "flag" : known.empty() ? "argument" : "command";
  if (typed.starts_with("--ssl"))
    return fmt::format(
        "unknown flag {}: the server speaks plain HTTP; let a proxy terminate TLS in "
        "front of it (SECURITY.md shows how)",
        typed);
  if (!near.empty()) return fmt::format("unknown {} {} (did you mean {}?)", kind, typed, near);
  return fmt::format("unknown {} {}: {} --help lists what there is", kind, typed,
                     full_name(command));
}

std::string missing_message(const CLI::App& command) {
  const std::vector<std::string> commands = subcommand_names(command);
  if (!commands.empty())
    return fmt::format("{} needs a command: choose one of {}", full_name(command),
                       fmt::join(commands, ", "));
  for (const CLI::Option* option : command.get_options())
    if (option->get_required() && option->count() == 0)
      return fmt::format("{} needs {}: {}", full_name(command), shown_name(*option),
                         first_line(option->get_description()));
  return full_name(command) + " --help says what is missing";
}

// The parser's message opens with the option's name, in one of these forms.
const CLI::Option* option_at_fault(const CLI::App& command, std::string_view message) {
  constexpr std::string_view kConversion = "Could not convert: ";
  if (message.starts_with(kConversion)) message.remove_prefix(kConversion.size());
  const std::string name(message.substr(0, message.find_first_of(": ")));
  const CLI::Option* option = command.get_option_no_throw(name);
  // Of a flag that was given a value, without its dashes.
  return option != nullptr ? option : command.get_option_no_throw("--" + name);
}

// The parser says "--one excludes --other".
std::string clash_message(const CLI::ParseError& error) {
  const std::string message = error.what();
  constexpr std::string_view kBetween = " excludes ";
  const size_t between = message.find(kBetween);
  return fmt::format("{} does not go with {}: leave one out", message.substr(0, between),
                     message.substr(between + kBetween.size()));
}

const char* wanted_kind(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  if (type.starts_with("[")) return "a whole number and a number";
  if (type.starts_with("UINT")) return "a whole number, 0 or more,";
  if (type.starts_with("INT")) return "a whole number";
  return type.starts_with("FLOAT") ? "a number" : "another value";
}

std::string wrong_values_message(const CLI::Option& option, const CLI::ParseError& error) {
  const std::string name = shown_name(option);
  const std::string given = fmt::format("{}", fmt::join(option.results(), " "));
  if (option.get_expected_max() == 0) return fmt::format("{} takes no value", name);
  if (dynamic_cast<const CLI::ConversionError*>(&error) != nullptr)
    return fmt::format("{}: choose {} instead of \"{}\"", name, wanted_kind(option), given);
  if (option.count() > 1 && option.get_expected_max() == 1 && option.get_type_size() == 1)
    return fmt::format("{} is given {} times: keep one", name, option.count());
  return fmt::format("{} needs {}: {}", name, option.get_type_size() > 1 ? "two values" : "a value",
                     first_line(option.get_description()));
}

}  // namespace

std::string usage_message(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App& command = chosen_command(app);
  std::vector<std::string> extras = command.remaining();
  if (extras.empty()) extras = app.remaining(true);
  if (!extras.empty()) return unknown_message(command, extras[0]);
  if (dynamic_cast<const CLI::RequiredError*>(&error) != nullptr) return missing_message(command);
  if (dynamic_cast<const CLI::ExcludesError*>(&error) != nullptr) return clash_message(error);
  const CLI::Option* option = option_at_fault(command, error.what());
  const bool is_ours =
      dynamic_cast<const CLI::ValidationError*>(&error) != nullptr;  // flag_checks.h
  return option == nullptr || is_ours ? error.what() : wrong_values_message(*option, error);
}

std::string unknown_command_message(const CLI::App& app) {
  const CLI::App& command = chosen_command(app);
  if (subcommand_names(command).empty()) return {};
  for (const std::string& word : command.remaining())
    if (!word.starts_with("-")) return unknown_message(command, word);
  return {};
}

}  // namespace foresail
