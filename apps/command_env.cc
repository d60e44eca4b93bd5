#include <fmt/core.h>

#include <fstream>
#include <thread>

#include "apps/command.h"
#include "base/json.h"
#include "engine/memory_plan.h"
#include "foresail/version.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cuda/cuda_kernels.h"

namespace foresail {
namespace {

std::string processor_name() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);)
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  return "unknown";
}

std::string gpu_line() {
  std::string why;
  const std::optional<CudaDevice> gpu = find_cuda_device(&why);
  if (!gpu) return "none: " + why;
  return fmt::format("{}, sm_{}{}, {} multiprocessors, {} of {} free, driver for CUDA {}.{}",
                     gpu->name, gpu->major, gpu->minor, gpu->multiprocessors,
                     format_bytes(gpu->free_bytes), format_bytes(gpu->total_bytes),
                     gpu->driver_version / 1000, gpu->driver_version % 1000 / 10);
}

}  // namespace

void add_env_command(Command& app) {
  auto json = std::make_shared<bool>(false);
  Command* command =
      app.add_subcommand("env", "Show what this build and this machine have, for bug reports");
  command->add_flag("--json", *json, "print one JSON object");
  command->callback([json] {
    const Json facts = {
        {"version", FORESAIL_VERSION},
        {"commit", FORESAIL_COMMIT},
        {"compiler", __VERSION__},
        {"processor", processor_name()},
        {"threads", std::thread::hardware_concurrency()},
        {"memory_available_bytes", available_memory_bytes()},
        {"cpu_isas", available_isas()},
        {"gpu", gpu_line()},
        {"devices", find_cuda_device() ? Json{"cpu", "cuda", "ref"} : Json{"cpu", "ref"}}};
    if (*json) {
      fmt::print("{}\n", json_text(facts, 2));
      return;
    }
    for (const auto& [key, value] : facts.items())
      fmt::print("{:<24} {}\n", key,
                 value.is_string() ? value.get<std::string>() : json_text(value));
  });
}

std::string version_line() {
  return fmt::format("foresail {} ({})", FORESAIL_VERSION, FORESAIL_COMMIT);
}

void add_version_command(Command& app) {
  app.add_subcommand("version", "Print the version")->callback([] {
    fmt::print("{}\n", version_line());
  });
}

}  // namespace foresail
