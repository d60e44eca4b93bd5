// A command of the foresail program: adds itself to the command line and runs when chosen.
// Data goes to stdout, everything else to stderr. Errors are thrown as foresail::Error.
#pragma once

#include <string>

#include "apps/command_line.h"

namespace foresail {

std::string version_line();  // "foresail 0.1.0 (commit)"

void add_run_command(Command& app);
void add_chat_command(Command& app);
void add_serve_command(Command& app);
void add_generate_command(Command& app);
void add_eval_command(Command& app);
void add_inspect_command(Command& app);
void add_text_commands(Command& app);  // tokenize, detokenize, template
void add_make_model_command(Command& app);
void add_bench_command(Command& app);
void add_env_command(Command& app);
void add_version_command(Command& app);

}  // namespace foresail
