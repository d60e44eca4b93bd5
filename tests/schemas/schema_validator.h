// An independent judge of JSON against a schema: the plain definition, keyword by keyword.
#pragma once

#include <string>

#include "base/json_types.h"

namespace foresail {

class SchemaValidator {
 public:
  explicit SchemaValidator(const OrderedJson& root) : root_(root) {}

  bool valid(const OrderedJson& value) const { return holds(value, root_); }

 private:
  bool holds(const OrderedJson& value, const OrderedJson& schema) const;
  bool keeps(const OrderedJson& value, const std::string& keyword, const OrderedJson& asked,
             const OrderedJson& schema) const;
  static bool has_type(const OrderedJson& value, const OrderedJson& asked);
  static bool keeps_number(double value, const std::string& keyword, const OrderedJson& asked);
  static bool keeps_string(const std::string& value, const std::string& keyword,
                           const OrderedJson& asked);
  bool keeps_array(const OrderedJson& value, const std::string& keyword, const OrderedJson& asked,
                   const OrderedJson& schema) const;
  bool keeps_object(const OrderedJson& value, const std::string& keyword, const OrderedJson& asked,
                    const OrderedJson& schema) const;

  const OrderedJson& root_;
};

}  // namespace foresail
