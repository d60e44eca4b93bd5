// The flags that say how tokens are drawn and when to stop.
#pragma once

#include <climits>

#include "apps/flag_checks.h"
#include "apps/flag_groups.h"
#include "engine/sampling_defaults.h"
#include "engine/text_generator.h"

namespace foresail {

inline void add_sampling_flags(Command& command, Request& options) {
  SamplingParams& sampling = options.sampling;
  sampling.temperature = 0.0f;
  FlagGroup drawing(command, kDrawingGroup);
  drawing.add_option("--max-tokens,-n", options.max_tokens, "most new tokens")
      ->capture_default_str();
  drawing
      .add_option("--min-tokens", options.min_tokens, "no end of text and no stop before this many")
      ->capture_default_str();
  // The help shows no number for what the model's file may say otherwise.
  const std::string of_model = "default: generation_config.json's, else ";
  drawing.add_option("--temperature", sampling.temperature, "0: greedy; " + of_model + "0")
      ->check(number_in(0.0f, 100.0f));
  drawing.add_option("--top-k", sampling.top_k, "0: off; " + of_model + "0")
      ->check(number_in(0, INT_MAX));
  drawing.add_option("--top-p", sampling.top_p, "1: off; " + of_model + "1")
      ->check(number_in(1e-6f, 1.0f));
  drawing.add_option("--min-p", sampling.min_p, "0: off; " + of_model + "0")
      ->check(number_in(0.0f, 1.0f));
  drawing
      .add_option("--repetition-penalty", sampling.repetition_penalty, "1: off; " + of_model + "1")
      ->check(number_in(1e-3f, 1e3f));
  drawing.add_option("--presence-penalty", sampling.presence_penalty, "0: off")
      ->capture_default_str()
      ->check(number_in(-2.0f, 2.0f));
  drawing.add_option("--frequency-penalty", sampling.frequency_penalty, "0: off")
      ->capture_default_str()
      ->check(number_in(-2.0f, 2.0f));
  drawing.add_option("--logit-bias", sampling.logit_bias, "TOKEN BIAS, repeatable");
  drawing
      .add_option("--seed", sampling.seed,
                  "random seed; a command draws the same text every time unless told another")
      ->capture_default_str();
  drawing.add_option("--stop", options.stops, "stop string, repeatable");
  drawing.add_flag("--ignore-eos", options.ignore_eos, "go on after the end token");
}

// Where neither a flag nor a line of a file says it: generation_config.json of the model, and
// greedy if there is none. Throws Error{kModel}.
inline SamplingParams read_command_defaults(const std::string& model_path) {
  SamplingParams greedy;
  greedy.temperature = 0.0f;
  return read_sampling_defaults(model_path, greedy);
}

// What no flag says is drawn as the model's generation_config.json asks, if there is one. Throws
// Error{kModel}.
inline void add_model_defaults(const Command& command, const std::string& model_path,
                               SamplingParams& sampling) {
  const SamplingParams defaults = read_command_defaults(model_path);
  const auto use = [&](const char* flag, auto SamplingParams::*member) {
    if (command.count(flag) == 0) sampling.*member = defaults.*member;
  };
  use("--temperature", &SamplingParams::temperature);
  use("--top-k", &SamplingParams::top_k);
  use("--top-p", &SamplingParams::top_p);
  use("--min-p", &SamplingParams::min_p);
  use("--repetition-penalty", &SamplingParams::repetition_penalty);
}

}  // namespace foresail
