// What a load test asks: made of random tokens, or read from the files that the field's tools read.
// Deterministic by seed. Plain functions; any thread.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "bench/serve/load_request.h"

namespace foresail {

struct RandomPromptOptions {
  int count = 100;
  int64_t input_tokens = 1024, output_tokens = 128;
  // Lengths are drawn from [ratio * tokens, tokens]; 1: all alike.
  double range_ratio = 1.0;
  int64_t vocab_size = 0;
  uint64_t seed = 0;
};
// Token ids, drawn evenly from what surely is text: neither the first ids nor the last.
std::vector<LoadPrompt> random_prompts(const RandomPromptOptions& options);

// JSON lines or a JSON list; formats: custom {"prompt", "output_tokens"?}, openai {"messages",
// "max_tokens"?}, sharegpt {"conversations"}, mtbench {"turns"}. The first turn of a conversation
// is asked. `output_tokens` where the line does not say. Throws Error{kUsage} with file and line.
std::vector<LoadPrompt> read_prompts(const std::string& path, const std::string& format,
                                     int64_t output_tokens);

}  // namespace foresail
