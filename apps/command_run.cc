#include <fmt/core.h>
#include <unistd.h>

#include <cstdio>

#include "apps/generation_stats.h"
#include "apps/model_flags.h"
#include "apps/sampling_flags.h"
#include "apps/standard_error.h"
#include "apps/token_printer.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"

namespace foresail {
namespace {

constexpr uint64_t kMaxPromptBytes = 64ull << 20;

struct RunFlags {
  ModelFlags model;
  Request generation;
  std::string prompt, prompt_file;
  bool has_prompt = false, stats = false, json = false, echo = false;
};

Json stats_json(const GenerationStats& stats) {
  return {{"prompt_tokens", stats.prompt_tokens},
          {"output_tokens", stats.output_tokens},
          {"finish_reason", finish_reason_name(stats.finish)},
          {"prefill_s", stats.prefill_s},
          {"decode_s", stats.decode_s},
          {"verify_passes", stats.verify_passes},
          {"accept_length", stats.accept_length()},
          {"drafted_at", stats.drafted_at},
          {"accepted_at", stats.accepted_at}};
}

// Of the whole run, prefill included.
void print_device_stats(LoadedModel& model) {
  const DeviceCounts counts = model.kernels().counts();
  if (counts.passes == 0) return;
  tell(
      "device: {} passes, {} of them graph replays; {} waits, {} uploads of {:.1f} kB, {} "
      "downloads of {:.1f} kB; tokens chosen by",
      counts.passes, counts.replays, counts.waits, counts.uploads,
      static_cast<double>(counts.upload_bytes) / 1e3, counts.downloads,
      static_cast<double>(counts.download_bytes) / 1e3);
  const Iteration::HostChoices& choices = model.iteration().host_choices();
  for (size_t reason = 0; reason < choices.size(); ++reason)
    if (choices[reason] > 0 || reason == 0)
      tell("{} {} passes{}", reason == 0 ? " the device after" : ", the host after",
           choices[reason],
           reason == 0 ? std::string()
                       : fmt::format(" ({})", host_choice_name(static_cast<HostChoice>(reason))));
  tell("\n");
}

void run(RunFlags& flags) {
  const bool from_file = !flags.prompt_file.empty();
  if (flags.has_prompt == from_file)
    throw_error(ErrorCode::kUsage,
                "give the prompt either with -p TEXT or with --prompt-file FILE");
  if (from_file) flags.prompt = read_input(flags.prompt_file, kMaxPromptBytes);
  const ModelOptions& options = flags.model.options;
  const ModelConfig config = read_model_config(options.model_path);
  const auto tokenizer = load_tokenizer(options.model_path);
  const std::vector<int32_t> prompt = tokenizer->encode(flags.prompt, {.add_bos = true});
  check_generation(prompt, flags.generation, tokenizer.get(), config,
                   plan_memory(config, options, false).context_length);
  const auto model = load_model(flags.model);
  warn_of_begin_token(options.model_path, tokenizer.get());
  TextGenerator generator(*model, tokenizer.get());
  const TokenPrinter printer;
  std::string text;
  std::vector<int32_t> ids;
  if (flags.echo && !flags.json) fmt::print("{}", flags.prompt);
  const GenerationStats stats =
      generator.generate(prompt, flags.generation, [&](const Event& event) {
        if (event.token >= 0) ids.push_back(event.token);
        text += event.text;
        if (!flags.json) printer(event);
      });
  if (flags.json) {
    Json result = stats_json(stats);
    result["text"] = text;
    result["token_ids"] = ids;
    result["prompt_ids"] = prompt;
    fmt::print("{}\n", json_text(result));
  } else {
    fmt::print("\n");
  }
  std::fflush(stdout);
  if (stats.finish == FinishReason::kLength && !flags.json &&
      (flags.stats || isatty(STDOUT_FILENO) != 0))
    print_cut(stats.output_tokens, false);
  if (flags.stats) {
    print_stats(stats, model->drafter() != nullptr, flags.model.simulate_accept_length > 0);
    print_device_stats(*model);
  }
}

}  // namespace

void add_run_command(Command& app) {
  auto flags = std::make_shared<RunFlags>();
  Command* command = app.add_subcommand("run", "Generate text from one prompt");
  add_model_flags(*command, flags->model, true);
  add_sampling_flags(*command, flags->generation);
  command->add_option("-p,--prompt", flags->prompt,
                      "the prompt; an empty one starts from the begin token");
  command->add_option("--prompt-file", flags->prompt_file,
                      "read the prompt from a file; -: standard input");
  command->add_flag("--stats", flags->stats, "print tokens/s and accept length");
  command->add_flag("--json", flags->json, "print one JSON object instead of text");
  command->add_flag("--echo", flags->echo, "print the prompt first");
  command->callback([flags, command] {
    flags->has_prompt = command->count("--prompt") > 0;
    add_model_defaults(*command, flags->model.options.model_path, flags->generation.sampling);
    run(*flags);
  });
}

}  // namespace foresail
