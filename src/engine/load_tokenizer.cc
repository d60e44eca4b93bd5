#include "engine/load_tokenizer.h"

#include <filesystem>

#include "base/error.h"
#include "base/file.h"
#include "checkpoint/model_config.h"

namespace foresail {

std::unique_ptr<Tokenizer> load_tokenizer(const std::string& model_path) {
  const ModelConfig config = read_model_config(model_path);
  auto tokenizer = Tokenizer::load(model_path);
  // The other way round is common: vocabularies are padded to a round number.
  if (static_cast<int64_t>(tokenizer->vocab_size()) > config.vocab_size)
    throw_model_error(
        "{}: the tokenizer has ids up to {} but config.json has vocab_size {}: they belong to "
        "different models",
        model_path, tokenizer->vocab_size() - 1, config.vocab_size);
  return tokenizer;
}

std::unique_ptr<Tokenizer> find_tokenizer(const std::string& model_path) {
  const std::filesystem::path folder(model_path);
  const bool present =
      is_present(folder / "tokenizer.json") || is_present(folder / "tiktoken.model");
  return present ? load_tokenizer(model_path) : nullptr;
}

}  // namespace foresail
