// The main of programs that Google Benchmark times: its own reads a flag that is wrong as none and
// ends in an uncaught exception.
#include <benchmark/benchmark.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "apps/flag_checks.h"
#include "apps/program.h"
#include "base/error.h"

namespace foresail {
namespace {

// By the library's names; what was given is handed on.
struct BenchmarkFlags {
  std::map<std::string, std::string> values;
  bool list = false, aggregates = false;
};

void add_flags(Command& command, BenchmarkFlags& flags) {
  const auto add = [&](const std::string& name, const std::string& help) {
    return command.add_option("--" + name, flags.values[name], help);
  };
  const FlagCheck format = one_of({"console", "json", "csv"});
  add("benchmark_filter", "only those whose names this regular expression matches");
  add("benchmark_min_time", "seconds that each runs at least")->check(number_in(0.0, 3600.0));
  add("benchmark_repetitions", "how often each is timed")->check(number_in(1, 1000));
  add("benchmark_format", "how rows are printed")->check(format);
  add("benchmark_out", "file that rows are written to as well");
  add("benchmark_out_format", "how they are written")->check(format);
  command.add_flag("--benchmark_list_tests", flags.list, "print the names and time nothing");
  command.add_flag("--benchmark_report_aggregates_only", flags.aggregates,
                   "of repetitions only their mean, median and spread");
}

void run(const std::string& name, const BenchmarkFlags& flags) {
  std::vector<std::string> words = {name};
  for (const auto& [flag, value] : flags.values)
    if (!value.empty()) words.push_back("--" + flag + "=" + value);
  if (flags.list) words.push_back("--benchmark_list_tests=true");
  if (flags.aggregates) words.push_back("--benchmark_report_aggregates_only=true");
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  int count = static_cast<int>(arguments.size());
  benchmark::Initialize(&count, arguments.data());
  if (count > 1) throw_error(ErrorCode::kUsage, "{} is not taken", arguments[1]);
  if (benchmark::RunSpecifiedBenchmarks() == 0)
    throw_error(ErrorCode::kUsage, "nothing to time: --benchmark_list_tests prints the names");
}

}  // namespace
}  // namespace foresail

int main(int argc, char** argv) {
  using namespace foresail;
  const std::string name = std::filesystem::path(argv[0]).filename();
  BenchmarkFlags flags;
  return run_program(name, "Times parts of the host's work with Google Benchmark.", argc, argv,
                     [&](Command& command) {
                       add_flags(command, flags);
                       command.callback([&] { run(name, flags); });
                     });
}
