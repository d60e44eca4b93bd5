#include "server/api/tool_fields.h"

#include <fmt/core.h>

#include <algorithm>
#include <set>

#include "base/json.h"

namespace foresail {
namespace {

bool is_name(std::string_view name) {
  const auto is_plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '.';
  };
  return !name.empty() && name.size() <= 64 && std::all_of(name.begin(), name.end(), is_plain);
}

void read_functions(JsonObject& fields, const ServedModel& model, ToolRequest& request) {
  const OrderedJson& list = request.listed;
  if (!list.is_array()) return fields.refuse("tools", "must be a list");
  if (list.size() > model.limits.max_tools)
    return fields.refuse("tools", fmt::format("holds more than {} tools", model.limits.max_tools));
  std::set<std::string> names;
  for (size_t i = 0; i < list.size(); ++i) {
    const auto refuse = [&](const std::string& what) {
      fields.refuse("tools", fmt::format("at index {} {}", i, what));
    };
    const OrderedJson& tool = list[i];
    if (!tool.is_object() || tool.value("type", OrderedJson("function")) != "function" ||
        !tool.contains("function") || !tool["function"].is_object())
      return refuse("must be {\"type\": \"function\", \"function\": {..}}");
    const OrderedJson& function = tool["function"];
    const OrderedJson name = function.value("name", OrderedJson());
    if (!name.is_string() || !is_name(name.get_ref<const std::string&>()))
      return refuse("needs a name of at most 64 letters, digits, '_', '-' and '.'");
    if (!names.insert(name.get<std::string>()).second) return refuse("has the name of another");
    const OrderedJson parameters = function.value("parameters", OrderedJson());
    if (!parameters.is_null() && !parameters.is_object())
      return refuse("must have an object as parameters");
    request.functions.push_back({name.get<std::string>(), parameters,
                                 function.value("strict", OrderedJson()) == OrderedJson(true)});
  }
}

void read_choice(JsonObject& fields, ToolRequest& request) {
  const OrderedJson* choice = fields.find("tool_choice");
  const bool any = !request.functions.empty();
  request.choice = any ? ToolRequest::Choice::kAuto : ToolRequest::Choice::kNone;
  if (choice == nullptr || *choice == "auto") return;
  if (*choice == "none") {
    request.choice = ToolRequest::Choice::kNone;
    return;
  }
  if (!any) return fields.refuse("tool_choice", "needs 'tools' to choose from");
  request.choice = ToolRequest::Choice::kRequired;
  if (*choice == "required") return;
  const OrderedJson* const function =
      choice->is_object() && choice->contains("function") ? &(*choice)["function"] : nullptr;
  if (function == nullptr || !function->is_object() || !function->contains("name") ||
      !(*function)["name"].is_string())
    return fields.refuse("tool_choice",
                         "must be \"none\", \"auto\", \"required\" or {\"type\": \"function\", "
                         "\"function\": {\"name\": ..}}");
  const auto& name = (*function)["name"].get_ref<const std::string&>();
  std::erase_if(request.functions, [&](const auto& one) { return one.name != name; });
  if (request.functions.empty())
    fields.refuse("tool_choice",
                  fmt::format("names \"{}\", which 'tools' does not have", name.substr(0, 64)));
}

}  // namespace

bool ToolRequest::constrains() const {
  if (choice == Choice::kRequired) return true;
  return may_call() && std::any_of(functions.begin(), functions.end(),
                                   [](const auto& one) { return one.strict; });
}

ToolRequest read_tools(JsonObject& fields, const ServedModel& model, const OrderedJson& messages) {
  ToolRequest request;
  if (const OrderedJson* tools = fields.find("tools"); tools != nullptr && !tools->empty()) {
    request.listed = *tools;
    read_functions(fields, model, request);
  }
  fields.boolean("parallel_tool_calls", request.parallel);
  if (!fields.fault()) read_choice(fields, request);
  if (fields.fault()) return request;
  if (request.may_call() && model.syntax.tools == nullptr)
    fields.refuse("tools",
                  "is not supported with this model's chat template: start the server with "
                  "--tool-call-parser, or set tool_choice \"none\"");
  for (const OrderedJson& message : messages)
    if (const auto calls = message.find("tool_calls"); calls != message.end() && calls->is_array())
      request.calls_before += static_cast<int64_t>(calls->size());
  return request;
}

}  // namespace foresail
