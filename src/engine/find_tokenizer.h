// The tokenizer of a model folder, where there is one.
#pragma once

#include <memory>
#include <string>

#include "text/tokenizer.h"

namespace foresail {

// Null when the folder has none: then requests come and go as token ids.
std::unique_ptr<Tokenizer> find_tokenizer(const std::string& model_path);

}  // namespace foresail
