// Everything that decides how a model is loaded and run. Defaults are what a first user wants.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace foresail {

enum class SpeculativeAlgorithm { kNone, kMtp, kEagle3, kNgram };

struct SpeculativeOptions {
  SpeculativeAlgorithm algorithm = SpeculativeAlgorithm::kNone;
  std::string draft_model_path;  // EAGLE-3
  int steps = 3;                 // drafts per iteration
  std::optional<double> simulate_accept_length;
};

struct ModelOptions {
  std::string model_path;
  std::string load_format = "auto";     // auto: the checkpoint; dummy: random weights
  std::string dtype = "bf16";           // bf16 or f32: weights and matrix inputs
  std::string kv_cache_dtype = "auto";  // auto: as dtype
  std::string device = "cpu";           // cpu or ref (the slow float64 oracle)
  std::string cpu_isa = "auto";
  std::string attention_path = "auto";  // auto, absorbed, expanded
  int threads = 0;                      // 0: all cores
  int page_size = 64;                   // tokens
  int64_t context_length = 0;           // tokens; 0: what the model allows, at most 8192
  int slot_count = 1;                   // requests at once
  uint64_t seed = 0;
  SpeculativeOptions speculative;
};

// "MTP", "NEXTN", "EAGLE3", "NGRAM", "NONE", any case. Throws Error{kUsage} naming the choices.
SpeculativeAlgorithm parse_speculative_algorithm(const std::string& name);

}  // namespace foresail
