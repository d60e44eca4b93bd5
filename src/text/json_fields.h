// Typed access to the objects of a parsed JSON file: a wrong type is Error{kModel} that names the
// file and the field, never an exception of the JSON library.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/json_types.h"

namespace foresail {

// Text from an unchecked file, fit for a one-line message: short, valid UTF-8, no control
// characters.
std::string shown(std::string_view text);

class JsonFields {
 public:
  // `where` opens every message: the file, then the path inside it. Both must outlive this.
  JsonFields(const Json& object, std::string where);

  bool has(const char* key) const;  // present and not null
  // A required field.
  std::string_view text(const char* key) const;
  int64_t integer(const char* key) const;
  const Json& array(const char* key) const;
  const Json& object(const char* key) const;
  // An absent or null field takes the default.
  bool flag(const char* key, bool fallback) const;
  std::string_view text(const char* key, std::string_view fallback) const;

  std::string where(const char* key) const;  // "tokenizer.json: model.vocab"
  const std::string& where() const { return where_; }
  const Json& json() const { return object_; }

 private:
  const Json& required(const char* key, const char* type) const;
  const Json& object_;
  std::string where_;
};

}  // namespace foresail
