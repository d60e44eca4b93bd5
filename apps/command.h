// A command of the foresail program: adds itself to the command line and runs when chosen.
// Data goes to stdout, everything else to stderr. Errors are thrown as foresail::Error.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace foresail {

std::string version_line();  // "foresail 0.1.0 (commit)"

void add_run_command(CLI::App& app);
void add_chat_command(CLI::App& app);
void add_serve_command(CLI::App& app);
void add_generate_command(CLI::App& app);
void add_eval_command(CLI::App& app);
void add_inspect_command(CLI::App& app);
void add_text_commands(CLI::App& app);  // tokenize, detokenize, template
void add_make_model_command(CLI::App& app);
void add_bench_command(CLI::App& app);
void add_env_command(CLI::App& app);
void add_version_command(CLI::App& app);

}  // namespace foresail
