#include "apps/model_flags.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "apps/engine_log.h"
#include "apps/flag_checks.h"
#include "apps/flag_groups.h"
#include "apps/program.h"
#include "apps/progress_line.h"
#include "apps/standard_error.h"
#include "base/error.h"
#include "base/utf8.h"
#include "speculative/flight.h"

namespace foresail {
namespace {

// Draws only once loading has taken long enough to be noticed.
LoadProgress progress_bar() {
  const auto line = std::make_shared<ProgressLine>();
  if (!line->is_shown()) return {};
  return [line, start = std::chrono::steady_clock::now(), shown = -1](uint64_t done,
                                                                      uint64_t total) mutable {
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    // Optional tensors (an MTP layer) come after the total that was announced.
    const int percent =
        total == 0 ? 100 : static_cast<int>(std::min<uint64_t>(100, 100 * done / total));
    if (elapsed.count() < 0.7 || percent == shown) return;
    shown = percent;
    line->show(
        fmt::format("loading [{:<40}] {:3}%", std::string(percent * 40 / 100, '#'), percent));
    if (done >= total) line->clear();
  };
}

void add_clearing_flag(FlagGroup& group, const std::string& name, bool& value,
                       const std::string& help) {
  group.add_flag_callback(
      name, [&value] { value = false; }, help);
}

// What was asked for and would be read by nothing. An algorithm that is NONE by name turns the
// others off on purpose.
void refuse_idle_flags(const ModelFlags& flags) {
  const auto given = [&](const char* name) { return flags.command->count(name) > 0; };
  const SpeculativeAlgorithm algorithm = flags.options.speculative.algorithm;
  if (algorithm == SpeculativeAlgorithm::kNone && !given("--speculative-algorithm"))
    for (const char* name : {"--speculative-draft-model-path", "--speculative-num-steps",
                             "--speculative-num-draft-tokens",
                             "--speculative-simulate-accept-length", "--speculative-fixed"})
      if (given(name))
        throw_error(ErrorCode::kUsage,
                    "{} needs --speculative-algorithm: choose MTP, EAGLE, EAGLE3, NGRAM or "
                    "STANDALONE",
                    name);
  if ((algorithm == SpeculativeAlgorithm::kMtp || algorithm == SpeculativeAlgorithm::kNgram) &&
      given("--speculative-draft-model-path"))
    throw_error(ErrorCode::kUsage,
                "--speculative-draft-model-path is for EAGLE, EAGLE3 and STANDALONE: {} drafts "
                "without a folder",
                flags.speculative_algorithm);
}

}  // namespace

void warn_of_begin_token(const std::string& model_path, const Tokenizer* tokenizer) {
  if (tokenizer == nullptr) return;
  const std::string warning = begin_token_warning(model_path, *tokenizer);
  if (!warning.empty()) print_line("warning", warning);
}

void add_model_flags(Command& command, ModelFlags& flags, bool speculative) {
  flags.command = &command;
  ModelOptions& options = flags.options;
  options.log = engine_log();
  FlagGroup model(command, kModelGroup), device(command, kDeviceGroup), log(command, kLogGroup),
      attention(command, kAttentionGroup), speculation(command, kSpeculationGroup);
  model
      .add_option("model,-m,--model-path,--model", options.model_path,
                  "model folder in Hugging Face layout")
      ->required();
  model
      .add_option("--load-format", options.load_format,
                  "auto, safetensors or dummy (random weights)")
      ->capture_default_str();
  model.add_option("--dtype", options.dtype, "bf16 or f32")->capture_default_str();
  device
      .add_option("--device", options.device,
                  "cpu, cuda, auto (cuda if there is a usable GPU), or ref (slow float64 oracle)")
      ->capture_default_str()
      ->check(one_of({"cpu", "cuda", "auto", "ref"}));
  device.add_flag("--deterministic", options.deterministic,
                  "cuda: output independent of batch and speculation, bit for bit; slower");
  device.add_flag("--disable-cuda-graph", options.disable_cuda_graph,
                  "cuda: launch small passes kernel by kernel");
  device
      .add_option("--cpu-isa", options.cpu_isa,
                  "auto, or one of the sets that `foresail env` lists")
      ->capture_default_str();
  device.add_option("--threads", options.threads, "threads; 0: all cores")
      ->capture_default_str()
      ->check(number_in(0, 1024));
  device.add_option("--kv-cache-dtype", options.kv_cache_dtype, "auto, bf16, f32 or fp8_e4m3")
      ->capture_default_str();
  device
      .add_option("--kv-cache-scale", options.kv_cache_scale,
                  "of an fp8_e4m3 cache: a number is its code times this")
      ->capture_default_str();
  device.add_option("--page-size,--block-size", options.page_size, "tokens per cache page")
      ->capture_default_str()
      ->check(one_of({"1", "16", "32", "64"}));
  model
      .add_option("--context-length,--max-model-len", options.context_length,
                  "most tokens of a request; 0: the model's, at most 8192")
      ->capture_default_str()
      ->check(number_in(int64_t{0}, INT64_MAX));
  attention
      .add_option("--attention-path", options.attention_path,
                  "auto, absorbed or expanded: the form of attention in prefill")
      ->capture_default_str();
  attention
      .add_option("--attention-backend", options.attention_backend,
                  "paged (block table), indexed (list of key slots) or reference (float64)")
      ->capture_default_str();
  attention.add_option("--fallback-attention-backend", options.fallback_attention_backend,
                       "backend of prefill that may not run expanded; default: the same");
  attention.add_flag("--disable-chunked-prefix-cache", options.disable_chunked_prefix_cache,
                     "prefill over a cached prefix runs absorbed");
  attention.add_flag("--segmented-prefill", options.segmented_prefill,
                     "plan prefill as inside a segmented graph (absorbed)");
  add_clearing_flag(attention, "--no-skip-mha-chunk-metadata", options.skip_mha_chunk_metadata,
                    "build ragged chunk plans that nothing reads, to measure their cost");
  attention.add_flag("--explain-plan", flags.explain_plan,
                     "print every distinct attention plan on stderr");
  log.add_flag("--quiet", flags.quiet, flags.quiet_help);
  if (!speculative) return;
  SpeculativeOptions& spec = options.speculative;
  speculation
      .add_option("--speculative-algorithm", flags.speculative_algorithm,
                  "MTP (NEXTN), EAGLE, EAGLE3, NGRAM, STANDALONE or NONE")
      ->capture_default_str();
  speculation.add_option("--speculative-draft-model-path", spec.draft_model_path,
                         "folder of the EAGLE head or of the independent draft model");
  add_clearing_flag(attention, "--no-skip-draft-kv-indices", options.skip_draft_kv_indices,
                    "build key lists for draft loops that nothing reads, to measure their cost");
  add_clearing_flag(speculation, "--speculative-fixed", spec.adaptive,
                    "always draft --speculative-num-steps, whether it pays or not");
  speculation.add_option("--speculative-num-steps", spec.steps, "drafts per iteration, at most")
      ->capture_default_str()
      ->check(number_in(0, kMostDrafts));
  speculation
      .add_option("--speculative-num-draft-tokens", flags.num_draft_tokens,
                  "tokens of a verify pass: drafts and one (chains only)")
      ->check(number_in(1, kMostVerifyRows));
  speculation
      .add_option("--speculative-eagle-topk", flags.draft_width,
                  "drafts per position: chains have 1")
      ->capture_default_str()
      ->check(one_of({"1"}));
  speculation
      .add_option("--speculative-simulate-accept-length", flags.simulate_accept_length,
                  "pretend this many tokens per iteration were accepted (performance runs only; "
                  "output is not the model's)")
      ->check(number_in(1.0, static_cast<double>(kMostVerifyRows)));
}

void resolve_speculation(ModelFlags& flags) {
  flags.options.speculative.algorithm = parse_speculative_algorithm(flags.speculative_algorithm);
  refuse_idle_flags(flags);
  // Chains verify every draft and the token before them.
  if (flags.num_draft_tokens != 0 && flags.num_draft_tokens != flags.options.speculative.steps + 1)
    throw_error(ErrorCode::kUsage,
                "--speculative-num-draft-tokens {} does not go with --speculative-num-steps {}: a "
                "chain needs steps + 1",
                flags.num_draft_tokens, flags.options.speculative.steps);
  if (flags.simulate_accept_length != 0)
    flags.options.speculative.simulate_accept_length = flags.simulate_accept_length;
}

std::unique_ptr<LoadedModel> load_model(ModelFlags& flags) {
  resolve_speculation(flags);
  const auto start = std::chrono::steady_clock::now();
  auto model = std::make_unique<LoadedModel>(flags.options, progress_bar());
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  if (flags.explain_plan) {
    // A text that is being written on the same terminal may have begun the line.
    const char* fresh_line = isatty(STDOUT_FILENO) != 0 && isatty(STDERR_FILENO) != 0 ? "\n" : "";
    model->planner().explain([fresh_line](const std::string& plan) {
      std::fflush(stdout);
      tell("{}plan: {}\n", fresh_line, plan);
    });
  }
  if (!flags.quiet)
    tell("{}: {} layers, kernels {}, weights {}, KV {} for {} tokens{}, loaded in {:.2f} s\n",
         flags.options.model_path, model->config().layer_count, model->kernels().name(),
         format_bytes(model->packed_bytes()), format_bytes(model->memory_plan().kv_bytes),
         model->memory_plan().cached_tokens,
         model->drafter() == nullptr ? ""
                                     : fmt::format(", drafter {} x{}", model->drafter()->name(),
                                                   flags.options.speculative.steps),
         elapsed.count());
  return model;
}

}  // namespace foresail
