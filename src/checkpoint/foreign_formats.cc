#include "checkpoint/foreign_formats.h"

#include <fmt/core.h>

#include <algorithm>
#include <vector>

#include "checkpoint/printable_name.h"

namespace foresail {
namespace {

struct Format {
  std::string_view prefix, suffix;  // of the file's name
  const char* what;
};
constexpr Format kFormats[] = {
    {"params.json", "", "the config of an unconverted checkpoint (Mistral's or Meta's own layout)"},
    {"consolidated.", "", "part of an unconverted checkpoint (Mistral's or Meta's own layout)"},
    {"", ".gguf", "a GGUF file"},
    {"pytorch_model", "", "a pickled PyTorch checkpoint"},
};

}  // namespace

std::string foreign_format(const std::filesystem::path& model_dir, const std::string& missing) {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(model_dir, error))
    names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  for (const Format& format : kFormats)
    for (const std::string& name : names)
      if (name.starts_with(format.prefix) && name.ends_with(format.suffix))
        return fmt::format(
            "{} is {}, which is not read, and {} is missing: give the model in Hugging Face layout",
            printable_name(name), format.what, missing);
  return {};
}

}  // namespace foresail
