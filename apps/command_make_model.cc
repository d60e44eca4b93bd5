#include <fmt/format.h>

#include <filesystem>

#include "apps/command.h"
#include "apps/flag_checks.h"
#include "apps/progress_line.h"
#include "apps/stop_key.h"
#include "base/error.h"
#include "checkpoint/model_writer.h"
#include "engine/memory_plan.h"

namespace foresail {
namespace {

struct MakeModelFlags {
  std::string dir, preset;
  int64_t layers = 0;
  uint64_t seed = 0;
};

struct Stopped {};

// Of a folder that was empty before; what was there itself stays. The file that was being written
// is gone already.
void remove_weights(const std::filesystem::path& dir, bool was_there) {
  std::error_code ignored;
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(dir, ignored))
    if (entry.path().extension() == ".safetensors") files.push_back(entry.path());
  for (const auto& file : files) std::filesystem::remove(file, ignored);
  if (!was_there) std::filesystem::remove(dir, ignored);  // which it does only if it is empty
}

void make_model(const MakeModelFlags& flags) {
  const std::optional<int64_t> layers =
      flags.layers > 0 ? std::optional(flags.layers) : std::nullopt;
  const Preset preset = make_preset(flags.preset, layers);
  std::error_code ignored;
  const bool was_there = std::filesystem::exists(flags.dir, ignored);
  ProgressLine progress;
  const StopKey key{SIGINT, SIGTERM};
  try {
    write_preset(flags.dir, preset, flags.seed, [&](uint64_t done, uint64_t total) {
      if (key.was_pressed()) throw Stopped{};
      progress.show(fmt::format("writing {} of {}", format_bytes(done), format_bytes(total)));
    });
  } catch (const Stopped&) {
    progress.clear();
    remove_weights(flags.dir, was_there);
    raise(key.signal());  // its second time: it ends the program
  }
  progress.clear();
  fmt::print("{}: {} with random weights (seed {}){}\n", flags.dir, flags.preset, flags.seed,
             preset.draft ? ", draft head in " + flags.dir + "/draft" : "");
}

}  // namespace

void add_make_model_command(Command& app) {
  auto flags = std::make_shared<MakeModelFlags>();
  Command* command =
      app.add_subcommand("make-model", "Write a model with random weights as a real checkpoint");
  std::vector<std::string> names;
  std::string summaries;
  for (const PresetInfo& info : preset_list()) {
    names.push_back(std::string(info.name));
    summaries += fmt::format("\n  {}: {}", info.name, info.summary);
  }
  command->add_option("dir", flags->dir, "folder to write; must be new or empty")->required();
  command
      ->add_option("--preset", flags->preset,
                   fmt::format("{}{}", fmt::join(names, ", "), summaries))
      ->required();
  command->add_option("--layers", flags->layers, "layers; 0: the preset's")
      ->check(number_in(0, 1024));
  command->add_option("--seed", flags->seed, "seed of the weights")->capture_default_str();
  command->callback([flags] { make_model(*flags); });
}

}  // namespace foresail
