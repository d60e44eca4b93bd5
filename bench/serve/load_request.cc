#include "bench/serve/load_request.h"

#include <fmt/core.h>

namespace foresail {
namespace {

std::string error_text(const HttpReply& reply) {
  if (!reply.error.empty()) return reply.error;
  const OrderedJson json = OrderedJson::parse(reply.body, nullptr, false);
  if (json.is_object() && json.contains("error") && json["error"].is_object())
    return fmt::format("HTTP {}: {}", reply.status, text_member(json["error"], "message"));
  return fmt::format("HTTP {}: {}", reply.status, reply.body.substr(0, 200));
}

bool holds_text(const OrderedJson& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_string() &&
         !found->get_ref<const std::string&>().empty();
}

}  // namespace

std::string text_member(const OrderedJson& object, const char* name, std::string otherwise) {
  if (!object.is_object()) return otherwise;
  const auto found = object.find(name);
  return found != object.end() && found->is_string() ? found->get<std::string>()
                                                     : std::move(otherwise);
}

int64_t integer_member(const OrderedJson& object, const char* name) {
  if (!object.is_object()) return 0;
  const auto found = object.find(name);
  return found != object.end() && found->is_number_integer() ? found->get<int64_t>() : 0;
}

const char* load_path(LoadApi api) {
  switch (api) {
    case LoadApi::kChat:
      return "/v1/chat/completions";
    case LoadApi::kGenerate:
      return "/generate";
    default:
      return "/v1/completions";
  }
}

std::vector<std::pair<std::string, std::string>> load_fields(const LoadTarget& target) {
  if (target.api_key.empty()) return {};
  return {{"Authorization", "Bearer " + target.api_key}};
}

OrderedJson load_body(const LoadTarget& target, const LoadPrompt& prompt) {
  OrderedJson body;
  if (target.api == LoadApi::kGenerate) {
    if (prompt.ids.empty())
      body["text"] = prompt.text;
    else
      body["input_ids"] = prompt.ids;
    body["sampling_params"] = {{"temperature", target.temperature},
                               {"max_new_tokens", prompt.output_tokens},
                               {"ignore_eos", target.ignore_eos}};
    body["stream"] = true;
  } else {
    body["model"] = target.model;
    if (target.api == LoadApi::kChat && prompt.messages.is_null())
      body["messages"] = {{{"role", "user"}, {"content", prompt.text}}};
    else if (target.api == LoadApi::kChat)
      body["messages"] = prompt.messages;
    else if (prompt.ids.empty())
      body["prompt"] = prompt.text;
    else
      body["prompt"] = prompt.ids;
    body[target.api == LoadApi::kChat ? "max_completion_tokens" : "max_tokens"] =
        prompt.output_tokens;
    body["temperature"] = target.temperature;
    body["stream"] = true;
    body["stream_options"] = {{"include_usage", true}};
    if (target.ignore_eos) body["ignore_eos"] = true;
    if (target.tells_ids) body["return_token_ids"] = true;
  }
  body.update(target.extra);
  return body;
}

void LoadStream::take(std::string_view bytes, LoadResult::Clock::time_point now) {
  for (const char c : bytes)
    if (c != '\r') held_ += c;  // JSON holds none
  for (size_t end; (end = held_.find("\n\n")) != held_.npos; held_.erase(0, end + 2)) {
    const std::string_view one = std::string_view(held_).substr(0, end);
    if (one.starts_with("data:")) event(one.substr(one.starts_with("data: ") ? 6 : 5), now);
  }
}

void LoadStream::event(std::string_view data, LoadResult::Clock::time_point now) {
  if (data == "[DONE]") {
    done_ = true;
    return;
  }
  const OrderedJson json = OrderedJson::parse(data, nullptr, false);
  if (!json.is_object()) {
    result_.error = "an event is no JSON object";
    return;
  }
  if (const auto error = json.find("error"); error != json.end() && !error->is_null()) {
    result_.error =
        error->is_object() ? text_member(*error, "message", "an error event") : json_text(*error);
    return;
  }
  if (api_ == LoadApi::kGenerate) {
    const OrderedJson meta = json.value("meta_info", OrderedJson());
    const int64_t output = integer_member(meta, "completion_tokens");
    if (output > result_.output_tokens)
      result_.chunks.push_back({now, output - result_.output_tokens});
    result_.output_tokens = output;
    result_.prompt_tokens = integer_member(meta, "prompt_tokens");
    return;
  }
  if (const auto usage = json.find("usage"); usage != json.end() && usage->is_object()) {
    result_.prompt_tokens = integer_member(*usage, "prompt_tokens");
    result_.output_tokens = integer_member(*usage, "completion_tokens");
  }
  const auto choices = json.find("choices");
  if (choices == json.end() || !choices->is_array() || choices->empty()) return;
  const OrderedJson& choice = (*choices)[0];
  if (!choice.is_object()) return;
  int64_t tokens = 0;
  if (const auto ids = choice.find("token_ids"); ids != choice.end() && ids->is_array())
    tokens = static_cast<int64_t>(ids->size());
  bool brings = tokens > 0 || holds_text(choice, "text");
  if (const auto delta = choice.find("delta"); delta != choice.end() && delta->is_object()) {
    const auto calls = delta->find("tool_calls");
    brings = brings || holds_text(*delta, "content") || holds_text(*delta, "reasoning_content") ||
             holds_text(*delta, "reasoning") || (calls != delta->end() && !calls->empty());
  }
  if (brings) result_.chunks.push_back({now, tokens});
}

LoadResult run_load_request(const LoadTarget& target, const LoadPrompt& prompt) {
  LoadResult result;
  LoadStream stream(target.api, result);
  HttpCall call{.method = "POST",
                .path = load_path(target.api),
                .body = json_text(load_body(target, prompt)),
                .fields = load_fields(target)};
  call.on_piece = [&](std::string_view bytes) { stream.take(bytes, LoadResult::Clock::now()); };
  result.start = LoadResult::Clock::now();
  const HttpReply reply = http_call(target.address, call);
  if (!result.error.empty()) return result;
  if (!reply.ok())
    result.error = error_text(reply);
  else if (!stream.done())
    result.error = "the stream ended without [DONE]";
  else if (result.chunks.empty())
    result.error = "the stream brought no token";
  // A server that reports no usage: one token a chunk is all that can be known.
  if (result.output_tokens == 0) result.output_tokens = static_cast<int64_t>(result.chunks.size());
  return result;
}

}  // namespace foresail
