// What a chat template is rendered with: a conversation and the variables beside it. A plain value.
#pragma once

#include <ctime>
#include <optional>
#include <string>
#include <string_view>

#include "base/json.h"

namespace foresail {

struct RenderInput {
  OrderedJson messages = OrderedJson::array();
  OrderedJson tools;      // null: none
  OrderedJson documents;  // null: none
  bool add_generation_prompt = false;
  OrderedJson extra = OrderedJson::object();  // further variables, such as enable_thinking
  // Left out: those of the model, or undefined when it has none.
  std::optional<std::string> bos_token, eos_token;
  std::optional<std::time_t> now;  // for strftime_now; left out: the clock
};

// Whether a variable of this name is one of the above, which those in `extra` may not replace.
inline bool is_given_to_templates(std::string_view name) {
  return name == "messages" || name == "tools" || name == "documents" || name == "bos_token" ||
         name == "eos_token" || name == "add_generation_prompt";
}

}  // namespace foresail
