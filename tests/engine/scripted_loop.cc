#include "engine/scripted_loop.h"

#include <gtest/gtest.h>

#include "base/check.h"
#include "base/random.h"
#include "checkpoint/weight_source.h"
#include "speculative/head_drafter.h"
#include "speculative/standalone_drafter.h"

namespace foresail {
namespace {

constexpr int32_t kFirstPlainToken = 3;  // 0 to 2 are the model's special ones
constexpr int32_t kVocab = 320;

int32_t plain_token(uint64_t bits) {
  return kFirstPlainToken + static_cast<int32_t>(bits % (kVocab - kFirstPlainToken));
}

uint64_t hash_of(std::span<const int32_t> context) {
  uint64_t hash = context.size();
  for (const int32_t token : context) hash = mix_bits(hash ^ static_cast<uint64_t>(token));
  return hash;
}

EngineOptions with_model(EngineOptions options) {
  options.model_path = golden_path("g13_v3_mtp");
  options.dtype = "f32";
  options.speculative.algorithm = SpeculativeAlgorithm::kNone;
  return options;
}

}  // namespace

Script certain(NextToken next) {
  return [next = std::move(next)](std::span<const int32_t> context, std::span<float> logits) {
    logits[next(context)] = 100.0f;
  };
}

int32_t hashed_token(std::span<const int32_t> context) {
  return plain_token(hash_of(context));
}

NextToken often_right(NextToken next, int percent) {
  return [next = std::move(next), percent](std::span<const int32_t> context) {
    const int32_t right = next(context);
    const bool agrees = static_cast<int>(mix_bits(hash_of(context)) % 100) < percent;
    return agrees ? right : (right + 1) % kVocab;
  };
}

std::vector<int32_t> continue_text(const NextToken& next, std::vector<int32_t> context,
                                   int64_t count) {
  std::vector<int32_t> output;
  while (static_cast<int64_t>(output.size()) < count) {
    output.push_back(next(context));
    context.push_back(output.back());
  }
  return output;
}

ScriptedLoop::ScriptedLoop(EngineOptions options, Script script)
    : options_(with_model(std::move(options))),
      model_(
          options_, {},
          std::make_unique<DigestKernels>(std::move(script), contexts_, options_.context_length)) {}

void ScriptedLoop::use_digest_drafter(DigestHead::Guess guess) {
  use_drafter(digest_drafter(std::move(guess)));
}

std::unique_ptr<Drafter> ScriptedLoop::digest_drafter(DigestHead::Guess guess) {
  auto head = std::make_unique<DigestHead>(contexts_, std::move(guess));
  passes_ = head->passes();
  return std::make_unique<HeadDrafter>("digest", std::move(head), model_.planner(),
                                       options_.slot_count, model_.page_count(),
                                       CacheFormat{DType::kF32});
}

void ScriptedLoop::use_model_drafter(Script script) {
  use_drafter(nullptr);
  draft_kernels_ = std::make_unique<DigestKernels>(
      std::move(script), std::make_shared<KnownContexts>(), options_.context_length);
  const auto source = open_checkpoint(options_.model_path, model_.config());
  WeightLoader loader(*source, *draft_kernels_);
  auto model = std::make_shared<MlaModel>(model_.config(), loader, *draft_kernels_,
                                          model_.model().context_len());
  use_drafter(std::make_unique<StandaloneDrafter>(std::move(model), model_.planner(),
                                                  options_.slot_count, model_.page_count(),
                                                  CacheFormat{DType::kF32}));
}

void ScriptedLoop::use_drafter(std::unique_ptr<Drafter> drafter) {
  loop_.reset();
  model_.use_drafter(std::move(drafter));
}

EngineLoop& ScriptedLoop::loop() {
  if (loop_ == nullptr) loop_ = std::make_unique<EngineLoop>(model_, tokenizer_, options_);
  return *loop_;
}

EngineLoop& ScriptedLoop::restart(const EngineOptions& options) {
  FORESAIL_CHECK(options.page_size == options_.page_size &&
                     options.max_total_tokens == options_.max_total_tokens,
                 "the model was loaded with other pages");
  options_ = with_model(options);
  loop_.reset();
  return loop();
}

EngineOptions scripted_options() {
  EngineOptions options = tiny_options("g13_v3_mtp", SpeculativeAlgorithm::kNone);
  options.speculative.steps = 3;
  return options;
}

Request scripted_request(std::vector<int32_t> prompt, int64_t max_tokens) {
  Request request;
  request.input_ids = std::move(prompt);
  request.max_tokens = max_tokens;
  request.ignore_eos = true;
  request.sampling.temperature = 0.0f;
  return request;
}

std::vector<int32_t> scripted_prompt(int length, uint64_t seed) {
  std::vector<int32_t> prompt;
  for (int i = 0; i < length; ++i)
    prompt.push_back(plain_token(mix_bits(mix_bits(seed) ^ static_cast<uint64_t>(i))));
  return prompt;
}

void expect_idle(const EngineLoop& loop) {
  const EngineStats stats = loop.stats();
  EXPECT_EQ(stats.running + stats.waiting, 0);
  EXPECT_EQ(stats.pages_owned + stats.pages_in_flight, 0);
  EXPECT_EQ(stats.pages_free + stats.pages_cached, stats.pages_total);
}

}  // namespace foresail
