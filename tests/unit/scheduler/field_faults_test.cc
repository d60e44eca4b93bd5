// Faults seen in other engines, by class, that concern pages and scheduling.
#include <gtest/gtest.h>

#include "unit/scheduler/scripted_engine.h"

namespace foresail {
namespace {

Tokens reused_by_next(ScriptedEngine& engine, const std::vector<int32_t>& prompt) {
  const Tokens before = engine.scheduler().stats().prefix_hit;
  const RequestId id = *engine.submit(prompt, 1);
  EXPECT_TRUE(engine.drain());
  EXPECT_TRUE(engine.complete_and_right(id));
  return engine.scheduler().stats().prefix_hit - before;
}

// K7: an aborted or failed request leaves only what completed steps computed.
TEST(FieldFaults, AbortedAndFailedWorkIsNotCached) {
  for (bool lag : {false, true}) {
    for (bool abort : {true, false}) {
      ScriptedEngine engine({.page_size = 64, .chunk_tokens = 64, .lag = lag});
      const RequestId id = *engine.submit(prompt_of(256), 8);
      engine.step();
      engine.fail_next_step = !abort && lag;  // with lag, the step completed next is the first
      engine.step();
      if (abort) engine.abort(id);
      if (!abort && !lag) {
        engine.fail_next_step = true;  // the third chunk
        engine.step();
      }
      engine.settle();
      EXPECT_TRUE(abort || engine.failed(id));
      const Tokens most{abort ? (lag ? 64 : 128) : (lag ? 0 : 128)};
      EXPECT_EQ(reused_by_next(engine, prompt_of(256)), most) << lag << abort;
    }
  }
}

// K7: one bad row (NaN) takes nothing of its step into the cache, and no neighbour with it.
TEST(FieldFaults, FailedRowEndsAlone) {
  ScriptedEngine engine({.page_size = 1, .max_draft_len = 3, .lag = false});
  const RequestId bad = *engine.submit(prompt_of(10), 30);
  const RequestId good = *engine.submit(prompt_of(10, 100), 30);
  for (int i = 0; i < 3; ++i) engine.step();
  const int64_t history = static_cast<int64_t>(engine.tokens(bad).size());
  engine.fail_row_of = bad;
  engine.step();
  EXPECT_TRUE(engine.failed(bad));
  ASSERT_TRUE(engine.drain());
  EXPECT_TRUE(engine.finished(good) && engine.complete_and_right(good));
  const PrefixHit hit = engine.scheduler().cache().tree().match(
      "", std::span(engine.executor().stream(bad).tokens).first(60));
  EXPECT_EQ(hit.reuse(), Tokens{history - 1});
}

// K7: a twin in the same step matches nothing, since nothing of it is computed yet.
TEST(FieldFaults, TwinsInOneStep) {
  for (PrefixKeys keys : {PrefixKeys::kTokens, PrefixKeys::kPairs}) {
    ScriptedEngine engine({.page_size = 16,
                           .prefix_keys = keys,
                           .kv_drafter = true,
                           .chunk_tokens = 512,
                           .lag = false});
    const RequestId a = *engine.submit(prompt_of(128), 8), b = *engine.submit(prompt_of(128), 8);
    const StepPlan plan = engine.step();
    ASSERT_EQ(plan.prefill.size(), 2u);
    EXPECT_EQ(plan.prefill[0].begin, Tokens{0});
    EXPECT_EQ(plan.prefill[1].begin, Tokens{0});
    EXPECT_EQ(engine.scheduler().stats().pages.cached, Pages{8});  // one copy of two
    ASSERT_TRUE(engine.drain());
    EXPECT_TRUE(engine.complete_and_right(a) && engine.complete_and_right(b));
    EXPECT_EQ(engine.scheduler().stats().prefix_hit, Tokens{0});
  }
}

// K7: the salt is part of the key.
TEST(FieldFaults, SaltsDoNotMeet) {
  ScriptedEngine engine({.page_size = 16});
  for (const char* salt : {"", "a", "b"}) {
    const RequestId id = *engine.submit(prompt_of(100), 4, 0, salt);
    ASSERT_TRUE(engine.drain());
    EXPECT_TRUE(engine.complete_and_right(id));
  }
  EXPECT_EQ(engine.scheduler().stats().prefix_hit, Tokens{0});
}

// K7: the whole prompt is cached.
TEST(FieldFaults, SamePromptTwice) {
  const auto second = [](int32_t page, PrefixKeys keys, int32_t length) {
    ScriptedEngine engine({.page_size = page,
                           .usable_pages = 300,
                           .prefix_keys = keys,
                           .kv_drafter = keys == PrefixKeys::kPairs,
                           .chunk_tokens = 512});
    EXPECT_EQ(reused_by_next(engine, prompt_of(length)), Tokens{0});
    return reused_by_next(engine, prompt_of(length)).value;
  };
  EXPECT_EQ(second(64, PrefixKeys::kTokens, 128), 64);
  EXPECT_EQ(second(1, PrefixKeys::kTokens, 128), 127);
  EXPECT_EQ(second(64, PrefixKeys::kPairs, 128), 64);
  EXPECT_EQ(second(1, PrefixKeys::kPairs, 128), 127);
  EXPECT_EQ(second(1, PrefixKeys::kTokens, 1), 0);
}

// K8: whatever state it is in, an aborted request is gone at once, and once.
TEST(FieldFaults, AbortInEveryState) {
  for (bool lag : {false, true}) {
    for (int after = 0; after < 12; ++after) {
      ScriptedEngine engine({.page_size = 1,
                             .usable_pages = 64,
                             .max_draft_len = 2,
                             .slots = 2,
                             .chunk_tokens = 8,
                             .retract_every = 3,
                             .lag = lag});
      std::vector<RequestId> ids;
      for (int32_t i = 0; i < 4; ++i) ids.push_back(*engine.submit(prompt_of(20, 50 * i), 30));
      for (int i = 0; i < after; ++i) engine.step();
      for (size_t i : {0, 1, 3}) {
        EXPECT_TRUE(engine.abort(ids[i]));
        EXPECT_FALSE(engine.abort(ids[i]));
      }
      EXPECT_EQ(engine.scheduler().stats().aborted, 3);
      EXPECT_LE(engine.scheduler().stats().running, 1);
      ASSERT_TRUE(engine.drain(200));
      EXPECT_TRUE(engine.finished(ids[2]) && engine.complete_and_right(ids[2]));
    }
  }
}

// K8: 1,000 iterations with runs of 1 to 4, and every page comes back.
TEST(FieldFaults, LongSpeculativeRunLeaksNothing) {
  for (int32_t page : {1, 16, 32, 64}) {
    ScriptedEngine engine({.page_size = page,
                           .usable_pages = 4096 / page + 1,
                           .max_context_len = 4096,
                           .max_draft_len = 3,
                           .seed = 7});
    const RequestId id = *engine.submit(prompt_of(100), 2600);
    ASSERT_TRUE(engine.drain(3000));
    EXPECT_TRUE(engine.complete_and_right(id));
    engine.scheduler().cache().tree().evict(Pages{INT64_MAX});
    EXPECT_EQ(engine.scheduler().stats().pages.free, engine.scheduler().stats().pages.total);
  }
}

// K8: too few pages for two: one steps back and resumes, both outputs stand.
TEST(FieldFaults, OutOfPagesWhileDecoding) {
  for (bool lag : {false, true}) {
    for (int32_t drafts : {0, 4}) {
      ScriptedEngine engine({.page_size = 1,
                             .usable_pages = drafts == 0 ? 64 : 74,
                             .max_draft_len = drafts,
                             .chunk_tokens = 8,
                             .lag = lag});
      const RequestId a = *engine.submit(prompt_of(16), 40);
      const RequestId b = *engine.submit(prompt_of(16, 500), 40);
      ASSERT_TRUE(engine.drain(500));
      EXPECT_GE(engine.scheduler().stats().retractions, 1);
      EXPECT_TRUE(engine.finished(a) && engine.complete_and_right(a));
      EXPECT_TRUE(engine.finished(b) && engine.complete_and_right(b));
    }
  }
}

// K8: many sequences reach a page border in the same step.
TEST(FieldFaults, EverySequenceNeedsAPageAtOnce) {
  ScriptedEngine engine({.page_size = 64,
                         .usable_pages = 148 + 32,
                         .max_context_len = 256,
                         .slots = 148,
                         .prefix_keys = PrefixKeys::kOff,
                         .chunk_tokens = 148 * 64,
                         .step_tokens = 100'000});
  std::vector<RequestId> ids;
  for (int32_t i = 0; i < 148; ++i) ids.push_back(*engine.submit(prompt_of(62, 64 * i), 20));
  ASSERT_TRUE(engine.drain(2000));
  for (RequestId id : ids) EXPECT_TRUE(engine.finished(id) && engine.complete_and_right(id));
}

// K8: retraction every third step changes no token.
TEST(FieldFaults, ForcedRetraction) {
  for (int32_t page : {1, 16, 32, 64}) {
    for (int32_t drafts : {0, 4}) {
      for (PrefixKeys keys : {PrefixKeys::kOff, PrefixKeys::kTokens, PrefixKeys::kPairs}) {
        ScriptedEngine engine({.page_size = page,
                               .usable_pages = 512 / page,
                               .max_draft_len = drafts,
                               .prefix_keys = keys,
                               .kv_drafter = keys == PrefixKeys::kPairs,
                               .chunk_tokens = 8,
                               .retract_every = 3});
        std::vector<RequestId> ids;
        for (int32_t i = 0; i < 4; ++i) ids.push_back(*engine.submit(prompt_of(30, 9 * i), 25));
        ASSERT_TRUE(engine.drain(5000));
        EXPECT_GT(engine.scheduler().stats().retractions, 3);
        for (RequestId id : ids) EXPECT_TRUE(engine.finished(id) && engine.complete_and_right(id));
      }
    }
  }
}

// K15: hits count admissions, not attempts and not resumptions.
TEST(FieldFaults, HitCounterCountsAdmissions) {
  ScriptedEngine engine({.page_size = 64, .usable_pages = 40, .retract_every = 3});
  int64_t queried = 0;
  std::vector<RequestId> ids;
  for (int32_t i = 0; i < 50; ++i) {
    ids.push_back(*engine.submit(prompt_of(128 + i, 1000 * (i + 1)), 30));
    queried += 128 + i;
  }
  Tokens last;
  while (!engine.scheduler().idle()) {
    engine.step();
    EXPECT_GE(engine.scheduler().stats().prefix_hit, last);
    last = engine.scheduler().stats().prefix_hit;
  }
  EXPECT_GT(engine.scheduler().stats().retractions, 10);
  EXPECT_EQ(engine.scheduler().stats().prefix_hit, Tokens{0});
  EXPECT_EQ(engine.scheduler().stats().prefix_queried, Tokens{queried});
  EXPECT_EQ(reused_by_next(engine, prompt_of(128, 900'000)), Tokens{0});
  EXPECT_EQ(reused_by_next(engine, prompt_of(128, 900'000)), Tokens{64});
  const SchedulerStats stats = engine.scheduler().stats();
  EXPECT_EQ(stats.running + stats.waiting, 0);
}

}  // namespace
}  // namespace foresail
