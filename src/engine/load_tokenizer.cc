#include "engine/load_tokenizer.h"

#include <fmt/format.h>

#include <filesystem>

#include "base/error.h"
#include "base/file.h"
#include "checkpoint/model_config.h"
#include "text/tokenizer_config.h"

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

std::string begin_token_warning(const std::string& model_path, const Tokenizer& tokenizer) {
  constexpr const char* kName = "tokenizer_config.json";
  constexpr uint64_t kMaxBytes = 64ull << 20;
  const std::filesystem::path path = std::filesystem::path(model_path) / kName;
  const bool present = is_present(path);
  const TokenizerConfig config = TokenizerConfig::parse(
      present ? read_text_file(path, kMaxBytes) : std::string(), path.string());
  const std::optional<int64_t> bos = read_model_config(model_path).bos_id;
  if (tokenizer.adds_bos() || config.bos_token || config.add_bos_token || !bos) return {};
  return fmt::format(
      "{}: {} {}: prompts start without the model's begin token {}, which many models write "
      "rubbish after",
      model_path, kName, present ? "names no bos_token" : "is missing", *bos);
}

}  // namespace foresail
