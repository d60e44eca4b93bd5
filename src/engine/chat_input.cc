#include "engine/chat_input.h"

#include <fmt/format.h>

#include <utility>

namespace foresail {
namespace {

// An empty text is a field left out.
Result<OrderedJson> read_json(const std::string& text, const std::string& field, bool wants_list) {
  if (text.empty()) return OrderedJson();
  Result<OrderedJson> json = parse_ordered_json(text);
  if (!json) return input_error(fmt::format("{}: {}", field, json.error().message), field);
  if (wants_list ? !json->is_array() : !json->is_object())
    return input_error(
        fmt::format("{} must be the text of a JSON {}", field, wants_list ? "list" : "object"),
        field);
  return json;
}

}  // namespace

Result<RenderInput> chat_input(const Chat& chat) {
  RenderInput input;
  for (size_t i = 0; i < chat.messages.size(); ++i) {
    const ChatMessage& message = chat.messages[i];
    OrderedJson entry = object_of({{"role", message.role}, {"content", message.content}});
    const auto fields = read_json(message.fields, fmt::format("messages[{}].fields", i), false);
    if (!fields) return tl::unexpected(fields.error());
    for (const auto& [name, value] : fields->items()) {
      if (entry.contains(name))
        return input_error(fmt::format("messages[{}].fields must not set \"{}\"", i, name),
                           fmt::format("messages[{}].fields", i));
      entry[name] = value;
    }
    input.messages.push_back(std::move(entry));
  }
  auto tools = read_json(chat.tools, "tools", true);
  if (!tools) return tl::unexpected(tools.error());
  if (!tools->empty()) input.tools = *std::move(tools);
  const auto variables = read_json(chat.variables, "variables", false);
  if (!variables) return tl::unexpected(variables.error());
  for (const auto& [name, value] : variables->items()) {
    if (is_given_to_templates(name))
      return input_error(fmt::format("variables must not set \"{}\"", name), "variables");
    input.extra[name] = value;
  }
  input.add_generation_prompt = chat.add_generation_prompt;
  return input;
}

}  // namespace foresail
