// An EAGLE-1/2 head against the same maths written out in double: every row at once, then a chain.
#include "model/eagle_head.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <random>

#include "base/error.h"
#include "base/thread_pool.h"
#include "checkpoint/weight_source.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/element.h"

namespace foresail {
namespace {

constexpr int64_t kHiddenDim = 64, kInnerDim = 96, kHeadVocab = 320;
constexpr int kHeads = 4, kKvHeads = 2, kHeadDim = 16;
constexpr double kEps = 1e-6, kTheta = 50000.0;

// Tensors made up by name.
class RandomSource : public WeightSource {
 public:
  bool has(std::string_view name) const override { return name == "fc.bias"; }
  HostTensor take(std::string_view name, std::span<const int64_t> shape) override {
    int64_t count = 1;
    for (const int64_t dim : shape) count *= dim;
    std::mt19937_64 random(std::hash<std::string_view>()(name));
    HostTensor tensor{DType::kF32, {shape.begin(), shape.end()}, Buffer(count * sizeof(float))};
    std::vector<double>& copy = values[std::string(name)];
    for (int64_t i = 0; i < count; ++i) {
      const float x = (static_cast<float>(random() >> 40) * 0x1p-23f - 1.0f) * 0.2f +
                      (name.ends_with("layernorm.weight") ? 1.0f : 0.0f);
      tensor.data.as<float>()[i] = x;
      copy.push_back(x);
    }
    return tensor;
  }
  void finish() override {}
  uint64_t total_bytes() const override { return 0; }

  std::map<std::string, std::vector<double>> values;
};

using Vector = std::vector<double>;

Vector product(const Vector& weight, const Vector& x) {
  Vector y(weight.size() / x.size());
  for (size_t o = 0; o < y.size(); ++o)
    for (size_t i = 0; i < x.size(); ++i) y[o] += weight[o * x.size() + i] * x[i];
  return y;
}

void rotate(double* head, int position) {
  for (int i = 0; i < kHeadDim / 2; ++i) {
    const double angle = position * std::pow(kTheta, -2.0 * i / kHeadDim);
    const double a = head[i], b = head[i + kHeadDim / 2];
    head[i] = a * std::cos(angle) - b * std::sin(angle);
    head[i + kHeadDim / 2] = a * std::sin(angle) + b * std::cos(angle);
  }
}

// The layer's raw output at the last of `embedded`'s rows.
Vector last_state(const std::map<std::string, Vector>& w, const std::vector<Vector>& embedded,
                  const std::vector<Vector>& states) {
  std::vector<Vector> keys, values;
  Vector query, h;
  for (size_t p = 0; p < embedded.size(); ++p) {
    Vector both = embedded[p];
    both.insert(both.end(), states[p].begin(), states[p].end());
    h = product(w.at("fc.weight"), both);
    for (int64_t i = 0; i < kHiddenDim; ++i) h[i] += w.at("fc.bias")[i];
    query = product(w.at("layers.0.self_attn.q_proj.weight"), h);
    keys.push_back(product(w.at("layers.0.self_attn.k_proj.weight"), h));
    values.push_back(product(w.at("layers.0.self_attn.v_proj.weight"), h));
    for (int head = 0; head < kHeads; ++head)
      rotate(query.data() + head * kHeadDim, static_cast<int>(p));
    for (int head = 0; head < kKvHeads; ++head)
      rotate(keys.back().data() + head * kHeadDim, static_cast<int>(p));
  }
  Vector attended(kHeads * kHeadDim);
  for (int head = 0; head < kHeads; ++head) {
    const int kv = head / (kHeads / kKvHeads) * kHeadDim;
    Vector weights;
    double sum = 0.0;
    for (const Vector& key : keys) {
      double score = 0.0;
      for (int d = 0; d < kHeadDim; ++d) score += query[head * kHeadDim + d] * key[kv + d];
      weights.push_back(std::exp(score / std::sqrt(kHeadDim)));
      sum += weights.back();
    }
    for (size_t p = 0; p < values.size(); ++p)
      for (int d = 0; d < kHeadDim; ++d)
        attended[head * kHeadDim + d] += weights[p] / sum * values[p][kv + d];
  }
  const Vector projected = product(w.at("layers.0.self_attn.o_proj.weight"), attended);
  for (int64_t i = 0; i < kHiddenDim; ++i) h[i] += projected[i];
  double squares = 0.0;
  for (const double x : h) squares += x * x;
  Vector normed(kHiddenDim);
  for (int64_t i = 0; i < kHiddenDim; ++i)
    normed[i] = h[i] / std::sqrt(squares / kHiddenDim + kEps) *
                w.at("layers.0.post_attention_layernorm.weight")[i];
  const Vector gate = product(w.at("layers.0.mlp.gate_proj.weight"), normed);
  const Vector up = product(w.at("layers.0.mlp.up_proj.weight"), normed);
  Vector inner(kInnerDim);
  for (int64_t i = 0; i < kInnerDim; ++i) inner[i] = gate[i] / (1.0 + std::exp(-gate[i])) * up[i];
  const Vector down = product(w.at("layers.0.mlp.down_proj.weight"), inner);
  for (int64_t i = 0; i < kHiddenDim; ++i) h[i] += down[i];
  return h;
}

DraftConfig eagle_config() {
  DraftConfig config;
  config.mla.hidden_dim = kHiddenDim;
  config.mla.head_count = kHeads;
  config.mla.intermediate_dim = kInnerDim;
  config.mla.vocab_size = kHeadVocab;
  config.mla.rms_norm_eps = kEps;
  config.mla.rope_dim = kHeadDim;
  config.mla.rope.theta = kTheta;
  config.kv_head_count = kKvHeads;
  config.head_dim = kHeadDim;
  config.draft_vocab_size = kHeadVocab;
  return config;
}

class EagleHeadTest : public testing::Test {
 protected:
  EagleHeadTest() {
    const std::string path = std::string(FORESAIL_SOURCE_DIR) + "/tests/goldens/g14_eagle3_llama";
    const ModelConfig config = read_model_config(path);
    kernels_ = create_cpu_kernels({.dtype = DType::kF32, .isa = "auto", .pool = &threads_});
    const auto source = open_checkpoint(path, config);
    WeightLoader loader(*source, *kernels_);
    target_ = std::make_unique<MlaModel>(config, loader, *kernels_, 256);
  }

  ThreadPool threads_{1};
  std::unique_ptr<KernelSet> kernels_;
  std::unique_ptr<MlaModel> target_;
  RandomSource source_;
};

TEST_F(EagleHeadTest, StatesOfEveryStepEqualThoseInDouble) {
  WeightLoader loader(source_, *kernels_);
  EagleHead head(eagle_config(), *target_, loader);
  constexpr int kRows = 9, kSteps = 3, kPage = 16;
  std::mt19937_64 random(3);
  std::vector<int32_t> tokens(kRows), positions(kRows), slots(kRows);
  std::vector<float> states(kRows * kHiddenDim);
  for (float& x : states) x = static_cast<float>(random() >> 40) * 0x1p-23f - 1.0f;
  std::vector<Vector> embedded, rows;
  const MatrixView table = target_->embedding().view();
  const auto embed = [&](int32_t token) {
    Vector row(kHiddenDim);
    for (int64_t i = 0; i < kHiddenDim; ++i) row[i] = load_element(table, token, i);
    embedded.push_back(row);
  };
  for (int p = 0; p < kRows; ++p) {
    tokens[p] = static_cast<int32_t>(random() % kHeadVocab);
    positions[p] = p;
    slots[p] = kPage + p;
    embed(tokens[p]);
    rows.emplace_back(states.begin() + p * kHiddenDim, states.begin() + (p + 1) * kHiddenDim);
  }
  std::vector<std::vector<float>> storage;
  std::vector<LatentCache> caches;
  for (const CacheShape& shape : head.cache_shapes()) {
    storage.emplace_back(2 * kPage * (shape.latent_dim + shape.rope_dim));
    caches.push_back({storage.back().data(), DType::kF32, kPage, shape.latent_dim, shape.rope_dim});
  }
  const int32_t page = 1;
  const SequenceRows sequence{0, kRows, kRows, &page};
  const int32_t last = kRows - 1;
  DraftHead::Output output =
      head.forward({.next_tokens = tokens,
                    .states = {states.data(), DType::kF32, kRows, kHiddenDim, kHiddenDim},
                    .positions = positions,
                    .slots = slots,
                    .sequences = {&sequence, 1},
                    .selected_rows = {&last, 1}},
                   caches);
  for (int step = 0; step < kSteps; ++step) {
    const Vector want = last_state(source_.values, embedded, rows);
    const auto* got = static_cast<const float*>(output.states.data);
    double largest = 0.0;
    for (const double x : want) largest = std::max(largest, std::abs(x));
    for (int64_t i = 0; i < kHiddenDim; ++i)
      ASSERT_NEAR(got[i], want[i], 2e-5 * largest) << "step " << step << " dim " << i;
    EXPECT_EQ(output.logits.cols, kHeadVocab);

    std::vector<float> recycled(got, got + kHiddenDim);
    const int32_t token = 7 + step, position = kRows + step, slot = kPage + position;
    embed(token);
    rows.emplace_back(recycled.begin(), recycled.end());
    const SequenceRows next{0, 1, position + 1, &page};
    const int32_t selected = 0;
    output = head.forward({.next_tokens = {&token, 1},
                           .states = {recycled.data(), DType::kF32, 1, kHiddenDim, kHiddenDim},
                           .recycled = true,
                           .positions = {&position, 1},
                           .slots = {&slot, 1},
                           .sequences = {&next, 1},
                           .selected_rows = {&selected, 1}},
                          caches);
  }
}

TEST_F(EagleHeadTest, AnotherWidthIsRefused) {
  DraftConfig config = eagle_config();
  config.mla.hidden_dim = 32;
  WeightLoader loader(source_, *kernels_);
  EXPECT_THROW(EagleHead(config, *target_, loader), Error);
}

}  // namespace
}  // namespace foresail
