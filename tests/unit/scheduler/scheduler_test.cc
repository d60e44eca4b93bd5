#include "scheduler/scheduler.h"

#include <gtest/gtest.h>

#include "unit/scheduler/scripted_engine.h"

namespace foresail {
namespace {

void expect_right(ScriptedEngine& engine, const std::vector<RequestId>& ids) {
  for (RequestId id : ids) EXPECT_TRUE(engine.complete_and_right(id)) << id.value;
}

TEST(SequenceState, LegalMovesOnly) {
  static_assert(kLegalMove<Waiting, Prefilling> && kLegalMove<Retracted, Prefilling>);
  static_assert(kLegalMove<Prefilling, Decoding> && !kLegalMove<Waiting, Decoding>);
  static_assert(kLegalMove<Prefilling, Retracted> && kLegalMove<Decoding, Retracted>);
  static_assert(!kLegalMove<Waiting, Retracted> && !kLegalMove<Decoding, Prefilling>);
  static_assert(kLegalMove<Decoding, Finished> && !kLegalMove<Finished, Finished>);
  static_assert(!kLegalMove<Finished, Waiting> && !kLegalMove<Retracted, Waiting>);
}

TEST(SequenceStateDeathTest, IllegalMoveAborts) {
  Sequence request;
  EXPECT_DEATH(request.become(Retracted{}), "no move from state 0 to 3");
}

TEST(RequestQueue, PriorityThenArrival) {
  Sequence a, b, c;
  a.id = RequestId{1}, b.id = RequestId{2}, c.id = RequestId{3};
  c.priority = 5;
  RequestQueue queue;
  for (Sequence* request : {&b, &c, &a}) queue.push(request);
  EXPECT_EQ(queue.front(), &c);
  EXPECT_TRUE(queue.remove(&c));
  EXPECT_FALSE(queue.remove(&c));
  EXPECT_EQ(queue.front(), &a);
}

TEST(StepPlan, Buckets) {
  EXPECT_EQ(decode_bucket_for(0), 0);
  EXPECT_EQ(decode_bucket_for(1), 1);
  EXPECT_EQ(decode_bucket_for(3), 4);
  EXPECT_EQ(decode_bucket_for(5), 8);
  EXPECT_EQ(decode_bucket_for(9), 16);
  EXPECT_EQ(decode_bucket_for(64), 64);
}

TEST(Scheduler, OneRequestFromPromptToEnd) {
  ScriptedEngine engine({.page_size = 16, .lag = false});
  const RequestId id = *engine.submit(prompt_of(20), 3);
  StepPlan plan = engine.step();
  ASSERT_EQ(plan.prefill.size(), 1u);
  EXPECT_TRUE(plan.prefill[0].first && plan.prefill[0].is_last());
  EXPECT_EQ(plan.prefill_tokens, prompt_of(20));
  EXPECT_EQ(plan.page_updates.size(), 2u);
  plan = engine.step();
  ASSERT_EQ(plan.decode.size(), 1u);
  EXPECT_EQ(plan.decode[0].kv_len_upper, Tokens{20});
  EXPECT_TRUE(plan.page_updates.empty());
  engine.step();
  EXPECT_TRUE(engine.finished(id));
  EXPECT_TRUE(engine.scheduler().idle());
  expect_right(engine, {id});
}

// K4: every chunk but the last ends with the prompt's own next token, resumed output included.
TEST(Scheduler, ShiftedInputsJoinToThePrompt) {
  for (int32_t chunk : {1, 2, 3, 4, 6, 7}) {
    ScriptedEngine engine({.page_size = 1, .chunk_tokens = chunk, .lag = false});
    const std::vector<int32_t> prompt{11, 12, 13, 14, 15, 16};
    const RequestId id = *engine.submit(prompt, 2);
    std::vector<int32_t> shifted;
    while (!engine.scheduler().idle()) {
      const StepPlan plan = engine.step();
      for (const PrefillChunk& part : plan.prefill) {
        shifted.insert(shifted.end(), plan.prefill_tokens.begin() + 1, plan.prefill_tokens.end());
        shifted.push_back(part.is_last() ? engine.tokens(id)[6] : part.next_token);
      }
    }
    EXPECT_EQ(shifted, (std::vector<int32_t>{12, 13, 14, 15, 16, engine.tokens(id)[6]})) << chunk;
  }
}

// K4
TEST(Scheduler, ResumedRequestShiftsThroughItsOwnOutput) {
  ScriptedEngine engine({.page_size = 1,
                         .prefix_keys = PrefixKeys::kOff,
                         .chunk_tokens = 4,
                         .retract_every = 3,
                         .lag = false});
  const RequestId id = *engine.submit({11, 12, 13}, 4);
  engine.step();  // prefill
  engine.step();  // decode: two tokens of output by now
  const StepPlan plan = engine.step();
  ASSERT_EQ(plan.prefill.size(), 1u);
  EXPECT_EQ(plan.prefill[0].begin, Tokens{0});
  EXPECT_EQ(plan.prefill_tokens, (std::vector<int32_t>{11, 12, 13, engine.tokens(id)[3]}));
  EXPECT_EQ(plan.prefill[0].next_token, engine.tokens(id)[4]);
  ASSERT_TRUE(engine.drain(100));
  expect_right(engine, {id});
}

// A request that ended in step s may stand in s + 1: its row is ignored, its pages wait for it.
TEST(Scheduler, ResultsOneStepLate) {
  ScriptedEngine engine({.page_size = 1, .usable_pages = 8, .prefix_keys = PrefixKeys::kOff});
  Scheduler& scheduler = engine.scheduler();
  const RequestId id = *scheduler.submit({.prompt = {1, 2}, .max_new_tokens = Tokens{6}});
  const StepPlan first = scheduler.plan_step(0);
  const StepPlan second = scheduler.plan_step(0);
  ASSERT_EQ(second.decode.size(), 1u);
  EXPECT_EQ(second.decode[0].kv_len_upper, Tokens{2});
  scheduler.complete({.step = first.step,
                      .rows = {{.slot = first.prefill[0].slot, .accept_len = 1, .finished = true}},
                      .tokens = {9}});
  EXPECT_FALSE(scheduler.abort(id));
  EXPECT_EQ(scheduler.stats().pages.in_flight, Pages{3});
  EXPECT_TRUE(scheduler.plan_step(0).empty());
  scheduler.complete({.step = second.step, .rows = {{.slot = second.decode[0].slot}}});
  EXPECT_TRUE(scheduler.idle());
  EXPECT_EQ(scheduler.stats().pages.free, Pages{8});
}

TEST(SchedulerDeathTest, StepsInOrderAndOneAhead) {
  ScriptedEngine engine({.page_size = 1});
  Scheduler& scheduler = engine.scheduler();
  ASSERT_TRUE(scheduler.submit({.prompt = {1, 2}, .max_new_tokens = Tokens{9}}));
  const StepPlan first = scheduler.plan_step(0);
  scheduler.plan_step(0);
  EXPECT_DEATH(scheduler.plan_step(0), "2 steps await results");
  EXPECT_DEATH(scheduler.complete({.step = first.step + 1}), "expected");
}

// K4: a row that commits nothing would leave a gather index of -1 behind.
TEST(SchedulerDeathTest, EveryStepBringsAToken) {
  ScriptedEngine engine({.page_size = 1});
  Scheduler& scheduler = engine.scheduler();
  ASSERT_TRUE(scheduler.submit({.prompt = {1, 2}, .max_new_tokens = Tokens{9}}));
  const StepPlan plan = scheduler.plan_step(0);
  EXPECT_DEATH(scheduler.complete({.step = plan.step, .rows = {{.slot = plan.prefill[0].slot}}}),
               "a step without a token");
}

TEST(Scheduler, DraftsNoFurtherThanTheLimit) {
  ScriptedEngine engine({.max_draft_len = 7, .lag = false});
  engine.executor().accept_rate = 0;
  const RequestId id = *engine.submit(prompt_of(10), 5);
  engine.step();
  for (int32_t draft_len : {3, 2, 1, 0}) {
    const StepPlan plan = engine.step();
    ASSERT_EQ(plan.decode.size(), 1u);
    EXPECT_EQ(plan.decode[0].draft_len, draft_len);
  }
  EXPECT_TRUE(engine.finished(id));
}

TEST(Scheduler, DepthChangesFromStepToStep) {
  ScriptedEngine engine(
      {.max_draft_len = 7, .prefix_keys = PrefixKeys::kPairs, .kv_drafter = true, .lag = false});
  const RequestId id = *engine.submit(prompt_of(10), 60);
  const RequestId never = *engine.submit(prompt_of(10, 100), 60, 0, "", 0);
  engine.draft_len = 0;
  engine.step();
  int32_t proposed = 0;  // what the step before drafted
  for (int32_t draft_len : {0, 3, 7, 2, 0, 0, 5, 5}) {
    engine.draft_len = draft_len;
    const StepPlan plan = engine.step();
    ASSERT_EQ(plan.decode.size(), 2u);
    EXPECT_EQ(plan.decode[0].draft_len, proposed);
    EXPECT_EQ(plan.decode[0].next_draft_len, draft_len);
    EXPECT_EQ(plan.decode[1].draft_len + plan.decode[1].next_draft_len, 0);
    proposed = draft_len;
  }
  ASSERT_TRUE(engine.drain());
  expect_right(engine, {id, never});
}

TEST(Scheduler, HigherPriorityIsAdmittedFirst) {
  ScriptedEngine engine({.slots = 1});
  const RequestId running = *engine.submit(prompt_of(5), 4);
  engine.step();
  const RequestId low = *engine.submit(prompt_of(5), 4, 0);
  const RequestId high = *engine.submit(prompt_of(5), 4, 7);
  while (!engine.finished(high)) {
    engine.step();
    ASSERT_FALSE(engine.finished(low));
  }
  ASSERT_TRUE(engine.drain());
  expect_right(engine, {running, low, high});
}

TEST(Scheduler, RetractsTheLowestThenTheYoungest) {
  ScriptedEngine engine({.page_size = 1, .usable_pages = 40, .chunk_tokens = 64, .lag = false});
  const RequestId low = *engine.submit(prompt_of(8), 20, 0);
  engine.step();
  const RequestId old_high = *engine.submit(prompt_of(8, 100), 20, 1);
  engine.step();
  const RequestId young_high = *engine.submit(prompt_of(8, 200), 20, 1);
  while (engine.scheduler().stats().retractions == 0) engine.step();
  EXPECT_FALSE(engine.finished(old_high) || engine.finished(young_high) || engine.finished(low));
  while (!engine.finished(old_high)) {
    engine.step();
    EXPECT_FALSE(engine.finished(low));
  }
  ASSERT_TRUE(engine.drain());
  expect_right(engine, {low, old_high, young_high});
}

TEST(Scheduler, ShortPromptsOvertakeALongPrefill) {
  for (int32_t chunk : {1, 2, 16, 64, 128}) {
    ScriptedEngine engine(
        {.usable_pages = 600, .max_context_len = 5000, .chunk_tokens = chunk, .lag = false});
    const RequestId longest = *engine.submit(prompt_of(4000), 2);
    engine.step();
    const RequestId small = *engine.submit(prompt_of(10, 50'000), 2);
    int64_t steps = 0;
    for (; !engine.finished(small); ++steps) engine.step();
    EXPECT_LE(steps, 2 * 10 / std::min(chunk, 10) + 3) << chunk;
    EXPECT_FALSE(engine.finished(longest));
  }
}

TEST(Scheduler, ALongPrefillIsNotStarvedByShortOnes) {
  ScriptedEngine engine({.usable_pages = 600, .max_context_len = 5000, .chunk_tokens = 64});
  const RequestId longest = *engine.submit(prompt_of(2000), 2);
  int64_t steps = 0;
  for (; !engine.finished(longest); ++steps) {
    while (engine.scheduler().stats().waiting < 4) {
      ASSERT_TRUE(engine.submit(prompt_of(30, static_cast<int32_t>(10'000 + 40 * steps)), 1));
    }
    engine.step();
  }
  EXPECT_LE(steps, 2000 / 32 + 8);
}

TEST(Scheduler, PrefillAndDecodeShareAStep) {
  ScriptedEngine engine({.chunk_tokens = 64, .step_tokens = 20});
  ASSERT_TRUE(engine.submit(prompt_of(10), 30));
  engine.step();
  ASSERT_TRUE(engine.submit(prompt_of(60, 100), 2));
  const StepPlan plan = engine.step();
  EXPECT_EQ(plan.decode.size(), 1u);
  ASSERT_EQ(plan.prefill.size(), 1u);
  EXPECT_EQ(plan.prefill[0].end, Tokens{16});  // 20 - 1 decode row, down to a page
  ASSERT_TRUE(engine.drain());
}

// K10: one log of inputs, one sequence of plans: nothing else goes into a decision.
TEST(Scheduler, TwoCopiesMakeTheSamePlans) {
  const ScriptedConfig config{
      .usable_pages = 12, .max_draft_len = 3, .slots = 4, .schedule_seed = 9, .seed = 4};
  ScriptedEngine a(config), b(config);
  const auto digest = [](const StepPlan& plan) {
    std::vector<int64_t> numbers{plan.step, plan.decode_bucket};
    for (const RowUpdate& u : plan.page_updates) {
      numbers.insert(numbers.end(), {u.slot.value, u.column, u.page.value});
    }
    for (const PrefillChunk& c : plan.prefill) {
      numbers.insert(numbers.end(), {c.slot.value, c.request.value, c.begin.value, c.end.value,
                                     c.next_token, c.next_draft_len});
    }
    for (const DecodeRow& r : plan.decode) {
      numbers.insert(numbers.end(), {r.slot.value, r.request.value, r.kv_len_upper.value,
                                     r.draft_len, r.next_draft_len});
    }
    return numbers;
  };
  for (int step = 0; step < 1000; ++step) {
    for (ScriptedEngine* engine : {&a, &b}) {
      if (step % 5 == 0) {
        ASSERT_TRUE(engine->submit(prompt_of(20 + step % 30, step % 7), 20));
      }
      if (step % 23 == 0) engine->abort(engine->live().back());
    }
    ASSERT_EQ(digest(a.step()), digest(b.step())) << step;
  }
}

TEST(Scheduler, OutputDoesNotDependOnTheOrderOfDecisions) {
  for (uint64_t seed = 0; seed < 30; ++seed) {
    ScriptedEngine engine({.usable_pages = 10,
                           .max_draft_len = 2,
                           .slots = 5,
                           .prefix_keys = PrefixKeys::kPairs,
                           .kv_drafter = true,
                           .chunk_tokens = 24,
                           .schedule_seed = seed});
    std::vector<RequestId> ids;
    for (int32_t i = 0; i < 12; ++i)
      ids.push_back(*engine.submit(prompt_of(10 + 5 * i, i % 2), 25));
    ASSERT_TRUE(engine.drain());
    expect_right(engine, ids);
  }
}

}  // namespace
}  // namespace foresail
