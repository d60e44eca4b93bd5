#include "checkpoint/config_fields.h"

#include <cmath>

#include "base/error.h"
#include "base/json.h"
#include "checkpoint/printable_name.h"

namespace foresail {
namespace {

std::string shown(const Json& value) {
  std::string text = value.dump(-1, ' ', /*ensure_ascii=*/true);
  constexpr size_t kLongest = 60;
  if (text.size() > kLongest) text = text.substr(0, kLongest) + "...";
  return text;
}

}  // namespace

ConfigFields::ConfigFields(const Json& object, std::string where, std::string path)
    : object_(&object), where_(std::move(where)), path_(std::move(path)) {
  if (object.is_object()) return;
  if (path_.empty()) throw_model_error("{}: the file must hold one JSON object", where_);
  throw_model_error("{}: {} is {}: it must be a JSON object", where_, path_, shown(object));
}

std::string ConfigFields::full_key(std::string_view key) const {
  return path_.empty() ? printable_name(key) : fmt::format("{}.{}", path_, printable_name(key));
}

bool ConfigFields::has(std::string_view key) const {
  const auto found = object_->find(key);
  return found != object_->end() && !found->is_null();
}

const Json& ConfigFields::at(std::string_view key) const {
  if (!has(key)) refuse(key, "is absent: this model family needs it");
  return *object_->find(key);
}

void ConfigFields::fail(std::string_view key, std::string_view advice) const {
  throw_model_error("{}: {} is {}: {}", where_, full_key(key), has(key) ? shown(at(key)) : "absent",
                    advice);
}

void ConfigFields::refuse(std::string_view key, std::string_view advice) const {
  throw_model_error("{}: {} {}", where_, full_key(key), advice);
}

int64_t ConfigFields::integer(std::string_view key, int64_t low, int64_t high) const {
  const Json& value = at(key);
  const std::string advice = fmt::format("it must be an integer from {} to {}", low, high);
  if (!value.is_number_integer()) fail(key, advice);
  if (value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX))
    fail(key, advice);
  const int64_t number = value.get<int64_t>();
  if (number < low || number > high) fail(key, advice);
  return number;
}

int64_t ConfigFields::integer_or(std::string_view key, int64_t low, int64_t high,
                                 int64_t fallback) const {
  return has(key) ? integer(key, low, high) : fallback;
}

double ConfigFields::number(std::string_view key, double low, double high) const {
  const Json& value = at(key);
  const std::string advice = fmt::format("it must be a number from {} to {}", low, high);
  if (!value.is_number()) fail(key, advice);
  const double number = value.get<double>();
  if (!(number >= low && number <= high)) fail(key, advice);
  return number;
}

double ConfigFields::number_or(std::string_view key, double low, double high,
                               double fallback) const {
  return has(key) ? number(key, low, high) : fallback;
}

std::optional<double> ConfigFields::optional_number(std::string_view key, double low,
                                                    double high) const {
  if (!has(key)) return std::nullopt;
  return number(key, low, high);
}

bool ConfigFields::boolean_or(std::string_view key, bool fallback) const {
  if (!has(key)) return fallback;
  if (!at(key).is_boolean()) fail(key, "it must be true or false");
  return at(key).get<bool>();
}

std::string ConfigFields::text(std::string_view key) const {
  if (!at(key).is_string()) fail(key, "it must be a string");
  return at(key).get<std::string>();
}

std::string ConfigFields::text_or(std::string_view key, std::string_view fallback) const {
  return has(key) ? text(key) : std::string(fallback);
}

ConfigFields ConfigFields::child(std::string_view key) const {
  return ConfigFields(at(key), where_, full_key(key));
}

}  // namespace foresail
