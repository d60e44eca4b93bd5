// What the two OpenAI shapes have in common: the frame of every object, and usage.
#pragma once

#include "server/api/json_text.h"
#include "server/api/projection.h"

namespace foresail {

struct OpenAiOptions {
  bool include_usage = false;
  bool continuous_usage = false;
  bool return_token_ids = false;
  bool return_meta_info = false;
  bool return_draft_info = false;

  explicit OpenAiOptions(const GenerationSpec& spec)
      : include_usage(spec.include_usage),
        continuous_usage(spec.continuous_usage),
        return_token_ids(spec.return_token_ids),
        return_meta_info(spec.return_meta_info),
        return_draft_info(spec.return_draft_info) {}
};

// One event: {"id":PREFIX..,"object":OBJECT,..,"choices":[CHOICE],"usage":..}; `choice` is the
// inside of the list and may be empty.
std::string openai_event(const GenerationRecord& record, std::string_view prefix,
                         std::string_view object, std::string_view choice,
                         const OpenAiOptions& options);
// A whole answer; `choices` is the inside of the list.
std::string openai_whole(const GenerationRecord& record, std::string_view prefix,
                         std::string_view object, std::string_view choices);
// The usage event if it was asked for, and [DONE].
std::string openai_closing(const GenerationRecord& record, std::string_view prefix,
                           std::string_view object, const OpenAiOptions& options);
// The fields of a choice beyond OpenAI's own: ,"token_ids":[..], and with the end
// "prompt_token_ids" and "meta_info".
void append_extras(std::string& choice, const GenerationRecord& record, const Choice& of,
                   std::span<const int32_t> ids, const OpenAiOptions& options);
// "draft_info": how each token came, [{"text":..,"draft":1,"rejected":[".."],"part":"reasoning"}];
// members that say nothing are left out.
void append_draft_info(std::string& choice, std::span<const TokenSource> sources,
                       const Tokenizer* tokenizer);
// "matched_stop": the string, the token id, or null.
void append_matched_stop(std::string& choice, const Choice& of);

}  // namespace foresail
