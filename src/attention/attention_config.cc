#include "attention/attention_config.h"

#include "base/error.h"

namespace foresail {

std::string_view backend_name(AttentionBackend backend) {
  switch (backend) {
    case AttentionBackend::kPaged:
      return "paged";
    case AttentionBackend::kIndexed:
      return "indexed";
    case AttentionBackend::kReference:
      return "reference";
  }
  return "";
}

AttentionBackend parse_attention_backend(const std::string& name) {
  if (name == "paged" || name == "trtllm_mla" || name == "tokenspeed_mla" || name == "flashmla")
    return AttentionBackend::kPaged;
  if (name == "indexed" || name == "flashinfer_mla") return AttentionBackend::kIndexed;
  if (name == "reference") return AttentionBackend::kReference;
  throw_error(ErrorCode::kUsage,
              "options.attention_backend {} is unknown: choose paged (aliases trtllm_mla, "
              "tokenspeed_mla, flashmla), indexed (alias flashinfer_mla) or reference",
              name);
}

std::optional<AttentionPath> parse_attention_path(const std::string& name) {
  if (name == "auto") return std::nullopt;
  if (name == "absorbed") return AttentionPath::kAbsorbed;
  if (name == "expanded") return AttentionPath::kExpanded;
  throw_error(ErrorCode::kUsage,
              "options.attention_path {} is unknown: choose auto, absorbed or expanded", name);
}

}  // namespace foresail
