#include "server/served_model.h"

#include <algorithm>

namespace foresail {

bool ServedModel::has_name(std::string_view name) const {
  return (!path.empty() && name == path) ||
         std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace foresail
