// The embedding API: streams, cancellation, several callers, shutdown.
#include <gtest/gtest.h>

#include <cmath>
#include <thread>

#include "engine/engine_harness.h"
#include "foresail/engine.h"

namespace foresail {
namespace {

using std::chrono::milliseconds;

EngineOptions options() {
  EngineOptions options = tiny_options("g13_v3_mtp", SpeculativeAlgorithm::kMtp);
  options.speculative.steps = 3;
  return options;
}

std::vector<int32_t> ids_of(Stream& stream) {
  std::vector<int32_t> ids;
  for (const Event& event : stream)
    if (event.token >= 0) ids.push_back(event.token);
  return ids;
}

TEST(Engine, ManyThreadsGetThePlainOutput) {
  const std::vector<Request> requests = random_requests(21, 16);
  EngineOptions alone = options();
  alone.speculative.algorithm = SpeculativeAlgorithm::kNone;
  alone.slot_count = 1;
  LoadedModel plain(alone);
  const std::vector<Output> expected = plain_outputs(plain, requests);
  Engine engine(options());
  std::vector<std::thread> callers;
  for (size_t caller = 0; caller < 4; ++caller)
    callers.emplace_back([&, caller] {
      for (size_t i = caller; i < requests.size(); i += 4) {
        SubmitResult result = engine.submit(requests[i]);
        ASSERT_TRUE(result);
        EXPECT_EQ(ids_of(*result), expected[i].ids);
        EXPECT_TRUE(result->ended());
        EXPECT_EQ(result->stats().output_tokens, static_cast<int64_t>(expected[i].ids.size()));
        EXPECT_GT(result->stats().ttft_s, 0.0);
      }
    });
  for (std::thread& caller : callers) caller.join();
  engine.drain();
  const EngineStats stats = engine.stats();
  EXPECT_EQ(stats.finished, 16);
  EXPECT_EQ(stats.pages_owned + stats.pages_in_flight, 0);
  EXPECT_FALSE(engine.submit(requests[0]));
}

Request endless() {
  Request request;
  request.input_ids = {5, 6, 7};
  request.max_tokens = 200;
  request.ignore_eos = true;
  return request;
}

TEST(Engine, CancelEndsTheStream) {
  Engine engine(options());
  SubmitResult result = engine.submit(endless());
  ASSERT_TRUE(result);
  Stream& stream = *result;
  EXPECT_TRUE(stream.next().has_value());
  stream.cancel();
  std::optional<Event> last;
  for (const Event& event : stream) last = event;
  EXPECT_TRUE(last && last->finish);
  EXPECT_FALSE(stream.try_next());
  EXPECT_FALSE(stream.next_within(milliseconds(1)));
}

TEST(Engine, LettingGoOfAStreamCancels) {
  Engine engine(options());
  for (int i = 0; i < 8; ++i) {
    SubmitResult result = engine.submit(endless());
    ASSERT_TRUE(result);
  }
  engine.drain();
  EXPECT_EQ(engine.stats().aborted + engine.stats().finished, 8);
  EXPECT_EQ(engine.stats().pages_owned, 0);
}

TEST(Engine, DrainAbortsAfterItsTimeoutAndDestructionEndsStreams) {
  std::optional<Stream> survivor;
  {
    Engine engine(options());
    std::vector<SubmitResult> results = engine.submit(std::vector<Request>(6, endless()));
    for (const SubmitResult& result : results) ASSERT_TRUE(result);
    engine.drain(milliseconds(0));
    EXPECT_EQ(engine.stats().running + engine.stats().waiting, 0);
    survivor = std::move(*results[5]);
  }
  std::optional<Event> last;
  for (const Event& event : *survivor) last = event;
  ASSERT_TRUE(last && last->finish);
  survivor->cancel();  // nobody is there any more
}

// "As long as it takes", as a program may say it: added to a time it would overflow.
TEST(Engine, TheLongestTimeoutIsLong) {
  Engine engine(options());
  Request request = endless();
  request.max_tokens = 40;
  SubmitResult result = engine.submit(request);
  ASSERT_TRUE(result);
  EXPECT_TRUE(result->next_within(milliseconds::max()).has_value());
  engine.drain(milliseconds::max());
  std::optional<Event> last;
  for (const Event& event : *result) last = event;
  ASSERT_TRUE(last && last->finish);
  EXPECT_EQ(*last->finish, FinishReason::kLength);
  EXPECT_FALSE(result->next_within(milliseconds::min()).has_value());
}

TEST(Engine, RefusesBadRequestsAtOnce) {
  Engine engine(options());
  Request request = endless();
  request.max_tokens = 100000;
  const SubmitResult result = engine.submit(request);
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().param, "max_tokens");
  EXPECT_NE(result.error().message.find("100000"), std::string::npos);
}

// What the commands' flags do not let through, a program may ask for.
TEST(Engine, ThrowsForOptionsOutOfRange) {
  const auto throws = [](const auto& change, const std::string& message) {
    EngineOptions wrong = options();
    change(wrong);
    try {
      Engine engine(wrong);
      ADD_FAILURE() << message;
    } catch (const std::runtime_error& error) {
      EXPECT_NE(std::string(error.what()).find(message), std::string::npos) << error.what();
    }
  };
  throws([](EngineOptions& o) { o.threads = -1; }, "options.threads -1 is out of range");
  throws([](EngineOptions& o) { o.mem_fraction_static = 1.5; },
         "options.mem_fraction_static 1.5 is out");
  throws([](EngineOptions& o) { o.mem_fraction_static = NAN; },
         "options.mem_fraction_static nan is out");
  throws([](EngineOptions& o) { o.speculative.steps = 16; }, "options.speculative.steps 16 is out");
  throws([](EngineOptions& o) { o.page_size = 7; }, "options.page_size 7: use 1, 16, 32 or 64");
  throws([](EngineOptions& o) { o.page_size = 0; }, "options.page_size 0");
  throws([](EngineOptions& o) { o.context_length = -1; }, "options.context_length -1 is out");
  throws([](EngineOptions& o) { o.max_total_tokens = -5; }, "options.max_total_tokens -5 is out");
  throws([](EngineOptions& o) { o.max_running_requests = -1; },
         "options.max_running_requests -1 is out");
  throws([](EngineOptions& o) { o.max_running_requests = INT32_MAX; },
         "options.max_running_requests 2147483647 is out");
  for (const double length : {0.5, 17.0, static_cast<double>(NAN)})
    throws([&](EngineOptions& o) { o.speculative.simulate_accept_length = length; },
           "options.speculative.simulate_accept_length");
  throws([](EngineOptions& o) { o.chunked_prefill_size = 0; }, "options.chunked_prefill_size 0");
  throws([](EngineOptions& o) { o.max_running_requests = 0; }, "options.max_running_requests 0");
  throws([](EngineOptions& o) { o.model_path = ""; }, "options.model_path is empty: give the");
  throws([](EngineOptions& o) { o.dtype = "f64"; }, "options.dtype f64 is unknown");
  throws([](EngineOptions& o) { o.device = "tpu"; }, "options.device tpu is unknown");
  throws([](EngineOptions& o) { o.kv_cache_scale = 2; }, "options.kv_cache_scale 2 has no meaning");
  throws([](EngineOptions& o) { o.context_length = 1 << 30; }, "options.context_length 1073741824");
}

TEST(Engine, ThrowsForAModelThatIsNotThere) {
  EngineOptions missing = options();
  missing.model_path = "/nonexistent";
  EXPECT_THROW(Engine{missing}, std::runtime_error);
}

}  // namespace
}  // namespace foresail
