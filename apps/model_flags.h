// The flags that every command which loads a model shares.
#pragma once

#include <memory>

#include "apps/command.h"
#include "engine/load_tokenizer.h"
#include "engine/loaded_model.h"
#include "text/tokenizer.h"

namespace foresail {

struct ModelFlags {
  ModelOptions options;
  std::string speculative_algorithm = "NONE";
  int num_draft_tokens = 0;  // 0: not given
  int draft_width = 1;
  double simulate_accept_length = 0.0;  // 0: off
  bool quiet = false;
  std::string quiet_help = "no start-up line";
  bool explain_plan = false;
  const Command* command = nullptr;  // which flags were given
};

// Adds MODEL and the loading flags. `speculative`: also the --speculative-* flags.
void add_model_flags(Command& command, ModelFlags& flags, bool speculative);

// Sets the parts of `options` that flags hold as text. Throws Error{kUsage}.
void resolve_speculation(ModelFlags& flags);
// On stderr, where prompts may lack their begin token. A null tokenizer: there is none to warn of.
void warn_of_begin_token(const std::string& model_path, const Tokenizer* tokenizer);
// Loads with a progress bar on a terminal, and says what was chosen (kernels, threads, memory).
std::unique_ptr<LoadedModel> load_model(ModelFlags& flags);

}  // namespace foresail
