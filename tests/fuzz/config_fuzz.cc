// Any text as config.json (and as a shard index): refused in one line, or a model whose numbers
// are finite and that writes back to an equal config.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/error.h"
#include "checkpoint/config_writer.h"
#include "checkpoint/model_config.h"
#include "checkpoint/shard_index.h"
#include "checkpoint/tensor_list.h"

namespace {

template <typename Action>
void one_line_or_fine(Action&& action) {
  try {
    action();
  } catch (const foresail::Error& error) {
    if (std::string_view(error.what()).find('\n') != std::string_view::npos) std::abort();
  }
}

void exercise(const std::string& text) {
  const foresail::ModelConfig config = foresail::parse_model_config(text, "fuzz");
  if (!std::isfinite(config.softmax_scale()) || !std::isfinite(config.rope_amplitude(1)))
    std::abort();
  for (const int64_t context_len : {int64_t{1}, int64_t{1} << 40})
    for (const double frequency : config.inv_freq(context_len))
      if (!std::isfinite(frequency)) std::abort();
  if (config.moe.expert_count * config.layer_count < 1000)
    foresail::total_of(foresail::all_tensors(config));
  const std::string written = foresail::to_config_json(config);
  const foresail::ModelConfig again = foresail::parse_model_config(written, "written");
  if (again.layer_count != config.layer_count || again.moe.top_k != config.moe.top_k ||
      again.eos_ids != config.eos_ids || again.rope.interleaved != config.rope.interleaved)
    std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  one_line_or_fine([&] { exercise(text); });
  one_line_or_fine([&] { foresail::parse_shard_index(text, "fuzz"); });
  return 0;
}
