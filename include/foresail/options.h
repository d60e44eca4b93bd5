// Everything that decides how a model is loaded and served. Defaults are what a first user wants.
// Plain values and a callback, read once at construction. Errors name them: "options.page_size".
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "foresail/log.h"

namespace foresail {

enum class SpeculativeAlgorithm { kNone, kMtp, kEagle, kEagle3, kNgram, kStandalone };

struct SpeculativeOptions {
  SpeculativeAlgorithm algorithm = SpeculativeAlgorithm::kNone;
  std::string draft_model_path = {};  // the EAGLE head, the independent small model
  int steps = 3;                      // drafts per iteration, at most
  // Every step drafts as many as pay, from costs measured at start-up and acceptance so far.
  bool adaptive = true;
  std::optional<double> simulate_accept_length = {};
};

// "MTP", "NEXTN", "EAGLE", "EAGLE3", "NGRAM", "STANDALONE", "NONE", any case. Throws Error{kUsage}
// naming the choices.
SpeculativeAlgorithm parse_speculative_algorithm(const std::string& name);

struct ModelOptions {
  std::string model_path;
  std::string load_format = "auto";     // auto: the checkpoint; dummy: random weights
  std::string dtype = "bf16";           // bf16 or f32: weights and matrix inputs
  std::string kv_cache_dtype = "auto";  // auto: as dtype; bf16, f32 or fp8_e4m3
  double kv_cache_scale = 1.0;          // of an fp8_e4m3 cache: a number is its code times this
  // cpu, cuda, auto (cuda where there is a usable GPU, else cpu) or ref (the slow float64 oracle).
  std::string device = "cpu";
  // cuda: output never depends on what else is in the batch, nor on speculation, bit for bit;
  // slower attention. The other devices are always so.
  bool deterministic = false;
  bool disable_cuda_graph = false;  // cuda: passes of few rows are launched kernel by kernel
  std::string cpu_isa = "auto";
  // Prefill: auto, absorbed or expanded. Auto is the cheaper one for each chunk of a prompt. With
  // absorbed, output does not depend, bit for bit, on how a prompt is cut and what of it is cached.
  std::string attention_path = "auto";
  // paged (block table), indexed (list of key slots), reference (float64); also the names other
  // engines give to what reads the same.
  std::string attention_backend = "paged";
  // Of prefill passes that may not run expanded; empty: the same.
  std::string fallback_attention_backend = {};
  bool disable_chunked_prefix_cache = false;  // prefill over a cached prefix runs absorbed
  bool segmented_prefill = false;             // plan prefill as inside a segmented graph: absorbed
  // Set to false, work that nothing reads is done, to measure what leaving it out is worth.
  bool skip_draft_kv_indices = true;
  bool skip_mha_chunk_metadata = true;
  int threads = 0;               // 0: all cores
  int page_size = 64;            // tokens
  int64_t context_length = 0;    // tokens; 0: what the model allows, at most 8192
  int slot_count = 1;            // requests at once; an Engine: its max_running_requests
  int64_t max_total_tokens = 0;  // in the cache; 0: slot_count full contexts, at most 8
  // Above 0 and no max_total_tokens: the cache gets what weights and workspace leave of this share
  // of the memory that is available, at most slot_count full contexts.
  double mem_fraction_static = 0.0;
  uint64_t seed = 0;
  SpeculativeOptions speculative;
  LogCallback log = {};  // none: nothing is said
};

struct EngineOptions : ModelOptions {
  int max_running_requests = 16;
  int64_t chunked_prefill_size = 2048;  // tokens of one prefill pass
  bool disable_radix_cache = false;
  // Plans every step before the results of the one before are known. Output is the same; it costs a
  // wasted row whenever a request ends.
  bool late_results = false;
  // cuda: a decode step is launched before the results of the one before are known, so that the GPU
  // does not wait for the host. Output is the same; what runs past the end of a request is
  // discarded.
  bool launch_ahead = true;
  // cuda: the decode steps that serving meets most are recorded at start-up, not when they are met.
  bool record_steps = false;
  // Tests. A seed shuffles every scheduling choice that must not matter.
  uint64_t seed_schedule = 0;
  int retract_every = 0;  // steps between forced retractions; 0: none
};

}  // namespace foresail
