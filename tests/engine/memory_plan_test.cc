// What is told about memory before anything is loaded.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "engine/engine_harness.h"
#include "engine/memory_plan.h"

namespace foresail {
namespace {

using testing::HasSubstr;

ModelOptions tales_options() {
  ModelOptions options;
  options.model_path = model_path("tales");
  options.slot_count = 1;
  return options;
}

MemoryPlan plan_for(const ModelOptions& options) {
  return plan_memory(read_model_config(options.model_path), options, false);
}

std::string refusal_of(const MemoryPlan& plan) {
  try {
    require_fits(plan);
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}
std::string refusal(MemoryPlan plan, uint64_t spare_bytes) {
  plan.available_bytes = plan.weight_bytes + plan.workspace_bytes + spare_bytes;
  return refusal_of(plan);
}

TEST(MemoryPlan, BothNamesOfADtypeCountTheSame) {
  ModelOptions options = tales_options();
  options.dtype = "f32";
  const MemoryPlan expected = plan_for(options);
  options.dtype = "float32";
  EXPECT_EQ(plan_for(options).total_bytes(), expected.total_bytes());
  EXPECT_EQ(expected.kv_bytes_per_token, 4u * 4 * (512 + 64));
}

// Recorded passes take memory of a GPU; they are in the plan before there is one.
TEST(MemoryPlan, GraphsAreCounted) {
  ModelOptions options = tales_options();
  EXPECT_EQ(plan_for(options).graph_bytes, 0u);
  options.device = "cuda";
  options.dtype = "bf16";
  MemoryPlan plan = plan_for(options);
  EXPECT_GT(plan.graph_bytes, 1u << 20);
  EXPECT_EQ(plan.total_bytes(), plan.weight_bytes + plan.kv_bytes + plan.workspace_bytes +
                                    plan.graph_bytes + plan.token_term_bytes);
  plan.available_bytes = plan.total_bytes() - 1;
  EXPECT_THAT(refusal_of(plan), HasSubstr(" + graphs "));
  options.disable_cuda_graph = true;
  EXPECT_EQ(plan_for(options).graph_bytes, 0u);
}

// Rows that wait for a drafter lie on the GPU, 16 of each request and once more where they are
// taken in.
TEST(MemoryPlan, WaitingRowsAreCounted) {
  ModelOptions options = tales_options();
  options.slot_count = 8;
  options.dtype = "bf16";
  options.speculative.algorithm = SpeculativeAlgorithm::kMtp;
  EXPECT_EQ(plan_for(options).kept_row_bytes, 0u);
  options.device = "cuda";
  const int64_t hidden = read_model_config(options.model_path).hidden_dim;
  MemoryPlan plan = plan_for(options);
  EXPECT_EQ(plan.kept_row_bytes, static_cast<uint64_t>(8 * 2 * 16 * hidden * 4));
  EXPECT_EQ(plan.total_bytes(), plan.weight_bytes + plan.kv_bytes + plan.workspace_bytes +
                                    plan.graph_bytes + plan.kept_row_bytes + plan.token_term_bytes);
  plan.available_bytes = plan.total_bytes() - 1;
  EXPECT_THAT(refusal_of(plan), HasSubstr(" + waiting rows "));
  options.speculative.algorithm = SpeculativeAlgorithm::kEagle3;
  EXPECT_EQ(plan_for(options).kept_row_bytes, 3 * plan.kept_row_bytes);
  for (const auto none : {SpeculativeAlgorithm::kNone, SpeculativeAlgorithm::kNgram}) {
    options.speculative.algorithm = none;
    EXPECT_EQ(plan_for(options).kept_row_bytes, 0u);
  }
}

// What a GPU counts of each request's tokens, and their biases: eight bytes for each of the
// vocabulary; and a bit of it for each of 16 rows.
TEST(MemoryPlan, TokenCountsAreCounted) {
  ModelOptions options = tales_options();
  options.slot_count = 8;
  options.dtype = "bf16";
  EXPECT_EQ(plan_for(options).token_term_bytes, 0u);
  options.device = "cuda";
  MemoryPlan plan = plan_for(options);
  EXPECT_EQ(plan.token_term_bytes, 8u * 8192 * (8 + 16 / 8));
  plan.available_bytes = plan.total_bytes() - 1;
  EXPECT_THAT(refusal_of(plan), HasSubstr(" + token counts and masks 640.0 KiB"));
}

TEST(MemoryPlan, AnAbsurdCacheIsNotSmall) {
  ModelOptions options = tales_options();
  options.max_total_tokens = INT64_MAX;
  EXPECT_EQ(plan_for(options).total_bytes(), UINT64_MAX);
}

// The flag that would fit is the one that decides, at a value that does fit.
TEST(MemoryPlan, AdvisesTheFlagThatHelps) {
  ModelOptions options = tales_options();
  const uint64_t token_bytes = plan_for(options).kv_bytes_per_token;
  EXPECT_THAT(refusal(plan_for(options), 100 * token_bytes),
              HasSubstr("options.context_length 100 would fit"));
  options.slot_count = 16;
  EXPECT_THAT(refusal(plan_for(options), 100 * token_bytes),
              HasSubstr("options.context_length 12 would fit"));
  options.max_total_tokens = 1000;
  EXPECT_THAT(refusal(plan_for(options), 100 * token_bytes),
              HasSubstr("options.max_total_tokens 100 would fit"));
  // The rows of requests are what is too much.
  options.device = "cuda";
  options.slot_count = 4096;
  MemoryPlan plan = plan_for(options);
  EXPECT_GE(plan.token_term_bytes, 256u << 20);
  plan.available_bytes = plan.model_bytes() + plan.token_term_bytes / 2;
  EXPECT_THAT(refusal_of(plan), HasSubstr(": lower options.max_running_requests"));
}

TEST(MemoryPlan, ANarrowerDtypeIsAdvisedOnlyWhereThereIsOne) {
  ModelOptions options = tales_options();
  for (const char* dtype : {"f32", "float32"}) {
    options.dtype = dtype;
    MemoryPlan plan = plan_for(options);
    plan.available_bytes = plan.weight_bytes / 2;
    EXPECT_TRUE(refusal_of(plan).ends_with(": choose a smaller model or options.dtype bf16"))
        << dtype;
  }
  for (const char* dtype : {"bf16", "bfloat16"}) {
    options.dtype = dtype;
    MemoryPlan plan = plan_for(options);
    plan.available_bytes = plan.weight_bytes / 2;
    EXPECT_TRUE(refusal_of(plan).ends_with(": choose a smaller model")) << dtype;
  }
}

TEST(MemoryPlan, AShareOfTheMemoryBecomesCache) {
  const ModelConfig config = read_model_config(golden_path("g13_v3_mtp"));
  ModelOptions options;
  options.model_path = golden_path("g13_v3_mtp");
  options.context_length = 128;
  options.slot_count = 4;
  options.mem_fraction_static = 0.5;
  EXPECT_EQ(plan_memory(config, options, false).cached_tokens, 512);
  options.slot_count = 1 << 30;
  const MemoryPlan plan = plan_memory(config, options, false);
  const double used = static_cast<double>(plan.total_bytes());
  EXPECT_NEAR(used / (0.5 * static_cast<double>(available_memory_bytes())), 1.0, 0.1);
  options.mem_fraction_static = 1e-9;
  EXPECT_THROW(plan_memory(config, options, false), Error);
}

}  // namespace
}  // namespace foresail
