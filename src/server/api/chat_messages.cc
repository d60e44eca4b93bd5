#include "server/api/chat_messages.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/json.h"

namespace foresail {
namespace {

constexpr std::array<std::string_view, 5> kRoles = {"system", "developer", "user", "assistant",
                                                    "tool"};

struct Fault {
  std::string param, message;
};

std::string text_of_parts(const OrderedJson& parts, const std::string& where) {
  std::string text;
  for (size_t i = 0; i < parts.size(); ++i) {
    const OrderedJson& part = parts[i];
    const std::string here = fmt::format("{}[{}]", where, i);
    if (!part.is_object() || !part.contains("type") || !part["type"].is_string())
      throw Fault{here, "must be an object with a type"};
    const std::string type = part["type"].get<std::string>();
    if (type != "text")
      throw Fault{here, fmt::format("of type \"{}\" is not supported: this model reads text only",
                                    type.substr(0, 60))};
    if (!part.contains("text") || !part["text"].is_string())
      throw Fault{here, "must have a string \"text\""};
    if (i > 0) text += '\n';
    text += part["text"].get_ref<const std::string&>();
  }
  return text;
}

void check_tool_calls(const OrderedJson& calls, const std::string& where) {
  if (!calls.is_array()) throw Fault{where, "must be a list"};
  for (size_t i = 0; i < calls.size(); ++i) {
    const OrderedJson& call = calls[i];
    const std::string here = fmt::format("{}[{}].function", where, i);
    if (!call.is_object() || !call.contains("function") || !call["function"].is_object())
      throw Fault{here, "must be an object"};
    const OrderedJson& function = call["function"];
    if (!function.contains("name") || !function["name"].is_string())
      throw Fault{here, "must have a string \"name\""};
  }
}

OrderedJson read_message(const OrderedJson& given, const std::string& where) {
  if (!given.is_object()) throw Fault{where, "must be an object"};
  OrderedJson message = given;
  if (!message.contains("role") || !message["role"].is_string())
    throw Fault{where + ".role", "must be a string"};
  const std::string role = message["role"].get<std::string>();
  if (std::find(kRoles.begin(), kRoles.end(), role) == kRoles.end())
    throw Fault{where + ".role", fmt::format("must be one of {}, not \"{}\"",
                                             fmt::join(kRoles, ", "), role.substr(0, 60))};
  if (role == "developer") message["role"] = "system";
  // The other name of it.
  if (message.contains("reasoning") && !message.contains("reasoning_content"))
    message["reasoning_content"] = message["reasoning"];
  const bool calls_tools = message.contains("tool_calls") && !message["tool_calls"].is_null();
  if (calls_tools) check_tool_calls(message["tool_calls"], where + ".tool_calls");
  if (!calls_tools && message.contains("tool_calls")) message.erase("tool_calls");
  const bool has_content = message.contains("content") && !message["content"].is_null();
  if (!has_content) {
    if (role != "assistant" || !calls_tools) throw Fault{where + ".content", "is missing"};
    message["content"] = nullptr;
    return message;
  }
  const OrderedJson content = message["content"];
  if (content.is_array())
    message["content"] = text_of_parts(content, where + ".content");
  else if (!content.is_string())
    throw Fault{where + ".content", "must be a string or a list of parts"};
  return message;
}

}  // namespace

void read_messages(JsonObject& fields, OrderedJson& messages) {
  const OrderedJson* given = fields.find("messages");
  if (fields.fault()) return;
  if (given == nullptr) return fields.refuse("messages", "is missing");
  if (!given->is_array() || given->empty())
    return fields.refuse("messages", "must be a list of at least one message");
  try {
    for (size_t i = 0; i < given->size(); ++i)
      messages.push_back(read_message((*given)[i], fmt::format("messages[{}]", i)));
  } catch (const Fault& fault) {
    fields.refuse(fault.param, fault.message);
  }
}

}  // namespace foresail
