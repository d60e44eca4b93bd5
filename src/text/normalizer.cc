#include "text/normalizer.h"

#include "base/error.h"
#include "base/json.h"
#include "text/canonical_composition.h"
#include "text/json_fields.h"

namespace foresail {
namespace {
constexpr int kMaxDepth = 8;
}

Normalizer Normalizer::parse(const Json& json, const std::string& where) {
  Normalizer out;
  if (!json.is_null()) out.parse_step(json, where, 0);
  return out;
}

void Normalizer::parse_step(const Json& json, const std::string& where, int depth) {
  const JsonFields step(json, where);
  const std::string_view type = step.text("type");
  if (depth > kMaxDepth) throw_model_error("{}: nested too deep", where);
  if (type == "Sequence") {
    const Json& parts = step.array("normalizers");
    for (size_t i = 0; i < parts.size(); ++i)
      parse_step(parts[i], fmt::format("{}[{}]", where, i), depth + 1);
  } else if (type == "NFC") {
    nfc_ = true;
  } else {
    throw_model_error("{}: unsupported normalizer \"{}\"", where, shown(type));
  }
}

std::string Normalizer::apply(std::string_view text) const {
  return nfc_ ? canonically_composed(text) : std::string(text);
}

}  // namespace foresail
