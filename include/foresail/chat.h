// A conversation, which the model's own chat template turns into a prompt. Plain values.
#pragma once

#include <string>
#include <vector>

namespace foresail {

struct ChatMessage {
  std::string role;  // "system", "user", "assistant", "tool"
  std::string content;
  // A JSON object of what else the template reads of a message: "tool_calls", "tool_call_id", ...
  std::string fields = {};
};

struct Chat {
  std::vector<ChatMessage> messages;
  bool add_generation_prompt = true;  // ends where the assistant begins
  std::string tools = {};             // a JSON list of tools, as OpenAI's API takes them
  // A JSON object of further template variables: {"enable_thinking": false}
  std::string variables = {};
};

}  // namespace foresail
