// `foresail bench kernels` leaves no operation out.
#include "bench/kernel_cases.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <set>

#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/cpu_probe.h"

namespace foresail {
namespace {

// What is declared in a header of src/kernels with `marker` before its name.
std::set<std::string> declared(const std::string& path, const std::string& marker) {
  std::ifstream header(FORESAIL_SOURCE_DIR "/src/kernels/" + path);
  std::set<std::string> names;
  for (std::string line; std::getline(header, line);)
    if (line.starts_with(marker))
      names.insert(line.substr(marker.size(), line.find('(') - marker.size()));
  return names;
}

std::set<std::string> operations_of_the_set() {
  std::set<std::string> names = declared("kernel_set.h", "  virtual void ");
  // Sequences of others, which are timed, unless the CPU has a kernel of its own for one.
  const std::set<std::string> of_the_cpu = declared("cpu/cpu_set.h", "  void ");
  for (const char* fused :
       {"project", "project_values", "latent_inputs", "gated_mlp", "mix_experts"})
    if (!of_the_cpu.contains(fused)) names.erase(fused);
  // Do nothing to numbers.
  for (const char* mark :
       {"end_pass", "begin_chain", "end_chain", "begin_layers", "end_layers", "time_work"})
    names.erase(mark);
  return names;
}

TEST(KernelCases, NameEveryOperation) {
  std::set<std::string> names;
  for (const KernelCase& kernel_case : kernel_cases(DType::kBF16)) {
    names.insert(kernel_case.op);
    EXPECT_GT(kernel_case.bytes, 0.0) << kernel_case.op;
    EXPECT_GE(kernel_case.calls, 1) << kernel_case.op;
  }
  EXPECT_GT(names.size(), 10u);
  EXPECT_EQ(names, operations_of_the_set());
}

TEST(KernelCases, SmallOnesRun) {
  ThreadPool pool(2);
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    const auto set = create_cpu_kernels({dtype, "auto", &pool});
    int ran = 0;
    for (const KernelCase& kernel_case : kernel_cases(dtype)) {
      if (kernel_case.calls > 1 || kernel_case.bytes > 1e5) continue;
      kernel_case.prepare (*set)();
      ++ran;
    }
    EXPECT_GT(ran, 5);
  }
}

TEST(Probes, TheFasterOfTwoAndWhetherTheyDisagree) {
  const Floors slow{.bytes_per_s = 50, .operations_per_s = 400};
  const Floors fast{.bytes_per_s = 84, .operations_per_s = 390};
  for (const Floors& fastest : {fastest_of(slow, fast), fastest_of(fast, slow)}) {
    EXPECT_EQ(fastest.bytes_per_s, 84);
    EXPECT_EQ(fastest.operations_per_s, 400);
  }
  EXPECT_TRUE(probes_disagree(slow, fast));
  EXPECT_TRUE(probes_disagree(fast, slow));
  EXPECT_FALSE(probes_disagree(slow, {.bytes_per_s = 54, .operations_per_s = 370}));
  // Of a GPU there is no arithmetic probe.
  EXPECT_FALSE(probes_disagree({.bytes_per_s = 50, .operations_per_s = NAN},
                               {.bytes_per_s = 51, .operations_per_s = NAN}));
}

}  // namespace
}  // namespace foresail
