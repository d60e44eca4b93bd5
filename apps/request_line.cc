#include "apps/request_line.h"

#include <fmt/core.h>

#include <functional>
#include <map>

#include "base/json.h"

namespace foresail {
namespace {

// A setter throws the description of what it wanted instead.
struct Wanted {
  const char* what;
};

template <typename T>
T integer(const Json& value) {
  if (!value.is_number_integer()) throw Wanted{"an integer"};
  const bool fits = value.is_number_unsigned() ? std::in_range<T>(value.get<uint64_t>())
                                               : std::in_range<T>(value.get<int64_t>());
  if (!fits)
    throw Wanted{std::is_unsigned_v<T> ? "0 or a positive integer of 64 bits"
                                       : "an integer nearer to 0"};
  return value.get<T>();
}

float number(const Json& value) {
  if (!value.is_number()) throw Wanted{"a number"};
  return value.get<float>();
}

bool boolean(const Json& value) {
  if (!value.is_boolean()) throw Wanted{"true or false"};
  return value.get<bool>();
}

std::string text(const Json& value) {
  if (!value.is_string()) throw Wanted{"a string"};
  return value.get<std::string>();
}

template <typename T>
std::vector<T> list(const Json& value, T (*item)(const Json&)) {
  if (!value.is_array()) throw Wanted{"a list"};
  std::vector<T> items;
  for (const Json& element : value) items.push_back(item(element));
  return items;
}

using Setter = std::function<void(Request&, const Json&)>;

const std::map<std::string, Setter>& setters() {
  static const std::map<std::string, Setter> table = {
      {"prompt", [](Request& r, const Json& v) { r.prompt = text(v); }},
      {"input_ids", [](Request& r, const Json& v) { r.input_ids = list(v, integer<int32_t>); }},
      {"max_tokens", [](Request& r, const Json& v) { r.max_tokens = integer<int64_t>(v); }},
      {"min_tokens", [](Request& r, const Json& v) { r.min_tokens = integer<int64_t>(v); }},
      {"temperature", [](Request& r, const Json& v) { r.sampling.temperature = number(v); }},
      {"top_p", [](Request& r, const Json& v) { r.sampling.top_p = number(v); }},
      {"top_k", [](Request& r, const Json& v) { r.sampling.top_k = integer<int>(v); }},
      {"min_p", [](Request& r, const Json& v) { r.sampling.min_p = number(v); }},
      {"repetition_penalty",
       [](Request& r, const Json& v) { r.sampling.repetition_penalty = number(v); }},
      {"presence_penalty",
       [](Request& r, const Json& v) { r.sampling.presence_penalty = number(v); }},
      {"frequency_penalty",
       [](Request& r, const Json& v) { r.sampling.frequency_penalty = number(v); }},
      {"seed", [](Request& r, const Json& v) { r.sampling.seed = integer<uint64_t>(v); }},
      {"stop",
       [](Request& r, const Json& v) {
         r.stops = v.is_string() ? std::vector{text(v)} : list(v, text);
       }},
      {"ignore_eos", [](Request& r, const Json& v) { r.ignore_eos = boolean(v); }},
      {"speculative",
       [](Request& r, const Json& v) {
         if (!v.is_boolean())
           r.speculative_steps = integer<int>(v);
         else if (!v.get<bool>())
           r.speculative_steps = 0;
       }},
      {"top_logprobs", [](Request& r, const Json& v) { r.top_logprobs = integer<int>(v); }},
      {"prompt_top_logprobs",
       [](Request& r, const Json& v) { r.prompt_top_logprobs = integer<int>(v); }},
      {"priority", [](Request& r, const Json& v) { r.priority = integer<int>(v); }},
      {"cache_salt", [](Request& r, const Json& v) { r.cache_salt = text(v); }},
  };
  return table;
}

}  // namespace

Result<Request> parse_request_line(const std::string& line, const SamplingParams& defaults) {
  const Result<Json> json = parse_json(line);
  if (!json) return tl::unexpected(json.error());
  if (!json->is_object()) return input_error("a request is a JSON object");
  Request request;
  request.sampling = defaults;
  for (const auto& [name, value] : json->items()) {
    const auto setter = setters().find(name);
    if (setter == setters().end())
      return input_error(fmt::format("unknown field \"{}\"", name), name);
    try {
      setter->second(request, value);
    } catch (const Wanted& wanted) {
      return input_error(fmt::format("\"{}\" must be {}", name, wanted.what), name);
    }
  }
  if (!json->contains("prompt") && !json->contains("input_ids"))
    return input_error("give a prompt or input_ids", "prompt");
  if (!json->contains("prompt") && request.input_ids.empty())
    return input_error("\"input_ids\" is an empty list", "input_ids");
  return request;
}

}  // namespace foresail
