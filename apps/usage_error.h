// What a user got wrong on the command line, in our words: one line that says what to change.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace foresail {

// `app` is the whole command line after the failed parse.
std::string usage_message(const CLI::App& app, const CLI::ParseError& error);

// A word where one of the commands should be; empty: there is none, or it is one.
std::string unknown_command_message(const CLI::App& app);

}  // namespace foresail
