// What became of a request, whatever the shape it is told in: streams and whole answers are both
// projections of it. Grows as tokens come. One thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "foresail/output.h"
#include "text/chat_output_parser.h"

namespace foresail {

// How a token came into an output.
struct TokenSource {
  enum class Part { kContent, kReasoning, kCall };
  std::string text;               // what became certain with it
  int draft_position = 0;         // 1..: an accepted draft, by its place in its chain; 0: no draft
  std::vector<int32_t> rejected;  // drafts that it was drawn instead of
  Part part = Part::kContent;     // of the answer, that its text went to
};

struct Choice {
  int index = 0;
  size_t prompt = 0;  // which of the request's
  std::string text;   // with the echo, where one was asked for; of a chat the content
  std::string reasoning;
  std::vector<ToolCallDelta> calls;  // [index], whole so far
  bool cut_in_call = false;          // it ended inside the last call
  int64_t reasoning_tokens = 0;
  std::vector<int32_t> ids;
  std::vector<TokenLogprobs> logprobs;         // [id], where they were asked for
  int64_t echo_chars = 0;                      // characters of the echo in `text`
  std::vector<TokenLogprobs> prompt_logprobs;  // where they were asked for, from the second id on
  std::vector<TokenSource> sources;            // [id], likewise
  std::optional<FinishReason> finish;
  GenerationStats stats;
  double elapsed_s = 0.0;  // from arrival to its latest token
};

struct Usage {
  int64_t prompt_tokens = 0;  // each prompt once
  int64_t cached_tokens = 0;
  int64_t completion_tokens = 0;
  int64_t reasoning_tokens = 0;
  int64_t total_tokens() const { return prompt_tokens + completion_tokens; }
};

struct GenerationRecord {
  std::string id;  // without the prefix that the shape gives it
  std::string model;
  int64_t created = 0;  // seconds since 1970
  std::vector<std::vector<int32_t>> prompts;
  int choices_per_prompt = 1;
  std::vector<Choice> choices;

  Usage usage() const;
};

// What is new in one choice since it was last told.
struct Piece {
  size_t choice = 0;
  bool has_echo = false;  // it comes with the first token, since its log probabilities do
  std::string text;
  std::string reasoning;
  std::vector<ToolCallDelta> calls;
  std::vector<int32_t> ids;
  std::vector<TokenLogprobs> logprobs;
  std::vector<TokenSource> sources;
  std::optional<FinishReason> finish;
};

}  // namespace foresail
