// POST /v1/completions
#include <fmt/format.h>

#include <array>

#include "server/api/common_fields.h"
#include "server/api/output_fields.h"

namespace foresail {
namespace {

constexpr int64_t kDefaultMaxTokens = 16;
constexpr std::array<std::string_view, 1> kUnserved = {"suffix"};

}  // namespace

ApiResult<GenerationSpec> parse_completion(const OrderedJson& body, const ServedModel& model,
                                           const MayCompile& may_compile) {
  if (auto error = check_object(body)) return tl::unexpected(*error);
  JsonObject fields(body);
  if (auto error = check_model_name(fields, model)) return tl::unexpected(*error);
  GenerationSpec spec;
  read_openai_options(fields, model, spec);
  refuse_unserved(fields, kUnserved);
  // 0 asks for log probabilities too: of the chosen tokens alone.
  int top_logprobs = 0;
  fields.integer("logprobs", 0, model.limits.max_logprobs, top_logprobs);
  if (fields.has("logprobs")) spec.options.top_logprobs = top_logprobs;
  int best_of = spec.choices;
  fields.integer("best_of", 1, INT32_MAX, best_of);
  if (best_of != spec.choices)
    fields.refuse("best_of", fmt::format("must equal 'n' ({}), not {}: choices are not ranked",
                                         spec.choices, best_of));
  bool echo = false;
  fields.boolean("echo", echo);
  if (echo) spec.options.prompt_top_logprobs = spec.options.top_logprobs;
  int64_t max_tokens = kDefaultMaxTokens;
  fields.integer("max_tokens", echo ? 0 : 1, INT32_MAX, max_tokens);
  compile_output(fields, read_output_form(fields), {}, model, may_compile, spec.options.grammar);
  PromptList prompts;
  fields.boolean("add_special_tokens", prompts.add_bos);
  read_prompts(fields, "prompt", model, prompts);
  if (fields.fault()) return tl::unexpected(api_error(*fields.fault()));
  fields.add_unread(kMostIgnoredFields, spec.ignored_fields);
  spec.prompts = std::move(prompts.ids);
  spec.batch = prompts.batch;
  if (auto error = fit_context(spec, max_tokens, model)) return tl::unexpected(*error);
  // Not earlier: of what does not fit there may be millions of ids.
  for (size_t i = 0; echo && i < spec.prompts.size(); ++i) {
    if (!prompts.texts[i] && model.tokenizer != nullptr)
      prompts.texts[i] = model.tokenizer->decode(spec.prompts[i], false);
    spec.echoes.push_back(std::move(prompts.texts[i]).value_or(""));
  }
  return spec;
}

}  // namespace foresail
