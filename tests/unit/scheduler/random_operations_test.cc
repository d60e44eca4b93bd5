// Scheduler and cache under random arrivals, aborts, retractions, evictions and failures.
#include <gtest/gtest.h>

#include "unit/scheduler/scripted_engine.h"

namespace foresail {
namespace {

#ifdef NDEBUG
constexpr int64_t kSteps = 1'050'000;
#else
constexpr int64_t kSteps = 60'000;
#endif
constexpr int kEpisodeSteps = 400;
constexpr int64_t kDrainLimit = 20'000;

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 2 + 1) {}
  int64_t below(int64_t bound) {
    state_ ^= state_ << 13, state_ ^= state_ >> 7, state_ ^= state_ << 17;
    return static_cast<int64_t>((state_ >> 11) % static_cast<uint64_t>(bound));
  }
  int64_t between(int64_t low, int64_t high) { return low + below(high - low + 1); }
  bool chance(int64_t percent) { return below(100) < percent; }
  template <typename T>
  T pick(std::initializer_list<T> items) {
    return items.begin()[below(static_cast<int64_t>(items.size()))];
  }

 private:
  uint64_t state_;
};

ScriptedConfig random_config(Random& random, uint64_t seed) {
  ScriptedConfig config;
  config.page_size = random.pick({1, 16, 32, 64});
  // Scarce more often than not.
  config.usable_pages = config.page_size == 1 ? random.between(20, 300) : random.between(2, 24);
  config.max_context_len = 400;
  config.max_draft_len = static_cast<int32_t>(random.below(8));
  config.drafts_from_bonus = random.chance(30);
  config.slots = static_cast<int32_t>(random.between(1, 8));
  config.prefix_keys = random.pick({PrefixKeys::kOff, PrefixKeys::kTokens, PrefixKeys::kPairs});
  config.kv_drafter = config.prefix_keys != PrefixKeys::kTokens;
  config.chunk_tokens = random.between(1, 64);
  config.step_tokens = random.pick({8192, 64, 16});
  config.schedule_seed = random.pick<uint64_t>({0, seed});
  config.retract_every = random.pick({0, 3});
  config.vocab = random.pick({1'000'000, 20});
  config.seed = seed;
  return config;
}

// Few distinct beginnings, so that prefixes meet.
std::vector<int32_t> random_prompt(Random& random) {
  std::vector<int32_t> prompt;
  const int64_t base = random.below(3);
  for (int64_t length = random.between(0, 100), i = 0; i < length; ++i) {
    prompt.push_back(static_cast<int32_t>(100 * base + i % 7));
  }
  for (int64_t tail = random.between(prompt.empty() ? 1 : 0, 20); tail > 0; --tail) {
    prompt.push_back(static_cast<int32_t>(random.below(4)));
  }
  return prompt;
}

struct Totals {
  int64_t steps = 0, finished = 0, aborted = 0, failed = 0, refused = 0, retractions = 0;
  int64_t hits = 0, allocation_failures = 0, stalls = 0;
};

void run_episode(uint64_t seed, Totals& totals) {
  Random random(seed);
  const ScriptedConfig config = random_config(random, seed);
  ScriptedEngine engine(config);
  engine.executor().accept_rate = static_cast<double>(random.below(11)) / 10;
  Random faults(seed + 1);
  const int64_t fault_percent = random.pick({0, 0, 2, 20});
  engine.scheduler().cache().pool().inject_failure([&] { return faults.chance(fault_percent); });
  const int64_t arrivals = random.pick({5, 30});
  const std::string salts[] = {"", "tenant"};

  for (int step = 0; step < kEpisodeSteps; ++step) {
    if (random.chance(arrivals) && engine.live().size() < 12) {
      const std::vector<int32_t> prompt = random_prompt(random);
      const int64_t max_new = random.between(1, 40);
      const Tokens prompt_len{static_cast<int64_t>(prompt.size())};
      const bool fits = engine.scheduler().capacity().fits(prompt_len, Tokens{max_new}).has_value();
      const auto id = engine.submit(prompt, max_new, static_cast<int32_t>(random.below(3)),
                                    salts[random.chance(15)], random.chance(20) ? 0 : INT32_MAX);
      ASSERT_EQ(id.has_value(), fits);
    }
    if (random.chance(2)) {
      const std::vector<RequestId> live = engine.live();
      if (!live.empty()) {
        const RequestId id = live[random.below(static_cast<int64_t>(live.size()))];
        ASSERT_TRUE(engine.abort(id));
        ASSERT_FALSE(engine.abort(id));
      }
    }
    if (random.chance(1)) {
      engine.fail_next_step = random.chance(30);
      if (!engine.live().empty()) engine.fail_row_of = engine.live().front();
    }
    engine.draft_len = static_cast<int32_t>(random.below(9));
    engine.step(random.chance(80));
    if (random.chance(5)) {
      engine.settle();
      engine.forget_ended();
    }
  }
  engine.fail_next_step = false;
  engine.fail_row_of.reset();
  engine.scheduler().cache().pool().inject_failure({});
  ASSERT_TRUE(engine.drain(kDrainLimit)) << "hangs";
  engine.forget_ended();

  const SchedulerStats stats = engine.scheduler().stats();
  ASSERT_EQ(stats.submitted, stats.finished + stats.aborted + stats.failed);
  ASSERT_EQ(stats.pages.free + stats.pages.cached, stats.pages.total);
  ASSERT_LE(stats.prefix_hit, stats.prefix_queried);
  engine.scheduler().cache().tree().evict(Pages{INT64_MAX});
  ASSERT_EQ(engine.scheduler().stats().pages.free, stats.pages.total) << "leak";
  totals.steps += stats.steps;
  totals.finished += stats.finished;
  totals.aborted += stats.aborted;
  totals.failed += stats.failed;
  totals.refused += stats.refused;
  totals.retractions += stats.retractions;
  totals.stalls += stats.stalls;
  totals.hits += stats.prefix_hit.value;
  totals.allocation_failures += engine.scheduler().cache().pool().failures();
}

TEST(RandomOperations, EveryRequestGetsItsOwnStreamAndNothingLeaks) {
  Totals totals;
  for (uint64_t seed = 1; totals.steps < kSteps; ++seed) {
    SCOPED_TRACE(seed);
    ASSERT_NO_THROW(run_episode(seed, totals));
    if (HasFatalFailure()) return;
  }
  std::printf(
      "steps %ld finished %ld aborted %ld failed %ld refused %ld retractions %ld stalls %ld "
      "hit tokens %ld allocation failures %ld\n",
      totals.steps, totals.finished, totals.aborted, totals.failed, totals.refused,
      totals.retractions, totals.stalls, totals.hits, totals.allocation_failures);
  // The mix did exercise what it claims to.
  EXPECT_GT(totals.finished, kSteps / 200);
  EXPECT_GT(totals.retractions, kSteps / 200);
  EXPECT_GT(totals.aborted, kSteps / 1000);
  EXPECT_GT(totals.failed, kSteps / 2000);
  EXPECT_GT(totals.refused, 0);
  EXPECT_GT(totals.hits, kSteps / 100);
  EXPECT_GT(totals.allocation_failures, kSteps / 500);
}

}  // namespace
}  // namespace foresail
