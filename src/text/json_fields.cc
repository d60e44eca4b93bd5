#include "text/json_fields.h"

#include "base/error.h"
#include "base/json.h"
#include "base/utf8.h"

namespace foresail {

std::string shown(std::string_view text) {
  constexpr size_t kMaxBytes = 60;
  std::string out = replace_invalid_utf8(text.substr(0, kMaxBytes));
  for (char& c : out)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) c = '?';
  return out;
}

JsonFields::JsonFields(const Json& object, std::string where)
    : object_(object), where_(std::move(where)) {
  if (!object_.is_object()) throw_model_error("{}: must be an object", where_);
}

std::string JsonFields::where(const char* key) const {
  return fmt::format("{}{}{}", where_, where_.ends_with(".json") ? ": " : ".", key);
}

bool JsonFields::has(const char* key) const {
  const auto found = object_.find(key);
  return found != object_.end() && !found->is_null();
}

const Json& JsonFields::required(const char* key, const char* type) const {
  const auto found = object_.find(key);
  if (found == object_.end()) throw_model_error("{}: is missing", where(key));
  const bool fits = std::string_view(type) == "a string"     ? found->is_string()
                    : std::string_view(type) == "an array"   ? found->is_array()
                    : std::string_view(type) == "an object"  ? found->is_object()
                    : std::string_view(type) == "an integer" ? found->is_number_integer()
                                                             : found->is_boolean();
  if (!fits) throw_model_error("{}: must be {}", where(key), type);
  return *found;
}

std::string_view JsonFields::text(const char* key) const {
  return required(key, "a string").get_ref<const std::string&>();
}

int64_t JsonFields::integer(const char* key) const {
  const Json& value = required(key, "an integer");
  if (value.is_number_unsigned() && value.get<uint64_t>() > INT64_MAX)
    throw_model_error("{}: is too large", where(key));
  return value.get<int64_t>();
}

const Json& JsonFields::array(const char* key) const {
  return required(key, "an array");
}
const Json& JsonFields::object(const char* key) const {
  return required(key, "an object");
}

bool JsonFields::flag(const char* key, bool fallback) const {
  return has(key) ? required(key, "true or false").get<bool>() : fallback;
}

std::string_view JsonFields::text(const char* key, std::string_view fallback) const {
  return has(key) ? text(key) : fallback;
}

}  // namespace foresail
