#include "engine/memory_plan.h"

#include <fmt/core.h>

#include <algorithm>
#include <fstream>

#include "attention/attention_config.h"
#include "base/error.h"
#include "checkpoint/tensor_list.h"
#include "engine/device.h"
#include "kernels/cuda/cuda_kernels.h"
#include "speculative/head_drafter.h"
#include "speculative/iteration.h"
#include "tensor/dtype.h"

namespace foresail {
namespace {

// A prefill chunk's activations and the thread stacks; measured, not derived.
constexpr uint64_t kWorkspaceBytes = 256ull << 20;
// A GPU holds more of them, and the partial results of attention; its rows of experts come on top.
constexpr uint64_t kCudaWorkspaceBytes = 704ull << 20;
// Of a recorded pass, per layer: about 7 KiB for each of up to 32 kernels; measured, not derived. A
// draft loop is joined to its verify pass once more, but its passes have few layers.
constexpr uint64_t kGraphLayerBytes = 224ull << 10;
constexpr int64_t kDefaultContext = 8192;
constexpr int kDefaultContexts = 8;

uint64_t element_bytes(const std::string& dtype) {
  if (dtype == "fp8_e4m3" || dtype == "fp8") return 1;
  return dtype == "f32" || dtype == "float32" ? 4 : 2;
}

// Numbers of the target's states that a row of the drafter waits with; 0: no row waits.
int64_t kept_row_width(const ModelConfig& config, SpeculativeAlgorithm algorithm) {
  switch (algorithm) {
    case SpeculativeAlgorithm::kMtp:
    case SpeculativeAlgorithm::kEagle:
      return config.hidden_dim;
    case SpeculativeAlgorithm::kEagle3:
      return 3 * config.hidden_dim;  // states of three layers
    default:
      return 0;
  }
}

}  // namespace

std::string format_bytes(uint64_t size_bytes) {
  if (size_bytes >= 1ull << 30)
    return fmt::format("{:.2f} GiB", static_cast<double>(size_bytes) / (1ull << 30));
  if (size_bytes >= 1ull << 20)
    return fmt::format("{:.1f} MiB", static_cast<double>(size_bytes) / (1ull << 20));
  return fmt::format("{:.1f} KiB", static_cast<double>(size_bytes) / 1024);
}

std::string device_parts(uint64_t graph_bytes, uint64_t kept_row_bytes, uint64_t token_term_bytes) {
  std::string text;
  if (graph_bytes > 0) text += " + graphs " + format_bytes(graph_bytes);
  if (kept_row_bytes > 0) text += " + waiting rows " + format_bytes(kept_row_bytes);
  if (token_term_bytes > 0) text += " + token counts and masks " + format_bytes(token_term_bytes);
  return text;
}

uint64_t available_memory_bytes() {
  uint64_t available = 0;
  std::ifstream info("/proc/meminfo");
  for (std::string key; info >> key;) {
    uint64_t kib = 0;
    if (key == "MemAvailable:" && info >> kib) available = kib * 1024;
    info.ignore(256, '\n');
  }
  std::ifstream limit("/sys/fs/cgroup/memory.max");
  std::ifstream used("/sys/fs/cgroup/memory.current");
  uint64_t limit_bytes = 0;
  uint64_t used_bytes = 0;
  if (limit >> limit_bytes && used >> used_bytes && limit_bytes > used_bytes)
    available = std::min(available, limit_bytes - used_bytes);
  return available;
}

void check_context_length(const ModelConfig& config, int64_t context_length) {
  if (context_length > config.max_positions)
    throw_error(ErrorCode::kUsage, "options.context_length {} exceeds the model's {} positions",
                context_length, config.max_positions);
}

const std::string& kv_cache_dtype(const ModelOptions& options) {
  return options.kv_cache_dtype == "auto" ? options.dtype : options.kv_cache_dtype;
}

// The keys and values that expanded prefill makes of the latents of one chunk, for all heads.
uint64_t expanded_bytes(const ModelConfig& config, const ModelOptions& options,
                        const std::string& device, int64_t context_length) {
  if (options.attention_path == "absorbed") return 0;
  const int64_t keys = std::min<int64_t>(AttentionConfig{}.prefix_chunk_keys, context_length);
  const auto f32_bytes = saturating_mul(static_cast<uint64_t>(4 * keys * config.head_count),
                                        static_cast<uint64_t>(config.nope_dim + config.value_dim));
  if (device != "cuda") return f32_bytes;
  return saturating_add(f32_bytes, cuda_expanded_bytes(keys, static_cast<int>(config.head_count),
                                                       static_cast<int>(config.nope_dim),
                                                       static_cast<int>(config.rope_dim),
                                                       static_cast<int>(config.value_dim)));
}

MemoryPlan plan_memory(const ModelConfig& config, const ModelOptions& options, bool with_mtp) {
  MemoryPlan plan;
  const std::string device = resolve_device(options.device);
  plan.workspace_bytes = device == "cuda" ? kCudaWorkspaceBytes : kWorkspaceBytes;
  plan.available_bytes = device_memory_bytes(device);
  if (device == "cuda" && !options.disable_cuda_graph)
    plan.graph_bytes = kMostRecordedPasses *
                       saturating_mul(static_cast<uint64_t>(config.layer_count), kGraphLayerBytes);
  if (device == "cuda" && config.moe.expert_count > 0)
    plan.workspace_bytes = saturating_add(
        plan.workspace_bytes,
        cuda_expert_bytes(config.hidden_dim, config.moe.inner_dim, config.moe.expert_count));
  if (device == "cuda") {
    const int64_t width = kept_row_width(config, options.speculative.algorithm);
    // The ring of every slot, and the same rows once more, dense, for the pass that takes them in.
    plan.kept_row_bytes = saturating_mul(static_cast<uint64_t>(options.slot_count),
                                         static_cast<uint64_t>(2 * kMostKeptRows * 4 * width));
    plan.token_term_bytes = Iteration::term_bytes(static_cast<uint64_t>(options.slot_count),
                                                  static_cast<uint64_t>(config.vocab_size));
  }
  plan.has_f32_weights = element_bytes(options.dtype) == 4;
  const auto add_to = [&](uint64_t& bytes, uint64_t elements) {
    bytes = saturating_add(bytes, saturating_mul(elements, element_bytes(options.dtype)));
  };
  for (const TensorSpec& spec : all_tensors(config, with_mtp ? config.mtp_layer_count : 0)) {
    add_to(plan.weight_bytes, spec.element_count());
    // The key half of kv_b is kept in both orientations, one for each form of attention.
    if (spec.name.ends_with("kv_b_proj.weight"))
      add_to(plan.second_bytes,
             spec.element_count() / (config.nope_dim + config.value_dim) * config.nope_dim);
  }
  // Rows to look up, and a matrix to multiply by.
  if (config.tied_embeddings)
    add_to(plan.second_bytes, static_cast<uint64_t>(config.vocab_size * config.hidden_dim));
  plan.weight_bytes = saturating_add(plan.weight_bytes, plan.second_bytes);
  plan.context_length = options.context_length > 0
                            ? options.context_length
                            : std::min(config.max_positions, kDefaultContext);
  plan.workspace_bytes = saturating_add(
      plan.workspace_bytes, expanded_bytes(config, options, device, plan.context_length));
  const int64_t cached_layers = config.layer_count + (with_mtp ? config.mtp_layer_count : 0);
  plan.kv_bytes_per_token = static_cast<uint64_t>(cached_layers * config.latent_row_dim()) *
                            element_bytes(kv_cache_dtype(options));
  if (options.max_total_tokens > 0) {
    plan.size_field = "options.max_total_tokens";
    plan.cached_tokens = options.max_total_tokens;
  } else if (options.mem_fraction_static > 0.0) {
    const double share = options.mem_fraction_static * static_cast<double>(plan.available_bytes);
    const double left = share - static_cast<double>(plan.fixed_bytes());
    const auto fitting =
        static_cast<int64_t>(std::max(0.0, left / static_cast<double>(plan.kv_bytes_per_token)));
    if (fitting < plan.context_length)
      throw_error(
          ErrorCode::kDevice,
          "options.mem_fraction_static {} leaves {} tokens of cache, less than one context of "
          "{}: raise it, or lower options.context_length",
          options.mem_fraction_static, fitting, plan.context_length);
    plan.cached_tokens = std::min(fitting, plan.context_length * options.slot_count);
  } else {
    // Requests rarely grow to their limit at once.
    plan.tokens_per_size = std::min(options.slot_count, kDefaultContexts);
    plan.cached_tokens = plan.context_length * plan.tokens_per_size;
  }
  plan.kv_bytes =
      saturating_mul(plan.kv_bytes_per_token, static_cast<uint64_t>(plan.cached_tokens));
  return plan;
}

void require_fits(const MemoryPlan& plan) {
  if (plan.available_bytes == 0 || plan.total_bytes() <= plan.available_bytes) return;
  const uint64_t fixed = plan.fixed_bytes();
  const uint64_t unit_bytes = plan.kv_bytes_per_token * static_cast<uint64_t>(plan.tokens_per_size);
  std::string advice = plan.has_f32_weights ? "choose a smaller model or options.dtype bf16"
                                            : "choose a smaller model";
  if (fixed < plan.available_bytes && unit_bytes < plan.available_bytes - fixed)
    advice = fmt::format("{} {} would fit", plan.size_field,
                         (plan.available_bytes - fixed) / unit_bytes);
  else if (fixed >= plan.available_bytes && plan.model_bytes() < plan.available_bytes)
    advice = "lower options.max_running_requests";
  throw_error(ErrorCode::kDevice,
              "not enough memory: need {} = weights {} + KV {} ({} tokens x {} bytes) + workspace "
              "{}{}, have {}: {}",
              format_bytes(plan.total_bytes()), format_bytes(plan.weight_bytes),
              format_bytes(plan.kv_bytes), plan.cached_tokens, plan.kv_bytes_per_token,
              format_bytes(plan.workspace_bytes),
              device_parts(plan.graph_bytes, plan.kept_row_bytes, plan.token_term_bytes),
              format_bytes(plan.available_bytes), advice);
}

}  // namespace foresail
