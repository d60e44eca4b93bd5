#include "engine/loaded_model.h"

#include <fmt/core.h>

#include <algorithm>
#include <thread>

#include "base/checked_math.h"
#include "base/error.h"
#include "base/ids.h"
#include "checkpoint/draft_config.h"
#include "checkpoint/weight_source.h"
#include "engine/device.h"
#include "model/eagle3_head.h"
#include "model/eagle_head.h"
#include "model/mtp_head.h"
#include "speculative/head_drafter.h"
#include "speculative/ngram_drafter.h"
#include "speculative/standalone_drafter.h"

namespace foresail {
namespace {

constexpr int kLongestNgram = 4;
constexpr int kShortestNgram = 2;

DType parse_dtype(const std::string& name) {
  if (name == "f32" || name == "float32") return DType::kF32;
  if (name == "bf16" || name == "bfloat16") return DType::kBF16;
  throw_error(ErrorCode::kUsage, "options.dtype {} is unknown: choose bf16 or f32", name);
}

CacheFormat parse_cache_format(const ModelOptions& options, DType weights) {
  const std::string& name = options.kv_cache_dtype;
  const bool has_codes = name == "fp8_e4m3" || name == "fp8";
  if (!has_codes && options.kv_cache_scale != 1.0)
    throw_error(
        ErrorCode::kUsage,
        "options.kv_cache_scale {} has no meaning with options.kv_cache_dtype {}: leave it out or "
        "choose fp8_e4m3",
        options.kv_cache_scale, name);
  if (name == "auto") return {weights};
  if (has_codes) {
    // Written so that NaN is refused too.
    if (!(options.kv_cache_scale >= 1e-6 && options.kv_cache_scale <= 1e6))
      throw_error(ErrorCode::kUsage,
                  "options.kv_cache_scale {} is out of range: choose 1e-6 to 1e6",
                  options.kv_cache_scale);
    return {DType::kF8E4M3, static_cast<float>(options.kv_cache_scale)};
  }
  if (name == "f32" || name == "float32") return {DType::kF32};
  if (name == "bf16" || name == "bfloat16") return {DType::kBF16};
  throw_error(ErrorCode::kUsage,
              "options.kv_cache_dtype {} is unknown: choose auto, bf16, f32 or fp8_e4m3", name);
}

// Whether the drafter is loaded from a folder of its own.
bool needs_draft_folder(SpeculativeAlgorithm algorithm) {
  return algorithm == SpeculativeAlgorithm::kEagle || algorithm == SpeculativeAlgorithm::kEagle3 ||
         algorithm == SpeculativeAlgorithm::kStandalone;
}

// What the options alone tell; the rest of them is checked where it is used.
void check_options(const ModelOptions& options) {
  if (options.load_format != "auto" && options.load_format != "safetensors" &&
      options.load_format != "dummy")
    throw_error(ErrorCode::kUsage,
                "options.load_format {} is unknown: choose auto, safetensors or dummy",
                options.load_format);
  // False for NaN too.
  const auto require = [](bool holds, std::string_view field, auto value,
                          const std::string& range) {
    if (!holds)
      throw_error(ErrorCode::kUsage, "{} {} is out of range: choose {}", field, value, range);
  };
  const auto within = [](auto value, auto least, auto most) {
    return value >= least && value <= most;
  };
  const int slots = options.slot_count;
  const SpeculativeOptions& speculative = options.speculative;
  require(within(options.threads, 0, 1024), "options.threads", options.threads, "0 to 1024");
  require(within(options.mem_fraction_static, 0.0, 1.0), "options.mem_fraction_static",
          options.mem_fraction_static, "0 to 1");
  require(options.context_length >= 0, "options.context_length", options.context_length,
          "0 or more");
  require(options.max_total_tokens >= 0, "options.max_total_tokens", options.max_total_tokens,
          "0 or more");
  require(within(slots, 1, kMostRunningRequests), "options.max_running_requests", slots,
          fmt::format("1 to {}", kMostRunningRequests));
  require(within(speculative.steps, 0, kMostDrafts), "options.speculative.steps", speculative.steps,
          fmt::format("0 to {}", kMostDrafts));
  if (const auto length = speculative.simulate_accept_length)
    require(within(*length, 1.0, static_cast<double>(kMostVerifyRows)),
            "options.speculative.simulate_accept_length", *length,
            fmt::format("1 to {}", kMostVerifyRows));
  require(options.page_size >= 1, "options.page_size", options.page_size, "1, 16, 32 or 64");
  if (needs_draft_folder(speculative.algorithm) && speculative.draft_model_path.empty())
    throw_error(ErrorCode::kUsage,
                "options.speculative.algorithm EAGLE, EAGLE3 and STANDALONE need "
                "options.speculative.draft_model_path DIR");
}

AttentionConfig attention_config(const ModelOptions& options) {
  AttentionConfig config;
  config.backend = parse_attention_backend(options.attention_backend);
  config.fallback_backend = options.fallback_attention_backend.empty()
                                ? config.backend
                                : parse_attention_backend(options.fallback_attention_backend);
  if ((config.fallback_backend == AttentionBackend::kReference) !=
      (config.backend == AttentionBackend::kReference))
    throw_error(ErrorCode::kUsage,
                "options.fallback_attention_backend {} and options.attention_backend {} do not go "
                "together: reference is for both or for none",
                backend_name(config.fallback_backend), backend_name(config.backend));
  config.page_size = options.page_size;
  config.prefill_path = parse_attention_path(options.attention_path);
  config.disable_chunked_prefix_cache = options.disable_chunked_prefix_cache;
  config.segmented_prefill = options.segmented_prefill;
  config.skip_draft_kv_indices = options.skip_draft_kv_indices;
  config.skip_mha_chunk_metadata = options.skip_mha_chunk_metadata;
  return config;
}

}  // namespace

SpeculativeAlgorithm parse_speculative_algorithm(const std::string& name) {
  std::string upper = name;
  std::transform(upper.begin(), upper.end(), upper.begin(),
                 [](unsigned char c) { return std::toupper(c); });
  if (upper == "NONE" || upper.empty()) return SpeculativeAlgorithm::kNone;
  if (upper == "MTP" || upper == "NEXTN") return SpeculativeAlgorithm::kMtp;
  if (upper == "EAGLE") return SpeculativeAlgorithm::kEagle;
  if (upper == "EAGLE3") return SpeculativeAlgorithm::kEagle3;
  if (upper == "NGRAM") return SpeculativeAlgorithm::kNgram;
  if (upper == "STANDALONE") return SpeculativeAlgorithm::kStandalone;
  throw_error(ErrorCode::kUsage,
              "options.speculative.algorithm {} is unknown: choose MTP (alias NEXTN), EAGLE, "
              "EAGLE3, NGRAM, STANDALONE or NONE",
              name);
}

void check_model_options(const ModelOptions& options) {
  check_options(options);
  PageSize(options.page_size);  // throws; tests load models with smaller pages
  parse_cache_format(options, parse_dtype(options.dtype));
  attention_config(options);
}

LoadedModel::LoadedModel(ModelOptions options, LoadProgress progress,
                         std::unique_ptr<KernelSet> kernels)
    : options_(std::move(options)), kernels_(std::move(kernels)) {
  check_options(options_);
  options_.device = resolve_device(options_.device);
  const ModelConfig config = read_model_config(options_.model_path);
  const DType dtype = parse_dtype(options_.dtype);
  AttentionConfig attention = attention_config(options_);
  const CacheFormat cache_format = parse_cache_format(options_, dtype);
  const bool wants_mtp = options_.speculative.algorithm == SpeculativeAlgorithm::kMtp;
  check_context_length(config, options_.context_length);
  plan_ = plan_memory(config, options_, wants_mtp);
  require_fits(plan_);

  const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  threads_ = std::make_unique<ThreadPool>(options_.threads > 0 ? options_.threads : cores);
  if (kernels_ == nullptr) kernels_ = create_kernels(options_, dtype, *threads_);
  const std::unique_ptr<WeightSource> source = options_.load_format == "dummy"
                                                   ? dummy_weights(config, options_.seed)
                                                   : open_checkpoint(options_.model_path, config);

  // A request alone (TextGenerator) may verify and draft past its last token.
  const int64_t margin = 3 * (options_.speculative.steps + 1);
  WeightLoader loader(*source, *kernels_, std::move(progress));
  if (wants_mtp && !MtpHead::present(config, loader))
    throw_error(ErrorCode::kUsage,
                "options.speculative.algorithm MTP: {} holds no MTP layer (no "
                "model.layers.{}.eh_proj.weight)",
                options_.model_path, config.layer_count);
  if (options_.speculative.algorithm == SpeculativeAlgorithm::kEagle ||
      options_.speculative.algorithm == SpeculativeAlgorithm::kEagle3) {  // before the long load
    const std::string& folder = options_.speculative.draft_model_path;
    const bool is_eagle3 = read_draft_config(folder, config).names_eagle3;
    if (is_eagle3 && options_.speculative.algorithm == SpeculativeAlgorithm::kEagle)
      throw_error(ErrorCode::kUsage,
                  "options.speculative.algorithm EAGLE: {} is an EAGLE-3 head: choose EAGLE3",
                  folder);
  }
  model_ = std::make_unique<MlaModel>(config, loader, *kernels_, plan_.context_length + margin);
  pages_per_slot_ = ceil_div(plan_.context_length + margin, int64_t{options_.page_size});
  page_count_ = 1 + ceil_div(plan_.cached_tokens, int64_t{options_.page_size});
  // A single request at full length, its margin included, fits unless the cache was made smaller.
  if (options_.max_total_tokens == 0) page_count_ = std::max(page_count_, 1 + pages_per_slot_);
  store_ = std::make_unique<LatentStore>(
      config.layer_count, page_count_, options_.page_size, static_cast<int>(config.kv_lora_rank),
      static_cast<int>(config.rope_dim), cache_format, kernels_->memory());
  attention.rates =
      kernels_->attention_rates(store_->layers()[0], static_cast<int>(config.head_count));
  planner_ = std::make_unique<PassPlanner>(attention, model_->config());
  load_drafter(loader, cache_format);
  source->finish();
  packed_bytes_ = loader.packed_bytes();
  use_drafter(std::move(drafter_));
}

void LoadedModel::use_drafter(std::unique_ptr<Drafter> drafter) {
  drafter_ = std::move(drafter);
  IterationOptions iteration_options;
  iteration_options.simulate_accept_length = options_.speculative.simulate_accept_length;
  iteration_options.slot_count = options_.slot_count;
  iteration_options.log = options_.log;
  iteration_ =
      std::make_unique<Iteration>(*model_, *store_, *planner_, drafter_.get(), iteration_options);
}

void LoadedModel::load_drafter(WeightLoader& loader, CacheFormat cache_format) {
  const SpeculativeOptions& speculative = options_.speculative;
  const auto make = [&](std::string name, std::unique_ptr<DraftHead> head) {
    drafter_ = std::make_unique<HeadDrafter>(std::move(name), std::move(head), *planner_,
                                             options_.slot_count, page_count_, cache_format,
                                             kernels_.get());
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
    case SpeculativeAlgorithm::kEagle:
    case SpeculativeAlgorithm::kEagle3: {
      const bool third = speculative.algorithm == SpeculativeAlgorithm::kEagle3;
      const DraftConfig draft = read_draft_config(speculative.draft_model_path, config());
      const auto source = open_draft_checkpoint(speculative.draft_model_path);
      WeightLoader draft_loader(*source, *kernels_);
      // Its keys and values are no latents of unit scale.
      if (!draft.is_mla && cache_format.dtype == DType::kF8E4M3) cache_format = {DType::kBF16};
      if (third)
        make("eagle3", std::make_unique<Eagle3Head>(draft, *model_, draft_loader, loader));
      else
        make("eagle", std::make_unique<EagleHead>(draft, *model_, draft_loader));
      source->finish();
      loader.account(draft_loader.packed_bytes());
      return;
    }
    case SpeculativeAlgorithm::kStandalone: {
      const ModelConfig draft = read_model_config(speculative.draft_model_path);
      if (draft.vocab_size != config().vocab_size)
        throw_error(ErrorCode::kModel,
                    "{} has a vocabulary of {} tokens and {} one of {}: a draft model must share "
                    "the target's",
                    speculative.draft_model_path, draft.vocab_size, options_.model_path,
                    config().vocab_size);
      if (draft.max_positions < plan_.context_length)
        throw_error(ErrorCode::kUsage,
                    "the draft model has {} positions: lower options.context_length {} to that",
                    draft.max_positions, plan_.context_length);
      const auto source = open_checkpoint(speculative.draft_model_path, draft);
      WeightLoader draft_loader(*source, *kernels_);
      auto model =
          std::make_shared<MlaModel>(draft, draft_loader, *kernels_, model_->context_len());
      source->finish();
      loader.account(draft_loader.packed_bytes());
      drafter_ = std::make_unique<StandaloneDrafter>(
          std::move(model), *planner_, options_.slot_count, page_count_, cache_format);
      return;
    }
  }
}

}  // namespace foresail
