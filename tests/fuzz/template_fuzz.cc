// Any bytes as a chat template over a fixed conversation: no crash, no hang, errors of one line.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "text/chat_template.h"
#include "text/render_input.h"

namespace {

foresail::jinja::Limits small_limits() {
  foresail::jinja::Limits limits;
  // Small, so that a loop that runs into them costs milliseconds even under sanitizers.
  limits.max_output_bytes = 64 << 10;
  limits.max_string_bytes = 64 << 10;
  limits.max_heap_bytes = 4 << 20;
  limits.max_items = 2'000;
  limits.max_range = 1'000;
  limits.max_steps = 10'000;
  return limits;
}

const foresail::RenderInput& conversation() {
  static const foresail::RenderInput input = [] {
    foresail::RenderInput out;
    out.messages = foresail::OrderedJson::parse(R"([
      {"role": "system", "content": "be brief"},
      {"role": "user", "content": [{"type": "text", "text": "h\u00e9llo <b>"}], "n": 3, "f": 1.5},
      {"role": "assistant", "content": "<think>a</think>b", "tool_calls":
        [{"function": {"name": "f", "arguments": {"x": [1, null, true]}}}]},
      {"role": "tool", "content": "\ud83d\ude00"}])");
    out.tools =
        foresail::OrderedJson::parse(R"([{"function": {"name": "f", "parameters": {"a": {}}}}])");
    out.add_generation_prompt = true;
    out.bos_token = "<s>";
    out.now = 1700000000;
    return out;
  }();
  return input;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto chat = foresail::ChatTemplate::parse(
      std::string(reinterpret_cast<const char*>(data), size), small_limits());
  if (!chat) return 0;
  const auto pieces = chat->render_pieces(conversation());
  if (!pieces) return 0;
  for (const auto& piece : *pieces) {
    if (piece.text.empty()) std::abort();
  }
  return 0;
}
