// Lines about requests and the life of the server, as text or as JSON objects, on standard error.
// Never holds prompts, outputs or keys. Any thread; a line is written whole.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json_types.h"

namespace foresail {

enum class LogFormat { kText, kJson, kOff };

class Log {
 public:
  explicit Log(LogFormat format) : format_(format) {}

  // `fields` in this order: {"status": 200, ...}
  void write(std::string_view event, const OrderedJson& fields) const;

 private:
  LogFormat format_;
};

}  // namespace foresail
