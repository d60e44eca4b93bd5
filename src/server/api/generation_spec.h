// What a request asks the engine for, whichever API it came through: checked as far as it can be
// without the engine. Made only by the parse functions below.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/json_types.h"
#include "foresail/request.h"
#include "server/api/error.h"
#include "server/served_model.h"
#include "text/chat_output_parser.h"

namespace foresail {

// Of one request; more are no slips of a key.
constexpr size_t kMostIgnoredFields = 8;

template <typename T>
using ApiResult = tl::expected<T, ApiError>;

struct GenerationSpec {
  std::string rid;  // the client's own name for it, or empty
  std::vector<std::vector<int32_t>> prompts;
  bool batch = false;               // the prompt came as a list of prompts
  std::vector<std::string> echoes;  // per prompt: text before its output; empty list: no echo
  Request options;                  // all but the prompt and what follows from its length
  // Of each prompt's output; 0: only the echo comes back.
  std::vector<int64_t> max_tokens;
  int choices = 1;  // per prompt
  bool seeded = false;
  bool stream = false;
  bool include_usage = false;
  bool continuous_usage = false;
  bool return_token_ids = false;
  bool return_meta_info = false;
  // Of /generate: log probabilities of the prompt are told from here on; the names of tokens too.
  int64_t logprob_start = 0;
  bool names_in_logprobs = false;
  bool return_draft_info = false;
  // What is read out of the text of a chat answer; nothing: it is content as it is.
  ChatSyntax syntax;
  ChatOutputParser::Options parsing;
  bool include_reasoning = true;
  std::vector<std::string> ignored_fields;  // names of some that nothing reads

  bool parses() const { return syntax.tools != nullptr || syntax.reasoning != nullptr; }
};

// Asked before a grammar is compiled and tried, which takes up to a tenth of a second. Where it is
// false the request is refused.
using MayCompile = std::function<bool()>;

ApiResult<GenerationSpec> parse_completion(const OrderedJson& body, const ServedModel& model,
                                           const MayCompile& may_compile);
ApiResult<GenerationSpec> parse_chat(const OrderedJson& body, const ServedModel& model,
                                     const MayCompile& may_compile);
ApiResult<GenerationSpec> parse_generate(const OrderedJson& body, const ServedModel& model,
                                         const MayCompile& may_compile);

}  // namespace foresail
