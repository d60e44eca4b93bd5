// How a program ends: by its work, or by an error in one line on stderr and the exit status that
// its kind has (base/error.h). Output is what stdout is for.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "apps/command_line.h"

namespace foresail {

// The exit status of what `line` was asked for.
int run_program(CommandLine& line, int argc, char** argv);

// A program of one command, which `add_flags` gives its flags and its callback.
int run_program(const std::string& name, const std::string& description, int argc, char** argv,
                const std::function<void(Command& command)>& add_flags);

// A line about the program itself on stderr: "warning: ..", or what a command has put in its place.
void print_line(std::string_view kind, std::string_view message);
using LinePrinter = void (*)(std::string_view kind, std::string_view message);
// Before there are other threads.
void print_lines_with(LinePrinter printer);

// The errors of base/error.h for CUDA sources: their compiler cannot read what it includes.
[[noreturn]] void throw_usage_error(const std::string& message);
[[noreturn]] void throw_device_error(const std::string& message);

}  // namespace foresail
