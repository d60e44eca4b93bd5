// Whether a request makes sense at all, whatever else is running. Pure.
// Any thread.
#pragma once

#include <vector>

#include "base/result.h"
#include "foresail/request.h"
#include "text/tokenizer.h"

namespace foresail {

constexpr int kMostTopLogprobs = 128;

// To an empty text of a model without a begin token. No list of ids is empty.
inline constexpr const char* kEmptyPrompt =
    "the prompt is empty, and this model has no begin token to start from";

inline constexpr const char* kSimulatedUnderGrammar =
    "simulated acceptance commits what no grammar allows";

// The prompt as token ids, or which field is wrong and why. tokenizer may be null.
Result<std::vector<int32_t>> validate_request(const Request& request, const Tokenizer* tokenizer,
                                              int64_t vocab_size);

}  // namespace foresail
