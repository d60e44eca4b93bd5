// POST /generate: the native shape of SGLang, which load tools speak.
#include <fmt/format.h>

#include "base/json.h"
#include "server/api/common_fields.h"
#include "server/api/output_fields.h"

namespace foresail {
namespace {

constexpr int64_t kDefaultMaxTokens = 128;

// One for all prompts of the request. -1, the default: of the output alone.
void read_logprobs(JsonObject& fields, const ServedModel& model, GenerationSpec& spec) {
  bool wanted = false;
  int top = 0;
  int64_t start = -1;
  fields.boolean("return_logprob", wanted);
  fields.integer("top_logprobs_num", 0, model.limits.max_logprobs, top);
  fields.integer("logprob_start_len", -1, INT32_MAX, start);
  fields.boolean("return_text_in_logprobs", spec.names_in_logprobs);
  if (!wanted) return;
  spec.options.top_logprobs = top;
  if (start < 0) return;
  spec.options.prompt_top_logprobs = top;
  spec.logprob_start = start;
}

}  // namespace

ApiResult<GenerationSpec> parse_generate(const OrderedJson& body, const ServedModel& model,
                                         const MayCompile& may_compile) {
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
  sampling.integer("max_new_tokens", 0, INT32_MAX, max_tokens);
  spec.seeded = sampling.has("sampling_seed");
  sampling.integer("sampling_seed", INT64_MIN, INT64_MAX, spec.options.sampling.seed);
  refuse_unserved(sampling);
  refuse_unserved(fields);
  if (fields.fault()) return tl::unexpected(api_error(*fields.fault()));
  compile_output(sampling, read_output_form(sampling), {}, model, may_compile,
                 spec.options.grammar);
  if (sampling.fault()) return tl::unexpected(api_error(*sampling.fault()));

  read_logprobs(fields, model, spec);
  read_handling(fields, spec);
  fields.boolean("stream", spec.stream);
  if (fields.has("text") == fields.has("input_ids"))
    fields.refuse("text", "or 'input_ids' must be given, and only one of them");
  PromptList prompts;
  read_prompts(fields, fields.has("text") ? "text" : "input_ids", model, prompts);
  for (const std::vector<int32_t>& prompt : prompts.ids)
    if (spec.logprob_start >= static_cast<int64_t>(prompt.size()) && spec.logprob_start > 0)
      fields.refuse("logprob_start_len", fmt::format("is {}, and a prompt has {} tokens",
                                                     spec.logprob_start, prompt.size()));
  if (fields.fault()) return tl::unexpected(api_error(*fields.fault()));
  fields.add_unread(kMostIgnoredFields, spec.ignored_fields);
  sampling.add_unread(kMostIgnoredFields, spec.ignored_fields);
  spec.prompts = std::move(prompts.ids);
  spec.batch = prompts.batch;
  const LengthNames names = {.most = "sampling_params.max_new_tokens",
                             .least = "sampling_params.min_new_tokens"};
  if (auto error = fit_context(spec, max_tokens, model, names)) return tl::unexpected(*error);
  return spec;
}

}  // namespace foresail
