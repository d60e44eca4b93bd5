// Any output of a chat model, cut anywhere: read the same as in one piece, and nothing is lost that
// is no marker.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "text/chat_output_parser.h"

namespace {

using foresail::ChatDelta;
using foresail::ChatOutputParser;
using foresail::ChatSyntax;

std::string read(const ChatSyntax& syntax, std::string_view text, size_t piece_bytes, bool reasons,
                 bool cut) {
  ChatOutputParser parser(syntax, {.starts_in_reasoning = reasons, .call_id_prefix = "c"});
  std::string reasoning, content, calls;
  int index = -1;
  const auto add = [&](const ChatDelta& delta) {
    reasoning += delta.reasoning;
    content += delta.content;
    for (const foresail::ToolCallDelta& call : delta.calls) {
      if (call.index != index && call.index != index + 1) std::abort();
      if (call.index > index && call.id.empty()) std::abort();
      index = call.index;
      if (!call.id.empty()) calls += "|" + call.id + "|" + call.name + "|";
      calls += call.arguments;
    }
  };
  for (size_t at = 0; at < text.size(); at += piece_bytes) {
    ChatDelta delta;
    parser.push(text.substr(at, piece_bytes), -1, delta);
    add(delta);
  }
  ChatDelta delta;
  parser.finish(delta, cut);
  add(delta);
  if (parser.call_count() != index + 1) std::abort();
  return reasoning + "\x1" + content + "\x1" + calls;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 2, size - 2);
  static const char* const kTools[] = {"deepseek_v3", "deepseek_v31", "kimi_k2"};
  ChatSyntax syntax;
  syntax.tools = foresail::find_tool_syntax(kTools[data[0] % 3]);
  if (data[0] & 4) syntax.reasoning = foresail::find_reasoning_syntax("deepseek_r1");
  const bool reasons = syntax.reasoning != nullptr && (data[0] & 8) != 0;
  const bool cut = (data[0] & 16) != 0;
  if (read(syntax, text, 1 + data[1] % 7, reasons, cut) != read(syntax, text, size, reasons, cut))
    std::abort();
  return 0;
}
