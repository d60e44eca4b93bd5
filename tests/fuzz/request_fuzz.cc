// Any bytes as the JSON body of each API: refused with a message of one line, or a request whose
// numbers are in range.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "base/json.h"
#include "server/api/generation_spec.h"

namespace {

const foresail::ServedModel& model() {
  static const auto tokenizer =
      foresail::Tokenizer::load(std::string(FORESAIL_SOURCE_DIR) + "/models/tales");
  static const foresail::ServedModel served = [] {
    foresail::ServedModel out;
    out.names = {"m"};
    out.tokenizer = tokenizer.get();
    out.chat_template = std::make_unique<foresail::ChatTemplate>(*foresail::ChatTemplate::parse(
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% for t in m.tool_calls %}"
        "{{ t.function.name }}{% endfor %}{% endfor %}{{ x }}"));
    out.vocab_size = 8192;
    out.max_total_len = 512;
    return out;
  }();
  return served;
}

void check(const foresail::ApiResult<foresail::GenerationSpec>& spec) {
  if (!spec) {
    const foresail::ApiError& error = spec.error();
    if (error.message.empty() || error.status < 400) std::abort();
    if (!foresail::parse_json(foresail::to_json(error))) std::abort();
    return;
  }
  const foresail::SamplingParams& sampling = spec->options.sampling;
  if (!(sampling.temperature >= 0) || !(sampling.top_p > 0) || sampling.top_k < 0) std::abort();
  if (spec->choices < 1 || spec->choices > 8 || spec->prompts.empty()) std::abort();
  for (size_t i = 0; i < spec->prompts.size(); ++i) {
    if (spec->prompts[i].empty()) std::abort();
    if (static_cast<int64_t>(spec->prompts[i].size()) + spec->max_tokens[i] > 512) std::abort();
    for (const int32_t id : spec->prompts[i])
      if (id < 0 || id >= 8192) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto body = foresail::parse_ordered_json(text, {.max_depth = 128});
  if (!body) return 0;
  check(foresail::parse_completion(*body, model(), [] { return true; }));
  check(foresail::parse_chat(*body, model(), [] { return true; }));
  check(foresail::parse_generate(*body, model(), [] { return true; }));
  return 0;
}
