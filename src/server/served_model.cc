#include "server/served_model.h"

#include <algorithm>

namespace foresail {

std::vector<int32_t> ServedModel::shortest_prompt() const {
  return {tokenizer == nullptr ? 0 : tokenizer->bos_id().value_or(0)};
}

bool ServedModel::has_name(std::string_view name) const {
  return (!path.empty() && name == path) ||
         std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace foresail
