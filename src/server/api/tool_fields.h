// The tools of a chat request.
#pragma once

#include <string>
#include <vector>

#include "base/json.h"
#include "server/api/json_object.h"
#include "server/served_model.h"

namespace foresail {

struct ToolRequest {
  struct Function {
    std::string name;
    OrderedJson parameters;  // a schema; null: any object
    bool strict = false;
  };
  enum class Choice { kNone, kAuto, kRequired };

  OrderedJson listed;               // as given, for the template; null: none
  std::vector<Function> functions;  // that may be called: of a named one, it alone
  Choice choice = Choice::kNone;
  bool parallel = true;
  int64_t calls_before = 0;  // in the conversation so far

  bool may_call() const { return choice != Choice::kNone; }
  // Calls have to be kept valid, not only read.
  bool constrains() const;
};

ToolRequest read_tools(JsonObject& fields, const ServedModel& model, const OrderedJson& messages);

}  // namespace foresail
