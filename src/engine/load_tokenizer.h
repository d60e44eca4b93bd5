// The tokenizer of a model folder, after a first look at the folder: its faults are reported in
// that order, and a tokenizer of another model is refused.
#pragma once

#include <memory>
#include <string>

#include "text/tokenizer.h"

namespace foresail {

// Throws Error{kModel}.
std::unique_ptr<Tokenizer> load_tokenizer(const std::string& model_path);
// Null when the folder has none that is read: then requests come and go as token ids.
std::unique_ptr<Tokenizer> find_tokenizer(const std::string& model_path);

// Where the model has a begin token, no prompt gets it, and its files do not say whether one
// should: one line, or empty. Some families want none, so nothing is guessed.
std::string begin_token_warning(const std::string& model_path, const Tokenizer& tokenizer);

}  // namespace foresail
