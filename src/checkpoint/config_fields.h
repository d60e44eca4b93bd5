// Typed access to the fields of one JSON object of a config file.
// Every failure is Error{kModel}: one line with file, key, value and what is allowed.
// Borrows the JSON; it must outlive the fields.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/json_types.h"

namespace foresail {

class ConfigFields {
 public:
  // `where` names the file, `path` the object inside it ("" for the top level).
  ConfigFields(const Json& object, std::string where, std::string path = {});

  const Json& object() const { return *object_; }
  // Present and not null.
  bool has(std::string_view key) const;
  const Json& at(std::string_view key) const;  // throws when absent

  int64_t integer(std::string_view key, int64_t low, int64_t high) const;
  int64_t integer_or(std::string_view key, int64_t low, int64_t high, int64_t fallback) const;
  double number(std::string_view key, double low, double high) const;
  double number_or(std::string_view key, double low, double high, double fallback) const;
  std::optional<double> optional_number(std::string_view key, double low, double high) const;
  bool boolean_or(std::string_view key, bool fallback) const;
  std::string text(std::string_view key) const;
  std::string text_or(std::string_view key, std::string_view fallback) const;
  ConfigFields child(std::string_view key) const;

  // "FILE: KEY is VALUE: <advice>"
  [[noreturn]] void fail(std::string_view key, std::string_view advice) const;
  // "FILE: KEY <advice>"
  [[noreturn]] void refuse(std::string_view key, std::string_view advice) const;
  const std::string& where() const { return where_; }
  std::string full_key(std::string_view key) const;

 private:
  const Json* object_;
  std::string where_;
  std::string path_;
};

}  // namespace foresail
