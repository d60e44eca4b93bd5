#include "apps/value_checks.h"

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <set>
#include <string>

#include "apps/flag_checks.h"

namespace foresail {
namespace {

// An empty text, list or message is one; what it means is said by its command.
const std::set<std::string> kMayBeEmpty = {"prompt", "text", "stop", "system", "ids"};

bool may_be_empty(const CLI::Option& option) {
  for (const std::string& name : option.get_lnames())
    if (kMayBeEmpty.count(name) > 0) return true;
  return false;
}

std::string refusal(const char* wanted, const std::string& text) {
  return fmt::format("choose {} instead of \"{}\"", wanted, text);
}

// Without the zeros in front that the parser would take for an octal number.
CLI::Validator plain_digits() {
  return CLI::Validator(
      [](std::string& text) {
        if (const auto value = parse_number<int64_t>(text)) text = std::to_string(*value);
        return std::string();
      },
      "");
}

// "true" is 1 to the parser.
CLI::Validator whole_number() {
  return CLI::Validator(
      [](std::string& text) {
        if (parse_number<int64_t>(text) || parse_number<uint64_t>(text)) return std::string();
        return refusal("a whole number", text);
      },
      "");
}

CLI::Validator natural_number() {
  return CLI::Validator(
      [](std::string& text) {
        if (parse_number<uint64_t>(text)) return std::string();
        return refusal("a whole number, 0 or more,", text);
      },
      "");
}

CLI::Validator finite_number() {
  return CLI::Validator(
      [](std::string& text) {
        if (parse_number<double>(text)) return std::string();
        return refusal("a number", text);
      },
      "");
}

CLI::Validator not_empty() {
  return CLI::Validator(
      [](std::string& text) {
        return text.empty() ? std::string("needs a value, and \"\" is none") : std::string();
      },
      "");
}

void check_values(CLI::Option& option) {
  if (option.get_expected_max() == 0) {
    option.disable_flag_override();
    return;
  }
  const std::string type = option.get_type_name();
  if (type.starts_with("[")) {  // TOKEN BIAS
    option.transform(plain_digits().application_index(0));
    option.check(whole_number().application_index(0));
    option.check(finite_number().application_index(1));
  } else if (type.starts_with("UINT")) {
    option.transform(plain_digits());
    option.check(natural_number());
  } else if (type.starts_with("INT")) {
    option.transform(plain_digits());
    option.check(whole_number());
  } else if (type.starts_with("FLOAT")) {
    option.check(finite_number());
  } else if (!may_be_empty(option)) {
    option.check(not_empty());
  }
}

}  // namespace

void check_all_values(CLI::App& app) {
  for (CLI::Option* option : app.get_options()) check_values(*option);
  for (CLI::App* command : app.get_subcommands({})) check_all_values(*command);
}

}  // namespace foresail
