#include "engine/find_tokenizer.h"
#include "engine/load_tokenizer.h"

#include <filesystem>

namespace foresail {

std::unique_ptr<Tokenizer> find_tokenizer(const std::string& model_path) {
  const std::filesystem::path folder(model_path);
  const bool present = std::filesystem::exists(folder / "tokenizer.json") ||
                       std::filesystem::exists(folder / "tiktoken.model");
  return present ? load_tokenizer(folder) : nullptr;
}

}  // namespace foresail
