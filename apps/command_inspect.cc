#include <fmt/core.h>

#include <filesystem>

#include "apps/command.h"
#include "apps/engine_flags.h"
#include "base/json.h"
#include "checkpoint/tensor_list.h"
#include "checkpoint/weight_source.h"
#include "engine/device.h"
#include "engine/memory_plan.h"
#include "kernels/cuda/cuda_kernels.h"

namespace foresail {
namespace {

struct InspectFlags {
  EngineFlags engine;
  bool json = false;
};

struct WeightFiles {
  uint64_t count = 0, size_bytes = 0;
};

// Those of the folder, whole or not: they are not opened.
WeightFiles find_weight_files(const std::filesystem::path& folder) {
  WeightFiles found;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with("model") || !name.ends_with(".safetensors")) continue;
    const uintmax_t size = entry.file_size(error);
    if (error) continue;  // a link to nowhere
    ++found.count;
    found.size_bytes += size;
  }
  return found;
}

std::string format_count(double count) {
  if (count >= 1e9) return fmt::format("{:.2f} B", count / 1e9);
  if (count >= 1e6) return fmt::format("{:.2f} M", count / 1e6);
  return fmt::format("{:.1f} K", count / 1e3);
}

std::string device_name(const ModelOptions& options) {
  if (resolve_device(options.device) != "cuda") return "this machine";
  const std::optional<CudaDevice> gpu = find_cuda_device();
  return gpu ? gpu->name : "no GPU";
}

// Why nothing is known of the device's memory.
std::string reason_unknown(const ModelOptions& options) {
  std::string why = "the system does not say how much memory is free";
  if (resolve_device(options.device) == "cuda") find_cuda_device(&why);
  return why;
}

bool drafts_with_mtp(const ModelOptions& options) {
  return options.speculative.algorithm == SpeculativeAlgorithm::kMtp;
}

Json memory_of(const MemoryPlan& plan, const ModelOptions& options) {
  const uint64_t fixed = plan.fixed_bytes();
  const uint64_t room = plan.available_bytes > fixed ? plan.available_bytes - fixed : 0;
  const bool known = plan.available_bytes > 0;
  const auto if_known = [&](const Json& value) { return known ? value : Json(nullptr); };
  return {{"device", device_name(options)},
          {"weights_bytes", plan.weight_bytes},
          {"weights_bytes_twice", plan.second_bytes},
          {"weights_at_most", drafts_with_mtp(options)},
          {"kv_bytes", plan.kv_bytes},
          {"kv_tokens", plan.cached_tokens},
          {"context_length", plan.context_length},
          {"workspace_bytes", plan.workspace_bytes},
          {"graph_bytes", plan.graph_bytes},
          {"kept_row_bytes", plan.kept_row_bytes},
          {"token_term_bytes", plan.token_term_bytes},
          {"total_bytes", plan.total_bytes()},
          {"available_bytes", if_known(plan.available_bytes)},
          {"fits", if_known(plan.total_bytes() <= plan.available_bytes)},
          {"most_kv_tokens", if_known(room / plan.kv_bytes_per_token)},
          {"unknown", known ? Json(nullptr) : Json(reason_unknown(options))}};
}

Json describe(const ModelOptions& options) {
  const ModelConfig config = read_model_config(options.model_path);
  check_context_length(config, options.context_length);
  check_model_options(options);
  const TensorTotals totals = total_of(all_tensors(config));
  const TensorTotals stored = total_of(all_tensors(config, config.mtp_layer_count));
  const WeightFiles files = find_weight_files(options.model_path);
  const MemoryPlan plan = plan_memory(config, options, drafts_with_mtp(options));
  int64_t moe_layers = 0;
  for (const bool is_moe : config.layer_is_moe) moe_layers += is_moe ? 1 : 0;
  return {{"architecture", config.architecture},
          {"family", config.family},
          {"layers", config.layer_count},
          {"moe_layers", moe_layers},
          {"hidden", config.hidden_dim},
          {"heads", config.head_count},
          {"q_lora_rank", config.q_lora_rank},
          {"kv_lora_rank", config.kv_lora_rank},
          {"qk_nope_head_dim", config.nope_dim},
          {"qk_rope_head_dim", config.rope_dim},
          {"v_head_dim", config.value_dim},
          {"vocab", config.vocab_size},
          {"experts", config.moe.expert_count},
          {"experts_per_token", config.moe.top_k},
          {"shared_experts", config.moe.shared_expert_count},
          {"mtp_layers", config.mtp_layer_count},
          {"max_positions", config.max_positions},
          {"softmax_scale", config.softmax_scale()},
          {"quantization", config.quantization.empty() ? Json(nullptr) : Json(config.quantization)},
          {"parameters", totals.parameter_count},
          {"checkpoint_bytes", stored.size_bytes},
          {"weight_files", files.count},
          {"weight_file_bytes", files.size_bytes},
          {"kv_bytes_per_token", plan.kv_bytes_per_token},
          {"memory", memory_of(plan, options)}};
}

void print_table(const Json& d) {
  const auto number = [&](const char* key) { return json_text(d[key]); };
  fmt::print("{} ({})\n", d["architecture"].get<std::string>(), d["family"].get<std::string>());
  fmt::print("layers        {} ({} with experts), hidden {}, heads {}, vocabulary {}\n",
             number("layers"), number("moe_layers"), number("hidden"), number("heads"),
             number("vocab"));
  fmt::print("attention     q_lora {}, kv_lora {}, nope {}, rope {}, value {}; softmax scale {}\n",
             number("q_lora_rank"), number("kv_lora_rank"), number("qk_nope_head_dim"),
             number("qk_rope_head_dim"), number("v_head_dim"), number("softmax_scale"));
  fmt::print("experts       {} choose {}, shared {}; MTP layers {}\n", number("experts"),
             number("experts_per_token"), number("shared_experts"), number("mtp_layers"));
  const std::string quantised =
      d["quantization"].is_null() ? std::string() : d["quantization"].get<std::string>();
  if (d["weight_files"] > 0)
    fmt::print("parameters    {}, checkpoint {} in {} file{}{}\n", format_count(d["parameters"]),
               format_bytes(d["weight_file_bytes"]), number("weight_files"),
               d["weight_files"] == 1 ? "" : "s",
               quantised.empty() ? "" : ", stored as " + quantised + ": not supported yet");
  else
    fmt::print("parameters    {}, checkpoint {}{}{}\n", format_count(d["parameters"]),
               // Some leave out what an MTP layer shares with the model.
               d["mtp_layers"] == 0 ? "" : "up to ", format_bytes(d["checkpoint_bytes"]),
               quantised.empty() ? ""
                                 : " in bf16; this one is stored as " + quantised +
                                       ", which is not supported yet");
  fmt::print("KV            {} bytes per token, positions {}\n", number("kv_bytes_per_token"),
             number("max_positions"));
  const Json& memory = d["memory"];
  const auto twice = memory["weights_bytes_twice"].get<uint64_t>();
  fmt::print(
      "{:<13} needs {} = weights {}{}{} + KV {} ({} tokens) + workspace {}{}; ",
      memory["device"].get<std::string>(), format_bytes(memory["total_bytes"]),
      memory["weights_at_most"].get<bool>() ? "up to " : "", format_bytes(memory["weights_bytes"]),
      twice == 0 ? "" : fmt::format(" ({} of them twice)", format_bytes(twice)),
      format_bytes(memory["kv_bytes"]), json_text(memory["kv_tokens"]),
      format_bytes(memory["workspace_bytes"]),
      device_parts(memory["graph_bytes"], memory["kept_row_bytes"], memory["token_term_bytes"]));
  if (memory["fits"].is_null())
    fmt::print("whether it fits is not known: {}\n", memory["unknown"].get<std::string>());
  else
    fmt::print("has {}: {} (at most {} tokens of KV)\n", format_bytes(memory["available_bytes"]),
               memory["fits"].get<bool>() ? "fits" : "does not fit",
               json_text(memory["most_kv_tokens"]));
}

}  // namespace

void add_inspect_command(Command& app) {
  auto flags = std::make_shared<InspectFlags>();
  Command* command =
      app.add_subcommand("inspect", "Show what a model is and what it needs; opens no weights");
  command->footer(
      "Memory is that of generate and serve with the same flags (those that it does not depend on "
      "change\nnothing), a draft model of --speculative-draft-model-path not counted. Weights that "
      "are there twice:\ntied embeddings (rows to look up, a matrix to multiply by) and the keys "
      "of "
      "kv_b (one orientation for each\nform of attention). Where MTP drafts, \"up to\": it may "
      "share the model's embeddings.");
  add_engine_flags(*command, flags->engine);
  command->add_flag("--json", flags->json, "print one JSON object");
  command->callback([flags] {
    ModelFlags& model = flags->engine.model;
    resolve_speculation(model);
    model.options.slot_count = flags->engine.engine.max_running_requests;
    const Json description = describe(model.options);
    if (flags->json)
      fmt::print("{}\n", json_text(description, 2));
    else
      print_table(description);
  });
}

}  // namespace foresail
