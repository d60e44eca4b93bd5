// What a cache of 8-bit codes is started with.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/error.h"
#include "engine/engine_harness.h"

namespace foresail {
namespace {

std::string start_with(const std::string& dtype, double scale) {
  EngineOptions options = tiny_options("g13_v3_mtp", SpeculativeAlgorithm::kNone);
  options.kv_cache_dtype = dtype;
  options.kv_cache_scale = scale;
  try {
    const LoadedModel model(options);
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

// K14: a scale that makes no number of a code is refused before anything runs.
TEST(CacheFormat, AScaleIsAPositiveNumber) {
  for (const double scale :
       {0.0, -0.25, std::nan(""), 1e-30, std::numeric_limits<double>::infinity()}) {
    const std::string message = start_with("fp8_e4m3", scale);
    EXPECT_NE(message.find("options.kv_cache_scale"), std::string::npos)
        << scale << ": " << message;
    EXPECT_NE(message.find("choose 1e-6 to 1e6"), std::string::npos) << message;
  }
  EXPECT_EQ(start_with("fp8_e4m3", 0.25), "");
  EXPECT_EQ(start_with("bf16", 1.0), "");
  EXPECT_NE(start_with("bf16", 0.25).find("options.kv_cache_scale 0.25 has no meaning"),
            std::string::npos);
  const std::string unknown = start_with("fp8_e5m2", 1.0);
  EXPECT_NE(unknown.find("options.kv_cache_dtype fp8_e5m2"), std::string::npos) << unknown;
}

}  // namespace
}  // namespace foresail
