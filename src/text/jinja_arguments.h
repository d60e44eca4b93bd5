// Evaluated arguments of a call, and their binding to parameter names.
#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "text/jinja_value.h"

namespace foresail::jinja {

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;

  const Value* find(std::string_view name) const;
};

// Arguments by parameter position. Surplus, unknown and doubled ones throw.
class Bound {
 public:
  Bound(std::string_view callee, const Arguments& arguments,
        std::initializer_list<const char*> names);

  bool has(size_t i) const { return values_[i] != nullptr; }
  bool has_value(size_t i) const { return has(i) && !values_[i]->is(Kind::kNone); }
  const Value& operator[](size_t i) const { return *values_[i]; }
  const Value& required(size_t i) const;
  Integer integer(size_t i, Integer fallback) const;  // throws on anything but an integer
  bool truthy(size_t i, bool fallback) const { return has(i) ? is_truthy(*values_[i]) : fallback; }
  const Text& string(size_t i) const;  // required, throws on anything but a string

 private:
  std::string callee_;
  std::vector<const char*> names_;
  std::vector<const Value*> values_;
};

}  // namespace foresail::jinja
