#include "text/jinja_arguments.h"

#include <fmt/core.h>

#include <algorithm>

namespace foresail::jinja {

const Value* Arguments::find(std::string_view name) const {
  for (const auto& [key, value] : named) {
    if (key == name) return &value;
  }
  return nullptr;
}

Bound::Bound(std::string_view callee, const Arguments& arguments,
             std::initializer_list<const char*> names)
    : callee_(callee), names_(names), values_(names.size(), nullptr) {
  if (arguments.positional.size() > names.size()) {
    throw JinjaError(fmt::format("{}() takes at most {} arguments ({} given)", callee, names.size(),
                                 arguments.positional.size()));
  }
  for (size_t i = 0; i < arguments.positional.size(); ++i) values_[i] = &arguments.positional[i];
  for (const auto& named : arguments.named) {
    const std::string& key = named.first;
    const auto it = std::find(names_.begin(), names_.end(), key);
    if (it == names_.end()) {
      throw JinjaError(fmt::format("{}() got an unexpected keyword argument '{}'", callee, key));
    }
    const Value*& slot = values_[static_cast<size_t>(it - names_.begin())];
    if (slot != nullptr) {
      throw JinjaError(fmt::format("{}() got multiple values for argument '{}'", callee, key));
    }
    slot = &named.second;
  }
}

const Value& Bound::required(size_t i) const {
  if (!has(i)) {
    throw JinjaError(fmt::format("{}() missing required argument '{}'", callee_, names_[i]));
  }
  return *values_[i];
}

Integer Bound::integer(size_t i, Integer fallback) const {
  if (!has(i)) return fallback;
  if (values_[i]->is(Kind::kUndefined)) throw_undefined(*values_[i]);
  if (!values_[i]->is_integral()) {
    throw JinjaError(fmt::format("{}(): '{}' must be an integer, not '{}'", callee_, names_[i],
                                 type_name(*values_[i])));
  }
  return values_[i]->integer;
}

const Text& Bound::string(size_t i) const {
  const Value& value = required(i);
  if (!value.is(Kind::kString)) {
    throw JinjaError(
        fmt::format("{}(): '{}' must be a string, not '{}'", callee_, names_[i], type_name(value)));
  }
  return *value.text;
}

}  // namespace foresail::jinja
