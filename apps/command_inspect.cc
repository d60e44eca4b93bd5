#include <fmt/core.h>

#include "apps/command.h"
#include "apps/flag_checks.h"
#include "base/json.h"
#include "checkpoint/tensor_list.h"
#include "checkpoint/weight_source.h"
#include "engine/device.h"
#include "engine/memory_plan.h"
#include "kernels/cuda/cuda_kernels.h"

namespace foresail {
namespace {

struct InspectFlags {
  ModelOptions options;
  bool json = false;
};

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

Json describe(const InspectFlags& flags) {
  const ModelConfig config = read_model_config(flags.options.model_path);
  check_context_length(config, flags.options.context_length);
  const TensorTotals totals = total_of(all_tensors(config));
  const TensorTotals stored = total_of(all_tensors(config, config.mtp_layer_count));
  const MemoryPlan plan = plan_memory(config, flags.options, false);
  int64_t moe_layers = 0;
  for (const bool is_moe : config.layer_is_moe) moe_layers += is_moe ? 1 : 0;
  const uint64_t fixed = plan.fixed_bytes();
  const uint64_t room = plan.available_bytes > fixed ? plan.available_bytes - fixed : 0;
  const auto if_known = [&](const Json& value) {
    return plan.available_bytes > 0 ? value : Json(nullptr);
  };
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
          {"kv_bytes_per_token", plan.kv_bytes_per_token},
          {"memory",
           {{"device", device_name(flags.options)},
            {"weights_bytes", plan.weight_bytes},
            {"kv_bytes", plan.kv_bytes},
            {"context_length", plan.context_length},
            {"workspace_bytes", plan.workspace_bytes},
            {"graph_bytes", plan.graph_bytes},
            {"kept_row_bytes", plan.kept_row_bytes},
            {"token_term_bytes", plan.token_term_bytes},
            {"total_bytes", plan.total_bytes()},
            {"available_bytes", if_known(plan.available_bytes)},
            {"fits", if_known(plan.total_bytes() <= plan.available_bytes)},
            {"most_kv_tokens", if_known(room / plan.kv_bytes_per_token)},
            {"unknown",
             plan.available_bytes > 0 ? Json(nullptr) : Json(reason_unknown(flags.options))}}}};
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
  fmt::print("parameters    {}, checkpoint {}{}{}\n", format_count(d["parameters"]),
             // Some leave out what an MTP layer shares with the model.
             d["mtp_layers"] == 0 ? "" : "up to ", format_bytes(d["checkpoint_bytes"]),
             d["quantization"].is_null()
                 ? ""
                 : " in bf16; this one is stored as " + d["quantization"].get<std::string>() +
                       ", which is not supported yet");
  fmt::print("KV            {} bytes per token, positions {}\n", number("kv_bytes_per_token"),
             number("max_positions"));
  const Json& memory = d["memory"];
  fmt::print(
      "{:<13} needs {} = weights {} + KV {} ({} tokens) + workspace {}{}; ",
      memory["device"].get<std::string>(), format_bytes(memory["total_bytes"]),
      format_bytes(memory["weights_bytes"]), format_bytes(memory["kv_bytes"]),
      json_text(memory["context_length"]), format_bytes(memory["workspace_bytes"]),
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
  Command* command = app.add_subcommand(
      "inspect", "Show what a model is and what it needs; reads only config.json");
  command->add_option("model,-m,--model-path,--model", flags->options.model_path, "model folder")
      ->required();
  command->add_option("--dtype", flags->options.dtype, "bf16 or f32, for the memory plan")
      ->capture_default_str()
      ->check(one_of({"bf16", "f32"}));
  command
      ->add_option("--context-length,--max-model-len", flags->options.context_length,
                   "tokens, for the memory plan")
      ->check(number_in(int64_t{0}, INT64_MAX));
  command->add_option("--device", flags->options.device, "whose memory: cpu, cuda or auto")
      ->capture_default_str()
      ->check(one_of({"cpu", "cuda", "auto"}));
  command->add_flag("--json", flags->json, "print one JSON object");
  command->callback([flags] {
    const Json description = describe(*flags);
    if (flags->json)
      fmt::print("{}\n", json_text(description, 2));
    else
      print_table(description);
  });
}

}  // namespace foresail
