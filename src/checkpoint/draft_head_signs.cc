#include "checkpoint/draft_head_signs.h"

#include "base/json.h"

namespace foresail {

std::string first_architecture(const ConfigFields& fields) {
  if (!fields.has("architectures")) return {};
  const Json& list = fields.at("architectures");
  if (!list.is_array() || list.empty() || !list[0].is_string())
    fields.fail("architectures", "it must be a list of class names");
  return list[0].get<std::string>();
}

DraftHeadSigns draft_head_signs(const ConfigFields& fields, const std::string& architecture) {
  if (architecture.find("Eagle3") != std::string::npos || fields.has("draft_vocab_size") ||
      fields.has("eagle_config"))
    return DraftHeadSigns::kEagle3;
  if (architecture.find("Eagle") != std::string::npos ||
      fields.text_or("model_type", "") == "eagle")
    return DraftHeadSigns::kEagle;
  return DraftHeadSigns::kNone;
}

}  // namespace foresail
