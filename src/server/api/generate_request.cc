// POST /generate: the native shape of SGLang, which load tools speak.
#include <array>

#include "base/json.h"
#include "server/api/common_fields.h"
#include "server/api/output_fields.h"

namespace foresail {
namespace {

constexpr int64_t kDefaultMaxTokens = 128;
constexpr std::array<std::string_view, 8> kUnsupported = {
    "return_logprob", "top_logprobs_num",     "token_ids_logprob", "image_data",
    "input_embeds",   "return_hidden_states", "lora_path",         "session_params"};
constexpr std::array<std::string_view, 3> kUnsupportedSampling = {"ebnf", "structural_tag",
                                                                  "stop_regex"};

}  // namespace

ApiResult<GenerationSpec> parse_generate(const OrderedJson& body, const ServedModel& model) {
  if (auto error = check_object(body)) return tl::unexpected(*error);
  JsonObject fields(body);
  GenerationSpec spec;
  spec.return_meta_info = true;
  const OrderedJson none = OrderedJson::object();
  const OrderedJson* params = fields.find("sampling_params");
  if (params != nullptr && !params->is_object())
    fields.refuse("sampling_params", "must be one object, also for several prompts");
  JsonObject sampling(params == nullptr || !params->is_object() ? none : *params,
                      "sampling_params.");
  read_sampling(sampling, model, 100, spec);
  read_stops(sampling, model, spec);
  sampling.integer("n", 1, model.limits.max_choices, spec.choices);
  sampling.integer("min_new_tokens", 0, INT32_MAX, spec.options.min_tokens);
  int64_t max_tokens = kDefaultMaxTokens;
  sampling.integer("max_new_tokens", 1, INT32_MAX, max_tokens);
  spec.seeded = sampling.has("sampling_seed");
  sampling.integer("sampling_seed", INT64_MIN, INT64_MAX, spec.options.sampling.seed);
  refuse_unsupported(sampling, kUnsupportedSampling);
  compile_output(sampling, read_output_form(sampling), {}, model, spec.options.grammar);
  if (sampling.fault()) return tl::unexpected(api_error(*sampling.fault()));

  refuse_unsupported(fields, kUnsupported);
  fields.text("rid", 512, spec.rid);
  fields.boolean("stream", spec.stream);
  if (fields.has("text") == fields.has("input_ids"))
    fields.refuse("text", "or 'input_ids' must be given, and only one of them");
  PromptList prompts;
  read_prompts(fields, fields.has("text") ? "text" : "input_ids", model, prompts);
  if (fields.fault()) return tl::unexpected(api_error(*fields.fault()));
  spec.prompts = std::move(prompts.ids);
  spec.batch = prompts.batch;
  if (auto error = fit_context(spec, max_tokens, model, "prompt")) return tl::unexpected(*error);
  return spec;
}

}  // namespace foresail
