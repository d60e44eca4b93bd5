// The choice between the forms of attention by a device's rates, against what passes took there.
#include "attention/attention_path.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "checkpoint/presets.h"
#include "kernels/cuda/attention_rates.h"

namespace foresail {
namespace {

struct MeasuredPass {
  ModelConfig model;
  cuda::AbsorbedKernel kernel;
  int64_t rows, cached;
  double absorbed_ms, expanded_ms;
  std::string name;
};

std::vector<MeasuredPass> measured_passes() {
  std::ifstream file(FORESAIL_SOURCE_DIR "/docs/measurements/2026-11-30-attention-path-h200.csv");
  std::vector<MeasuredPass> passes;
  std::string line;
  std::getline(file, line);
  EXPECT_EQ(line, "preset,heads,absorbed_kernel,rows,cached,absorbed_ms,expanded_ms");
  while (std::getline(file, line)) {
    std::vector<std::string> fields;
    std::stringstream stream(line);
    for (std::string field; std::getline(stream, field, ',');) fields.push_back(field);
    MeasuredPass pass;
    pass.name = line;
    pass.model = make_preset(fields.at(0), 2).config;
    pass.model.layer_is_moe.assign(2, true);
    pass.model.head_count = std::stoi(fields.at(1));
    pass.kernel = fields.at(2) == "tensor_cores" ? cuda::AbsorbedKernel::kTensorCores
                  : fields.at(2) == "fixed_cut"  ? cuda::AbsorbedKernel::kFixedCut
                                                 : cuda::AbsorbedKernel::kGeneral;
    pass.rows = std::stoi(fields.at(3));
    pass.cached = std::stoi(fields.at(4));
    pass.absorbed_ms = std::stod(fields.at(5));
    pass.expanded_ms = std::stod(fields.at(6));
    passes.push_back(pass);
  }
  return passes;
}

constexpr int kMultiprocessors = 132;  // of an H200

AttentionPath choose(const MeasuredPass& pass) {
  AttentionConfig config;
  config.rates = cuda::attention_rates(pass.kernel, kMultiprocessors);
  return cheaper_path(pass.model, pass.rows, pass.cached + pass.rows, config);
}

TEST(AttentionPath, NeverLosesMuchWhereItWasMeasured) {
  const std::vector<MeasuredPass> passes = measured_passes();
  EXPECT_GT(passes.size(), 250u);
  double taken_ms = 0.0, best_ms = 0.0;
  for (const MeasuredPass& pass : passes) {
    const double taken =
        choose(pass) == AttentionPath::kExpanded ? pass.expanded_ms : pass.absorbed_ms;
    const double best = std::min(pass.absorbed_ms, pass.expanded_ms);
    EXPECT_LE(taken, 1.05 * best) << pass.name;
    taken_ms += taken;
    best_ms += best;
  }
  EXPECT_LE(taken_ms, 1.002 * best_ms);
}

// The case of the issue: 256 tokens behind 80,000 on a Kimi-K2 rank slice.
TEST(AttentionPath, FewTokensBehindALongContextRunAbsorbed) {
  ModelConfig model = make_preset("kimi-k2-slice").config;
  AttentionConfig config;
  EXPECT_EQ(cheaper_path(model, 256, 80256, config), AttentionPath::kExpanded);  // the CPU
  config.rates = cuda::attention_rates(cuda::AbsorbedKernel::kTensorCores, kMultiprocessors);
  EXPECT_EQ(cheaper_path(model, 256, 80256, config), AttentionPath::kAbsorbed);
  EXPECT_EQ(cheaper_path(model, 2048, 2048, config), AttentionPath::kExpanded);
}

// Only how rates compare matters: a device of twice the speed chooses alike.
TEST(AttentionPath, DependsOnNoUnit) {
  for (const MeasuredPass& pass : measured_passes()) {
    AttentionConfig config;
    AttentionRates& rates = config.rates;
    rates = cuda::attention_rates(pass.kernel, kMultiprocessors);
    for (double* rate :
         {&rates.absorbed, &rates.up_projection, &rates.expanded, &rates.exact_expanded,
          &rates.block, &rates.exact_block, &rates.second_term})
      *rate *= 2.0;
    rates.key_list /= 2.0;
    EXPECT_EQ(cheaper_path(pass.model, pass.rows, pass.cached + pass.rows, config), choose(pass));
  }
}

}  // namespace
}  // namespace foresail
