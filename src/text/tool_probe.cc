#include "text/tool_probe.h"

#include "text/render_input.h"

namespace foresail {

bool leaves_out_tools(const ChatTemplate& chat_template) {
  constexpr const char* kName = "probe_7f3a91c4";
  const OrderedJson parameters =
      object_of({{"type", "object"}, {"properties", OrderedJson::object()}});
  RenderInput input{.add_generation_prompt = true};
  input.tools = OrderedJson::array({object_of(
      {{"type", "function"},
       {"function",
        object_of({{"name", kName}, {"description", "a"}, {"parameters", parameters}})}})});
  const auto message = [](const char* role) {
    return object_of({{"role", role}, {"content", "a"}});
  };
  bool rendered = false;
  // Some templates refuse a system message, others list tools only beside one.
  for (const OrderedJson& messages : {OrderedJson::array({message("user")}),
                                      OrderedJson::array({message("system"), message("user")})}) {
    input.messages = messages;
    const Result<std::string> text = chat_template.render(input);
    if (!text) continue;
    if (text->find(kName) != text->npos) return false;
    rendered = true;
  }
  return rendered;
}

}  // namespace foresail
