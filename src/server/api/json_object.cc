#include "server/api/json_object.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/json.h"

namespace foresail {
namespace {

constexpr size_t kMaxBiases = 4096;
constexpr size_t kMaxToldNameBytes = 40;

bool is_name(std::string_view text) {
  return text.size() <= kMaxToldNameBytes && std::all_of(text.begin(), text.end(), [](char c) {
           return c == '_' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') ||
                  (c >= 'A' && c <= 'Z');
         });
}

const char* type_name(const OrderedJson& value) {
  if (value.is_number_float()) return "a number";
  if (value.is_number()) return "an integer";
  if (value.is_string()) return "a string";
  if (value.is_boolean()) return "a boolean";
  if (value.is_array()) return "a list";
  return value.is_object() ? "an object" : "null";
}

}  // namespace

std::optional<int64_t> json_integer(const OrderedJson& value) {
  if (value.is_number_float()) {
    const double number = value.get<double>();
    constexpr double kExact = 9007199254740992.0;  // 2^53
    if (std::trunc(number) != number || std::abs(number) > kExact) return std::nullopt;
    return static_cast<int64_t>(number);
  }
  if (!value.is_number_integer()) return std::nullopt;
  if (value.is_number_unsigned() && !std::in_range<int64_t>(value.get<uint64_t>()))
    return std::nullopt;
  return value.get<int64_t>();
}

JsonObject::JsonObject(const OrderedJson& object, std::string path)
    : object_(object), path_(std::move(path)) {}

const OrderedJson* JsonObject::find(std::string_view name) const {
  const auto found = object_.find(name);
  if (found == object_.end()) return nullptr;
  read_.push_back(&*found);
  return found->is_null() ? nullptr : &*found;
}

void JsonObject::add_unread(size_t most, std::vector<std::string>& out) const {
  for (const auto& [name, value] : object_.items()) {
    if (out.size() >= most) return;
    if (is_name(name) && std::find(read_.begin(), read_.end(), &value) == read_.end())
      out.push_back(full_name(name));
  }
}

void JsonObject::refuse(std::string_view name, const std::string& message) {
  if (fault_) return;
  const std::string param = full_name(name);
  fault_ = InputError{fmt::format("'{}' {}", param, message), param};
}

std::optional<int64_t> JsonObject::integer_within(std::string_view name, int64_t least,
                                                  int64_t most) {
  const OrderedJson* value = find(name);
  if (value == nullptr || fault_) return std::nullopt;
  const auto number = json_integer(*value);
  if (number && *number >= least && *number <= most) return number;
  if (!value->is_number())
    refuse(name, fmt::format("must be an integer, not {}", type_name(*value)));
  else
    refuse(name,
           fmt::format("must be an integer from {} to {}, not {}", least, most, value->dump()));
  return std::nullopt;
}

void JsonObject::number(std::string_view name, double least, double most, float& out) {
  const OrderedJson* value = find(name);
  if (value == nullptr || fault_) return;
  if (!value->is_number())
    return refuse(name, fmt::format("must be a number, not {}", type_name(*value)));
  const double number = value->get<double>();
  if (!(number >= least && number <= most))
    return refuse(name, fmt::format("must be from {} to {}, not {}", least, most, value->dump()));
  out = static_cast<float>(number);
}

void JsonObject::boolean(std::string_view name, bool& out) {
  const OrderedJson* value = find(name);
  if (value == nullptr || fault_) return;
  if (!value->is_boolean())
    return refuse(name, fmt::format("must be true or false, not {}", type_name(*value)));
  out = value->get<bool>();
}

void JsonObject::text(std::string_view name, size_t max_bytes, std::string& out) {
  const OrderedJson* value = find(name);
  if (value == nullptr || fault_) return;
  if (!value->is_string())
    return refuse(name, fmt::format("must be a string, not {}", type_name(*value)));
  const auto& text = value->get_ref<const std::string&>();
  if (text.size() > max_bytes)
    return refuse(name, fmt::format("is longer than {} bytes", max_bytes));
  out = text;
}

void JsonObject::texts(std::string_view name, size_t max_count, size_t max_bytes,
                       std::vector<std::string>& out) {
  const OrderedJson* value = find(name);
  if (value == nullptr || fault_) return;
  if (!value->is_string() && !value->is_array())
    return refuse(name, fmt::format("must be a string or a list, not {}", type_name(*value)));
  if (value->is_array() && value->size() > max_count)
    return refuse(name, fmt::format("holds more than {} strings", max_count));
  const OrderedJson list = value->is_array() ? *value : OrderedJson::array({*value});
  std::vector<std::string> texts;
  for (const OrderedJson& item : list) {
    if (!item.is_string())
      return refuse(name, fmt::format("must hold strings, not {}", type_name(item)));
    const auto& text = item.get_ref<const std::string&>();
    if (text.empty()) return refuse(name, "holds an empty string");
    if (text.size() > max_bytes)
      return refuse(name, fmt::format("holds a string longer than {} bytes", max_bytes));
    texts.push_back(text);
  }
  out = std::move(texts);
}

void JsonObject::token_ids(std::string_view name, size_t max_count, std::vector<int32_t>& out) {
  if (const OrderedJson* value = find(name)) token_ids(name, *value, max_count, out);
}

void JsonObject::token_ids(std::string_view name, const OrderedJson& value, size_t max_count,
                           std::vector<int32_t>& out) {
  if (fault_) return;
  if (!value.is_array())
    return refuse(name, fmt::format("must be a list of token ids, not {}", type_name(value)));
  if (value.size() > max_count)
    return refuse(name, fmt::format("holds more than {} token ids", max_count));
  std::vector<int32_t> ids;
  ids.reserve(value.size());
  for (const OrderedJson& item : value) {
    const auto id = json_integer(item);
    if (!id || !std::in_range<int32_t>(*id) || *id < 0)
      return refuse(name,
                    fmt::format("holds {}, which is no token id", json_text(item).substr(0, 60)));
    ids.push_back(static_cast<int32_t>(*id));
  }
  out = std::move(ids);
}

void JsonObject::logit_bias(std::vector<std::pair<int32_t, float>>& out) {
  constexpr std::string_view name = "logit_bias";
  const OrderedJson* value = find(name);
  if (value == nullptr || fault_) return;
  if (!value->is_object())
    return refuse(name, fmt::format("must be an object, not {}", type_name(*value)));
  if (value->size() > kMaxBiases)
    return refuse(name, fmt::format("holds more than {} tokens", kMaxBiases));
  for (const auto& [key, bias] : value->items()) {
    int32_t id = 0;
    const auto error = std::from_chars(key.data(), key.data() + key.size(), id).ec;
    // As 7 has one name, it has one bias: not "07", nor "-0" for 0.
    if (error != std::errc() || id < 0 || key != std::to_string(id))
      return refuse(name, fmt::format("holds \"{}\", which is no token id", key.substr(0, 60)));
    if (!bias.is_number() || !(std::abs(bias.get<double>()) <= 100))
      return refuse(name, fmt::format("for token {} must be from -100 to 100", id));
    out.emplace_back(id, static_cast<float>(bias.get<double>()));
  }
}

}  // namespace foresail
