#include "server/api/common_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/json.h"

namespace foresail {
namespace {

constexpr std::array<std::string_view, 23> kUnserved = {"guided_grammar",
                                                        "ebnf",
                                                        "structural_tag",
                                                        "stop_regex",
                                                        "bad_words",
                                                        "allowed_token_ids",
                                                        "use_beam_search",
                                                        "logits_processors",
                                                        "custom_logit_processor",
                                                        "repetition_detection",
                                                        "watermarking",
                                                        "logprob_token_ids",
                                                        "token_ids_logprob",
                                                        "return_tokens_as_token_ids",
                                                        "return_hidden_states",
                                                        "return_routed_experts",
                                                        "prompt_embeds",
                                                        "input_embeds",
                                                        "image_data",
                                                        "video_data",
                                                        "audio_data",
                                                        "lora_path",
                                                        "session_params"};
// Counts of which 0 asks for something too, and the one that does not.
constexpr std::array<std::pair<std::string_view, std::optional<int>>, 3> kUnservedCounts = {
    {{"prompt_logprobs", std::nullopt},
     {"truncate_prompt_tokens", -1},
     {"thinking_token_budget", -1}}};

bool holds_integers(const OrderedJson& list) {
  return !list.empty() && list[0].is_number();
}

}  // namespace

std::optional<ApiError> check_object(const OrderedJson& body) {
  if (body.is_object()) return std::nullopt;
  return api_error(400, "", "the request's body must be a JSON object");
}

std::optional<ApiError> check_model_name(JsonObject& fields, const ServedModel& model) {
  std::string name;
  fields.text("model", kMaxNameBytes, name);
  if (fields.fault()) return api_error(*fields.fault());
  if (name.empty() || model.lax_names || model.has_name(name)) return std::nullopt;
  ApiError error = api_error(404, "model_not_found",
                             fmt::format("The model `{}` does not exist here; this server has `{}`",
                                         name, fmt::join(model.names, "`, `")));
  error.type = "invalid_request_error";
  error.param = "model";
  return error;
}

void read_sampling(JsonObject& fields, const ServedModel& model, float most_temperature,
                   GenerationSpec& spec) {
  SamplingParams& sampling = spec.options.sampling;
  sampling = model.defaults;
  fields.number("temperature", 0, most_temperature, sampling.temperature);
  fields.integer("top_k", -1, INT32_MAX, sampling.top_k);
  sampling.top_k = std::max(sampling.top_k, 0);
  fields.number("top_p", 1e-6, 1, sampling.top_p);
  fields.number("min_p", 0, 1, sampling.min_p);
  fields.number("presence_penalty", -2, 2, sampling.presence_penalty);
  fields.number("frequency_penalty", -2, 2, sampling.frequency_penalty);
  fields.number("repetition_penalty", 1e-3, 1e3, sampling.repetition_penalty);
  fields.logit_bias(sampling.logit_bias);
}

void read_stops(JsonObject& fields, const ServedModel& model, GenerationSpec& spec) {
  Request& options = spec.options;
  const ApiLimits& limits = model.limits;
  fields.texts("stop", limits.max_stops, limits.max_stop_bytes, options.stops);
  fields.token_ids("stop_token_ids", limits.max_stop_tokens, options.stop_token_ids);
  fields.boolean("ignore_eos", options.ignore_eos);
  fields.boolean("skip_special_tokens", options.skip_special);
  fields.boolean("include_stop_str_in_output", options.include_stop);
  fields.boolean("no_stop_trim", options.include_stop);
}

void read_handling(JsonObject& fields, GenerationSpec& spec) {
  Request& options = spec.options;
  fields.text("request_id", kMaxNameBytes, spec.rid);
  fields.text("rid", kMaxNameBytes, spec.rid);
  fields.integer("priority", INT32_MIN, INT32_MAX, options.priority);
  fields.text("cache_salt", kMaxNameBytes, options.cache_salt);
  // One of the two would be lost, and with it what keeps prefixes apart.
  std::string extra_key;
  fields.text("extra_key", kMaxNameBytes, extra_key);
  if (!extra_key.empty() && !options.cache_salt.empty())
    fields.refuse("extra_key", "and 'cache_salt' exclude each other");
  if (!extra_key.empty()) options.cache_salt = extra_key;
  if (fields.has("speculative_num_steps"))
    fields.integer("speculative_num_steps", 0, INT32_MAX, options.speculative_steps.emplace());
}

void read_openai_options(JsonObject& fields, const ServedModel& model, GenerationSpec& spec) {
  read_sampling(fields, model, 2, spec);
  read_stops(fields, model, spec);
  fields.integer("n", 1, model.limits.max_choices, spec.choices);
  spec.seeded = fields.has("seed");
  fields.integer("seed", INT64_MIN, INT64_MAX, spec.options.sampling.seed);
  fields.integer("min_tokens", 0, INT32_MAX, spec.options.min_tokens);
  read_handling(fields, spec);
  fields.boolean("return_token_ids", spec.return_token_ids);
  fields.boolean("return_meta_info", spec.return_meta_info);
  fields.boolean("return_spec_info", spec.return_meta_info);
  fields.boolean("return_draft_info", spec.return_draft_info);
  fields.boolean("stream", spec.stream);
  const OrderedJson* stream_options = fields.find("stream_options");
  if (stream_options == nullptr) return;
  if (!stream_options->is_object()) return fields.refuse("stream_options", "must be an object");
  if (!spec.stream) return fields.refuse("stream_options", "is only allowed when 'stream' is true");
  JsonObject usage(*stream_options, "stream_options.");
  usage.boolean("include_usage", spec.include_usage);
  usage.boolean("continuous_usage_stats", spec.continuous_usage);
  spec.continuous_usage = spec.continuous_usage && spec.include_usage;
  fields.take_fault(usage);
}

bool asks_for_something(const OrderedJson& value) {
  if (value.is_null()) return false;
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_number()) return value.get<double>() != 0;
  if (value.is_string()) return !value.get_ref<const std::string&>().empty();
  return !value.empty();
}

void refuse_unserved(JsonObject& fields, std::span<const std::string_view> further) {
  const auto refuse = [&](std::string_view name) {
    fields.refuse(name, "is not supported by this server: leave it out");
  };
  for (const auto names : {std::span<const std::string_view>(kUnserved), further})
    for (const std::string_view name : names) {
      const OrderedJson* value = fields.find(name);
      if (value != nullptr && asks_for_something(*value)) refuse(name);
    }
  for (const auto& [name, nothing] : kUnservedCounts) {
    const OrderedJson* value = fields.find(name);
    if (value != nullptr && *value != false && !(nothing && *value == *nothing)) refuse(name);
  }
}

void read_prompts(JsonObject& fields, std::string_view name, const ServedModel& model,
                  PromptList& prompts) {
  const OrderedJson* value = fields.find(name);
  if (fields.fault()) return;
  if (value == nullptr) return fields.refuse(name, "is missing");
  if (!value->is_string() && !value->is_array())
    return fields.refuse(name, "must be a string, a list of strings, or token ids");
  prompts.batch = value->is_array() && !holds_integers(*value);
  if (prompts.batch && value->size() > model.limits.max_prompts)
    return fields.refuse(name, fmt::format("holds more than {} prompts", model.limits.max_prompts));
  std::vector<const OrderedJson*> list;  // a prompt may be millions of ids: not copied
  if (!prompts.batch) list.push_back(value);
  if (prompts.batch)
    for (const OrderedJson& item : *value) list.push_back(&item);
  if (list.empty()) return fields.refuse(name, "is an empty list");
  for (const OrderedJson* const one : list) {
    const OrderedJson& item = *one;
    if (!item.is_string() && !item.is_array())
      return fields.refuse(name, "must hold strings or lists of token ids");
    if (item.is_string()) {
      if (model.tokenizer == nullptr)
        return fields.refuse(name, "must be token ids: the model has no tokenizer");
      prompts.texts.emplace_back(item.get<std::string>());
      prompts.ids.push_back(
          model.tokenizer->encode(*prompts.texts.back(), {.add_bos = prompts.add_bos}));
    } else {
      std::vector<int32_t> ids;
      fields.token_ids(name, item, SIZE_MAX, ids);
      if (fields.fault()) return;
      for (const int32_t id : ids)
        if (id >= model.vocab_size)
          return fields.refuse(name, fmt::format("holds token id {}, the vocabulary ends at {}", id,
                                                 model.vocab_size - 1));
      prompts.texts.emplace_back();
      prompts.ids.push_back(std::move(ids));
    }
    // The engine continues a text; there is nothing to continue. (A begin token is something.)
    if (prompts.ids.back().empty())
      return fields.refuse(name, item.is_array()   ? "is an empty list"
                                 : prompts.add_bos ? "is empty, and this model has no begin token "
                                                     "to start from"
                                                   : "is empty, and 'add_special_tokens' is false");
  }
}

std::optional<ApiError> fit_context(GenerationSpec& spec, std::optional<int64_t> asked,
                                    const ServedModel& model, const LengthNames& names) {
  for (const std::vector<int32_t>& prompt : spec.prompts) {
    const auto prompt_len = static_cast<int64_t>(prompt.size());
    const int64_t room = model.max_total_len - prompt_len;
    int64_t needed = asked.value_or(1);
    // A prompt's log probabilities come with a token, wanted or not.
    if (spec.options.prompt_top_logprobs) needed = std::max<int64_t>(needed, 1);
    if (needed > room) {
      ApiError error = api_error(
          400, "context_length_exceeded",
          fmt::format("This model's maximum context length is {} tokens. However, you requested {} "
                      "tokens ({} in the {}, {} in the completion). Please reduce the length of "
                      "the {} or of the completion.",
                      model.max_total_len, prompt_len + needed, prompt_len, names.prompt, needed,
                      names.prompt));
      error.param = prompt_len >= model.max_total_len ? names.prompt : names.most;
      return error;
    }
    const int64_t most = asked.value_or(room);
    if (spec.options.min_tokens > most)
      return api_error(
          {fmt::format("'{}' {} is more than the {} tokens that the output may have ({})",
                       names.least, spec.options.min_tokens, most,
                       asked ? fmt::format("'{}'", names.most) : "what the context leaves"),
           std::string(names.least)});
    spec.max_tokens.push_back(most);
  }
  return std::nullopt;
}

}  // namespace foresail
