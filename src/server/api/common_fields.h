// The parts of a request that several APIs share.
#pragma once

#include <optional>
#include <span>

#include "server/api/generation_spec.h"
#include "server/api/json_object.h"

namespace foresail {

// An object, else 400.
std::optional<ApiError> check_object(const OrderedJson& body);
// The name of another model is 404.
std::optional<ApiError> check_model_name(JsonObject& fields, const ServedModel& model);
void read_sampling(JsonObject& fields, const ServedModel& model, float most_temperature,
                   GenerationSpec& spec);
void read_stops(JsonObject& fields, const ServedModel& model, GenerationSpec& spec);
// What every API says of a request as a whole: its name, its turn, who may share its cached
// prefixes, how far it is drafted for.
void read_handling(JsonObject& fields, GenerationSpec& spec);
// What /v1/completions and /v1/chat/completions share: sampling, stops, stream, n, usage, ids and
// the above.
void read_openai_options(JsonObject& fields, const ServedModel& model, GenerationSpec& spec);
// Fields of other servers that would change the answer and are served nowhere, and `further` ones
// of one API: refused when they ask for anything.
void refuse_unserved(JsonObject& fields, std::span<const std::string_view> further = {});
// null, false, 0, "", [] and {} ask for nothing.
bool asks_for_something(const OrderedJson& value);

// A prompt's text or ids, as strings and lists come in "prompt", "text" or "input_ids".
struct PromptList {
  std::vector<std::vector<int32_t>> ids;
  std::vector<std::optional<std::string>> texts;  // none: it came as ids
  bool batch = false;
  bool add_bos = true;  // to texts
};
void read_prompts(JsonObject& fields, std::string_view name, const ServedModel& model,
                  PromptList& prompts);

struct LengthNames {
  std::string_view prompt = "prompt", most = "max_tokens", least = "min_tokens";
};
// Sets max_tokens of every prompt: `asked`, or the room left. Else 400 with the counts. After the
// fields that ask for log probabilities and least tokens.
std::optional<ApiError> fit_context(GenerationSpec& spec, std::optional<int64_t> asked,
                                    const ServedModel& model, const LengthNames& names = {});

}  // namespace foresail
