#include "apps/field_names.h"

namespace foresail {
namespace {

struct FieldFlag {
  std::string_view field, flag;
};

// Every field that a message of the library names; a test reads its sources for others.
constexpr FieldFlag kFlags[] = {
    {"options.attention_backend", "--attention-backend"},
    {"options.attention_path", "--attention-path"},
    {"options.chunked_prefill_size", "--chunked-prefill-size"},
    {"options.context_length", "--context-length"},
    {"options.device", "--device"},
    {"options.dtype", "--dtype"},
    {"options.fallback_attention_backend", "--fallback-attention-backend"},
    {"options.kv_cache_dtype", "--kv-cache-dtype"},
    {"options.kv_cache_scale", "--kv-cache-scale"},
    {"options.layers", "--layers"},
    {"options.load_format", "--load-format"},
    {"options.max_running_requests", "--max-running-requests"},
    {"options.max_total_tokens", "--max-total-tokens"},
    {"options.mem_fraction_static", "--mem-fraction-static"},
    {"options.model_path", "MODEL"},
    {"options.page_size", "--page-size"},
    {"options.preset", "--preset"},
    {"options.reasoning_parser", "--reasoning-parser"},
    {"options.speculative.algorithm", "--speculative-algorithm"},
    {"options.speculative.draft_model_path", "--speculative-draft-model-path"},
    {"options.speculative.simulate_accept_length", "--speculative-simulate-accept-length"},
    {"options.speculative.steps", "--speculative-num-steps"},
    {"options.threads", "--threads"},
    {"options.tool_call_parser", "--tool-call-parser"},
    {"options.window", "--window"},
    {"request.max_tokens", "--max-tokens"},
};

bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

// A file may be called /tmp/options.device.
bool goes_on(char c) {
  return is_letter(c) || c == '.' || c == '/' || c == '-';
}

const FieldFlag* field_at(std::string_view message, size_t at) {
  if (at > 0 && goes_on(message[at - 1])) return nullptr;
  for (const FieldFlag& entry : kFlags) {
    const size_t end = at + entry.field.size();
    if (message.substr(at).starts_with(entry.field) &&
        (end == message.size() || !is_letter(message[end])))
      return &entry;
  }
  return nullptr;
}

}  // namespace

std::string with_flags(std::string_view message) {
  std::string text;
  for (size_t at = 0; at < message.size();) {
    const FieldFlag* const entry = field_at(message, at);
    if (entry != nullptr)
      text += entry->flag;
    else
      text += message[at];
    at += entry != nullptr ? entry->field.size() : 1;
  }
  return text;
}

}  // namespace foresail
