// What a user got wrong on the command line, in our words: one line that says what to change.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace foresail {

// `app` is the whole command line after the failed parse.
std::string usage_message(const CLI::App& app, const CLI::ParseError& error);

}  // namespace foresail
