// Rotation tables against the YaRN formula written down on its own, at positions where one token
// alone shows nothing: position 0 passes even when everything is wrong.
#include "model/rope.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "base/file.h"

namespace foresail {
namespace {

ModelConfig family(const std::string& name) {
  const std::string path =
      std::string(FORESAIL_SOURCE_DIR) + "/tests/data/checkpoint/configs/" + name + ".json";
  return parse_model_config(read_text_file(path, 1 << 20), path);
}

struct Yarn {
  double base, factor, original;  // beta_fast 32, beta_slow 1
};

double frequency(const Yarn& yarn, int rope_dim, int pair) {
  const double plain = std::pow(yarn.base, -2.0 * pair / rope_dim);
  if (yarn.factor == 1.0) return plain;
  const auto correction = [&](double rotations) {
    return rope_dim * std::log(yarn.original / (rotations * 2 * std::numbers::pi)) /
           (2 * std::log(yarn.base));
  };
  const double low = std::max(std::floor(correction(32)), 0.0);
  const double high = std::min(std::ceil(correction(1)), rope_dim - 1.0);
  const double ramp = std::clamp((pair - low) / (high - low), 0.0, 1.0);
  return plain / yarn.factor * ramp + plain * (1.0 - ramp);
}

// K14: where both mscale values agree, tables carry no factor and the softmax scale carries it all.
TEST(RopeTables, EqualTheFormulaFarOut) {
  struct RopeCase {
    const char* name;
    Yarn yarn;
    double softmax_scale;
  };
  for (const RopeCase& c : {RopeCase{"deepseek_v2_lite", {10000, 40, 4096}, 0.114721},
                            RopeCase{"deepseek_v3", {10000, 40, 4096}, 0.135234},
                            RopeCase{"moonlight", {50000, 1, 0}, 0.0721688}}) {
    const ModelConfig config = family(c.name);
    EXPECT_NEAR(config.softmax_scale(), c.softmax_scale, 5e-7) << c.name;
    EXPECT_EQ(config.rope_amplitude(163840), 1.0) << c.name;
    const RopeTables tables(config, 163840);
    ASSERT_EQ(tables.position_count(), 163840);
    const RopeTable view = tables.view();
    const int pairs = view.rope_dim / 2;
    for (const int64_t position : {0, 1, 2, 4095, 4096, 4097, 32768, 163839}) {
      for (int pair = 0; pair < pairs; ++pair) {
        const double angle = static_cast<double>(position) * frequency(c.yarn, 2 * pairs, pair);
        // The angle is an f32 product of f32 numbers.
        const double tolerance = 1e-6 + angle * 0x1p-22;
        EXPECT_NEAR(view.cos[position * pairs + pair], std::cos(angle), tolerance)
            << c.name << " position " << position << " pair " << pair;
        EXPECT_NEAR(view.sin[position * pairs + pair], std::sin(angle), tolerance)
            << c.name << " position " << position << " pair " << pair;
      }
    }
  }
}

// K14: a file's max_position_embeddings is the context already, not to be scaled once more.
TEST(RopeTables, TheContextIsNotScaledTwice) {
  const ModelConfig config = family("mistral_small4");
  EXPECT_EQ(config.max_positions, 1048576);
}

}  // namespace
}  // namespace foresail
