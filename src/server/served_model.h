// What requests are checked against: the model's texts, its numbers, and the limits of the API.
// Set once when the model is loaded, then read from any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "foresail/request.h"
#include "grammar/grammar_cache.h"
#include "text/chat_syntax.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace foresail {

// Of what clients name: a model, a request, a salt.
constexpr size_t kMaxNameBytes = 512;

struct ApiLimits {
  int max_choices = 8;  // n
  size_t max_prompts = 1024;
  size_t max_stops = 16;
  size_t max_stop_bytes = 1024;
  size_t max_stop_tokens = 64;
  int max_logprobs = 20;
  size_t max_tools = 128;
  int max_json_depth = 128;
};

struct ServedModel {
  bool has_name(std::string_view name) const;
  // The begin token, or any that there is: what to ask for when only a pass is wanted.
  std::vector<int32_t> shortest_prompt() const;
  std::vector<std::string> names;  // the first is the one that answers carry
  std::string path;        // a name too for who knows it, and told to nobody; empty: is none
  bool lax_names = false;  // any name is this model
  const Tokenizer* tokenizer = nullptr;         // null: requests come and go as token ids
  std::unique_ptr<ChatTemplate> chat_template;  // null: no chat
  ChatSyntax syntax;                            // of its answers
  bool both_reasoning_fields = false;           // "reasoning" beside "reasoning_content"
  bool incremental_generate = false;            // events of /generate tell only what is new
  std::unique_ptr<GrammarCache> grammars = std::make_unique<GrammarCache>();
  int64_t vocab_size = 0;
  int64_t max_total_len = 0;  // tokens: the longest prompt and output together
  SamplingParams defaults;
  ApiLimits limits;
  int64_t created = 0;  // seconds since 1970
};

}  // namespace foresail
