#include <gtest/gtest.h>

#include <cmath>

#include "engine/engine_harness.h"

namespace foresail {
namespace {

TEST(EngineLoop, AbortsLeaveOthersUnchangedAndTheLedgerBalanced) {
  EngineOptions options = tiny_options("g13_v3_mtp", SpeculativeAlgorithm::kMtp);
  options.speculative.steps = 3;
  LoadedModel model(options);
  const std::vector<Request> requests = random_requests(3, 12);
  EngineLoop undisturbed(model, nullptr, options);
  const std::vector<Output> expected = serve(undisturbed, requests);
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    options.late_results = seed % 2 == 0;
    options.retract_every = seed % 3 == 0 ? 3 : 0;
    options.chunked_prefill_size = seed % 4 == 0 ? 8 : 2048;
    EngineLoop loop(model, nullptr, options);
    expect_aborts_disturb_nobody(loop, requests, expected, seed, 3);
    const EngineStats stats = loop.stats();
    EXPECT_EQ(stats.pages_owned + stats.pages_in_flight, 0);
    EXPECT_EQ(stats.pages_free + stats.pages_cached, stats.pages_total);
  }
}

TEST(EngineLoop, RefusesWhatCanNeverRunWithTheNumbers) {
  EngineOptions options = tiny_options("g13_v3_mtp", SpeculativeAlgorithm::kNone, 64);
  options.max_total_tokens = 128;
  LoadedModel model(options);
  EngineLoop loop(model, nullptr, options);
  const auto refusal = [&](auto change) {
    Request request;
    request.input_ids = {5, 6, 7};
    change(request);
    const Result<PreparedRequest> prepared = loop.prepare(request);
    return prepared ? std::string("accepted") : prepared.error().message;
  };
  EXPECT_EQ(refusal([](Request& r) { r.max_tokens = 100; }), "accepted");
  EXPECT_EQ(refusal([](Request& r) { r.max_tokens = 200; }),
            "prompt of 3 tokens and max_tokens 200 need 4 pages of 64 tokens, the KV pool has 2");
  EXPECT_EQ(refusal([](Request& r) { r.max_tokens = 300; }),
            "prompt of 3 tokens and max_tokens 300 exceed the context of 256");
  EXPECT_EQ(refusal([](Request& r) { r.input_ids.clear(); }), "the prompt has no token");
  EXPECT_EQ(refusal([](Request& r) { r.input_ids = {320}; }),
            "token id 320 is outside the vocabulary of 320");
  EXPECT_EQ(refusal([](Request& r) { r.sampling.temperature = NAN; }),
            "temperature nan is out of range: choose 0 to 100");
  EXPECT_EQ(refusal([](Request& r) { r.sampling.top_p = 0.0f; }),
            "top_p 0 is out of range: choose above 0, at most 1");
  EXPECT_EQ(refusal([](Request& r) { r.stops = {"x"}; }),
            "stop strings need a tokenizer, and the model folder has none");
  EXPECT_EQ(refusal([](Request& r) { r.min_tokens = 200; }),
            "min_tokens 200 is not between 0 and max_tokens 128");
  EXPECT_TRUE(loop.idle());
}

// Fails in its n-th call.
class FailingDrafter : public Drafter {
 public:
  explicit FailingDrafter(int calls) : calls_left_(calls) {}
  std::string_view name() const override { return "failing"; }
  void draft(std::span<const DraftRequest>, std::span<std::vector<int32_t>>) override {
    if (--calls_left_ == 0) throw std::bad_alloc();
  }

 private:
  int calls_left_;
};

TEST(EngineLoop, AFailedStepEndsItsRequestsAndNoOthers) {
  EngineOptions options = tiny_options("g13_v3_mtp", SpeculativeAlgorithm::kNone);
  LoadedModel model(options);
  std::vector<Request> requests = random_requests(9, 9);
  for (Request& request : requests) request.priority = 0;
  const std::vector<Output> expected = plain_outputs(model, requests);
  for (const bool late : {false, true}) {
    options.late_results = late;
    model.use_drafter(std::make_unique<FailingDrafter>(6));
    EngineLoop loop(model, nullptr, options);
    const std::vector<Output> outputs = serve(loop, requests);
    int failed = 0;
    for (size_t i = 0; i < requests.size(); ++i) {
      EXPECT_EQ(outputs[i].endings, 1);
      if (outputs[i].stats.finish == FinishReason::kFailed)
        ++failed;
      else
        EXPECT_EQ(outputs[i].ids, expected[i].ids);
    }
    EXPECT_GT(failed, 0);
    EXPECT_LE(failed, options.max_running_requests);
    EXPECT_EQ(loop.stats().failed, failed);
    EXPECT_EQ(loop.stats().pages_owned, 0);
  }
}

// Numbers gone bad in one request's pages end that request, and reach no other.
TEST(EngineLoop, ARequestWithoutANumberInItsLogitsFailsAlone) {
  EngineOptions options = tiny_options("g13_v3_mtp", SpeculativeAlgorithm::kMtp);
  options.speculative.steps = 2;
  options.max_total_tokens = 2048;
  options.disable_radix_cache = true;
  LoadedModel model(options);
  std::vector<Request> requests = random_requests(31, 4);
  for (Request& request : requests) {
    request.max_tokens = 20;
    request.ignore_eos = true;
  }
  const std::vector<Output> expected = [&] {
    EngineLoop loop(model, nullptr, options);
    return serve(loop, requests);
  }();
  EngineLoop loop(model, nullptr, options);
  std::vector<Output> outputs(requests.size());
  for (size_t i = 0; i < requests.size(); ++i)
    loop.submit(*loop.prepare(requests[i]), collect_into(outputs[i]));
  bool spoilt = false;
  while (loop.step()) {
    if (spoilt || outputs[0].ids.empty()) continue;
    const int32_t page = loop.scheduler().cache().table().row(SlotId{0})[0];
    const LatentCache& cache = model.store().layers()[0];
    static_cast<float*>(cache.data)[page * cache.page_size * (cache.latent_dim + cache.rope_dim)] =
        NAN;
    spoilt = true;
  }
  int failed = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(outputs[i].endings, 1);
    if (outputs[i].stats.finish == FinishReason::kFailed)
      ++failed;
    else
      EXPECT_EQ(outputs[i].ids, expected[i].ids);
  }
  EXPECT_EQ(failed, 1);
  EXPECT_EQ(loop.stats().failed, 1);
  EXPECT_EQ(loop.stats().pages_owned, 0);
}

TEST(EngineLoop, HigherPriorityRunsFirst) {
  EngineOptions options = tiny_options("g13_v3_mtp", SpeculativeAlgorithm::kNone);
  options.max_running_requests = 1;
  LoadedModel model(options);
  EngineLoop loop(model, nullptr, options);
  std::vector<int> order;
  for (int i = 0; i < 4; ++i) {
    Request request;
    request.input_ids = {5, 6, 7 + i};
    request.max_tokens = 2;
    request.priority = i;
    loop.submit(*loop.prepare(request), [&order, i](const Event& event, const GenerationStats&) {
      if (event.finish) order.push_back(i);
    });
  }
  while (loop.step()) {
  }
  EXPECT_EQ(order, (std::vector<int>{3, 2, 1, 0}));
}

// With nobody to share with, salts keep equal prompts apart.
TEST(EngineLoop, PrefixCacheKeepsSaltsApart) {
  EngineOptions options = tiny_options("g13_v3_mtp", SpeculativeAlgorithm::kMtp);
  LoadedModel model(options);
  EngineLoop loop(model, nullptr, options);
  Request request = random_requests(1, 2)[1];  // behind the shared prefix of 70 tokens
  request.cache_salt = "a";
  EXPECT_EQ(serve(loop, {request})[0].stats.cached_tokens, 0);
  EXPECT_GE(serve(loop, {request})[0].stats.cached_tokens, 64);
  request.cache_salt = "b";
  EXPECT_EQ(serve(loop, {request})[0].stats.cached_tokens, 0);
}

TEST(EngineLoop, StopStringsAndTextComeThroughSpeculation) {
  EngineOptions options = tiny_options("g13_v3_mtp", SpeculativeAlgorithm::kMtp);
  options.model_path = model_path("tales");
  options.dtype = "bf16";
  options.context_length = 512;
  options.max_total_tokens = 2048;
  options.speculative.steps = 3;
  const auto tokenizer = Tokenizer::load(options.model_path);
  LoadedModel model(options);
  EngineLoop loop(model, tokenizer.get(), options);
  Request request;
  request.prompt = "Once upon a time there was";
  request.max_tokens = 40;
  request.sampling.temperature = 0.0f;
  const Output whole = serve(loop, {request})[0];
  EXPECT_EQ(whole.text, tokenizer->decode(whole.ids, true));
  ASSERT_GT(whole.text.size(), 40u);
  EXPECT_GT(whole.stats.accepted, 0);
  Request stopping = request;
  stopping.stops = {whole.text.substr(20, 6)};
  const size_t first = whole.text.find(stopping.stops[0]);
  const std::vector<Output> both = serve(loop, {stopping, request});
  EXPECT_EQ(both[0].text, whole.text.substr(0, first));
  EXPECT_EQ(both[0].stats.finish, FinishReason::kStopString);
  EXPECT_EQ(both[1].ids, whole.ids);
}

}  // namespace
}  // namespace foresail
