// Log probabilities of tokens in the two shapes of OpenAI. `logprobs` belongs to `ids` one by one;
// empty: null is written. A token that is no text by itself is named "bytes:\xf0\x9f".
#pragma once

#include <span>
#include <string>

#include "base/json.h"
#include "server/api/record.h"
#include "text/tokenizer.h"

namespace foresail {

// {"tokens":[..],"token_logprobs":[..],"top_logprobs":[{..}],"text_offset":[..]}. `ids` are the
// latest of the choice; offsets count characters of its text, over every piece. `prompt` are the
// ids of an echo that goes before them, or none; the first has no log probability.
void append_completion_logprobs(std::string& out, const Tokenizer* tokenizer, const Choice& choice,
                                std::span<const int32_t> prompt, std::span<const int32_t> ids,
                                std::span<const TokenLogprobs> logprobs);
// {"content":[{"token","logprob","bytes","top_logprobs":[..]}],"refusal":null}
void append_chat_logprobs(std::string& out, const Tokenizer* tokenizer,
                          std::span<const int32_t> ids, std::span<const TokenLogprobs> logprobs);

// The shape of /generate: [logprob, id, text], with null for what is not known or not asked for (no
// tokenizer: no text); of the best ones a list of these, or null.
OrderedJson native_logprob(const Tokenizer* tokenizer, int32_t id, const TokenLogprobs* logprobs);
OrderedJson native_top_logprobs(const Tokenizer* tokenizer, const TokenLogprobs* logprobs);

}  // namespace foresail
