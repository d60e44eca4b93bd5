#include "engine/loaded_model.h"

#include <algorithm>
#include <thread>

#include "base/checked_math.h"
#include "base/error.h"
#include "checkpoint/draft_config.h"
#include "checkpoint/weight_source.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/ref/ref_kernels.h"
#include "model/eagle3_head.h"
#include "model/mtp_head.h"
#include "speculative/head_drafter.h"
#include "speculative/ngram_drafter.h"

namespace foresail {
namespace {

constexpr int kLongestNgram = 4;
constexpr int kShortestNgram = 2;

DType parse_dtype(const std::string& flag, const std::string& name) {
  if (name == "f32" || name == "float32") return DType::kF32;
  if (name == "bf16" || name == "bfloat16") return DType::kBF16;
  throw_error(ErrorCode::kUsage, "{} {} is unknown: choose bf16 or f32", flag, name);
}

// What the flags alone tell; the rest of them is checked where it is used.
void check_options(const ModelOptions& options) {
  if (options.load_format != "auto" && options.load_format != "safetensors" &&
      options.load_format != "dummy")
    throw_error(ErrorCode::kUsage, "--load-format {} is unknown: choose auto, safetensors or dummy",
                options.load_format);
  const SpeculativeOptions& speculative = options.speculative;
  if (speculative.steps < 0 || speculative.steps > 15)
    throw_error(ErrorCode::kUsage, "--speculative-num-steps {} is out of range: choose 0 to 15",
                speculative.steps);
  if (speculative.algorithm == SpeculativeAlgorithm::kEagle3 &&
      speculative.draft_model_path.empty())
    throw_error(ErrorCode::kUsage,
                "--speculative-algorithm EAGLE3 needs --speculative-draft-model-path DIR");
  forced_attention_path(options.attention_path);
}

std::unique_ptr<KernelSet> create_kernels(const ModelOptions& options, DType dtype,
                                          ThreadPool& threads) {
  if (options.device == "ref") return create_ref_kernels(dtype);
  if (options.device != "cpu")
    throw_error(ErrorCode::kUsage, "--device {} is unknown: choose cpu or ref", options.device);
  return create_cpu_kernels({.dtype = dtype, .isa = options.cpu_isa, .pool = &threads});
}

}  // namespace

SpeculativeAlgorithm parse_speculative_algorithm(const std::string& name) {
  std::string upper = name;
  std::transform(upper.begin(), upper.end(), upper.begin(),
                 [](unsigned char c) { return std::toupper(c); });
  if (upper == "NONE" || upper.empty()) return SpeculativeAlgorithm::kNone;
  if (upper == "MTP" || upper == "NEXTN") return SpeculativeAlgorithm::kMtp;
  if (upper == "EAGLE3") return SpeculativeAlgorithm::kEagle3;
  if (upper == "NGRAM") return SpeculativeAlgorithm::kNgram;
  throw_error(
      ErrorCode::kUsage,
      "--speculative-algorithm {} is unknown: choose MTP (alias NEXTN), EAGLE3, NGRAM or NONE",
      name);
}

std::optional<AttentionPath> forced_attention_path(const std::string& name) {
  if (name == "auto") return std::nullopt;
  if (name == "absorbed") return AttentionPath::kAbsorbed;
  if (name == "expanded") return AttentionPath::kExpanded;
  throw_error(ErrorCode::kUsage,
              "--attention-path {} is unknown: choose auto, absorbed or expanded", name);
}

LoadedModel::LoadedModel(ModelOptions options, LoadProgress progress)
    : options_(std::move(options)) {
  check_options(options_);
  const ModelConfig config = read_model_config(options_.model_path);
  const DType dtype = parse_dtype("--dtype", options_.dtype);
  const DType cache_dtype = options_.kv_cache_dtype == "auto"
                                ? dtype
                                : parse_dtype("--kv-cache-dtype", options_.kv_cache_dtype);
  const bool wants_mtp = options_.speculative.algorithm == SpeculativeAlgorithm::kMtp;
  if (options_.context_length > config.max_positions)
    throw_error(ErrorCode::kUsage, "--context-length {} exceeds the model's {} positions",
                options_.context_length, config.max_positions);
  plan_ = plan_memory(config, options_, wants_mtp);
  require_fits(plan_);

  const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  threads_ = std::make_unique<ThreadPool>(options_.threads > 0 ? options_.threads : cores);
  kernels_ = create_kernels(options_, dtype, *threads_);
  const std::unique_ptr<WeightSource> source = options_.load_format == "dummy"
                                                   ? dummy_weights(config, options_.seed)
                                                   : open_checkpoint(options_.model_path, config);

  // What is in flight may be three chains past the committed length (Capacity::lookahead).
  const int64_t margin = 3 * (options_.speculative.steps + 1);
  WeightLoader loader(*source, *kernels_, std::move(progress));
  if (wants_mtp && !MtpHead::present(config, loader))
    throw_error(ErrorCode::kUsage,
                "--speculative-algorithm MTP: {} holds no MTP layer (no "
                "model.layers.{}.eh_proj.weight)",
                options_.model_path, config.layer_count);
  if (options_.speculative.algorithm == SpeculativeAlgorithm::kEagle3)  // before the long load
    read_draft_config(options_.speculative.draft_model_path, config);
  model_ = std::make_unique<MlaModel>(config, loader, *kernels_, plan_.context_length + margin);
  pages_per_slot_ = ceil_div(plan_.context_length + margin, int64_t{options_.page_size});
  page_count_ = 1 + ceil_div(plan_.cached_tokens, int64_t{options_.page_size});
  // A single request at full length, its margin included, fits unless the cache was made smaller.
  if (options_.max_total_tokens == 0) page_count_ = std::max(page_count_, 1 + pages_per_slot_);
  store_ = std::make_unique<LatentStore>(config.layer_count, page_count_, options_.page_size,
                                         static_cast<int>(config.kv_lora_rank),
                                         static_cast<int>(config.rope_dim), cache_dtype);
  load_drafter(loader, cache_dtype);
  source->finish();
  packed_bytes_ = loader.packed_bytes();
  use_drafter(std::move(drafter_));
}

void LoadedModel::use_drafter(std::unique_ptr<Drafter> drafter) {
  drafter_ = std::move(drafter);
  IterationOptions iteration_options;
  iteration_options.prefill_path = forced_attention_path(options_.attention_path);
  iteration_options.simulate_accept_length = options_.speculative.simulate_accept_length;
  iteration_ = std::make_unique<Iteration>(*model_, *store_, drafter_.get(), iteration_options);
}

void LoadedModel::load_drafter(WeightLoader& loader, DType cache_dtype) {
  const SpeculativeOptions& speculative = options_.speculative;
  const auto make = [&](std::string name, std::unique_ptr<DraftHead> head) {
    drafter_ = std::make_unique<HeadDrafter>(std::move(name), std::move(head), options_.slot_count,
                                             page_count_, options_.page_size, cache_dtype);
  };
  switch (speculative.algorithm) {
    case SpeculativeAlgorithm::kNone:
      return;
    case SpeculativeAlgorithm::kNgram:
      drafter_ = std::make_unique<NgramDrafter>(kLongestNgram, kShortestNgram);
      return;
    case SpeculativeAlgorithm::kMtp:
      make("mtp", std::make_unique<MtpHead>(*model_, loader, 0));
      return;
    case SpeculativeAlgorithm::kEagle3: {
      const DraftConfig draft = read_draft_config(speculative.draft_model_path, config());
      const auto source = open_draft_checkpoint(speculative.draft_model_path);
      WeightLoader draft_loader(*source, *kernels_);
      make("eagle3", std::make_unique<Eagle3Head>(draft, *model_, draft_loader));
      source->finish();
      return;
    }
  }
}

}  // namespace foresail
