// Faults seen in other engines, by class, that concern what fits.
#include <gtest/gtest.h>

#include "unit/scheduler/scripted_engine.h"

namespace foresail {
namespace {

// K9: accepted means admitted on an empty pool, in the first plan: every prompt length, with the
// outputs about the border and a few within. Refused is what the pool cannot hold, and only that.
TEST(CapacityFaults, AcceptedIsAdmitted) {
  constexpr int64_t kPoolTokens = 4096;
  for (int32_t drafts : {0, 3, 15}) {
    for (int32_t page : {1, 64}) {
      ScriptedEngine engine({.page_size = page,
                             .usable_pages = kPoolTokens / page,
                             .max_context_len = 100'000,
                             .max_draft_len = drafts,
                             .chunk_tokens = 8192});
      Scheduler& scheduler = engine.scheduler();
      int64_t accepted = 0, refused = 0;
      const auto check = [&](int32_t prompt, int64_t output) {
        if (output < 1) return;
        const auto id =
            scheduler.submit({.prompt = prompt_of(prompt), .max_new_tokens = Tokens{output}});
        ASSERT_EQ(id.has_value(), prompt + output <= kPoolTokens) << prompt << " + " << output;
        if (!id) {
          ++refused;
          return;
        }
        ++accepted;
        const StepPlan plan = scheduler.plan_step(drafts);
        ASSERT_EQ(plan.prefill.size(), 1u) << prompt << " + " << output;
        EXPECT_TRUE(scheduler.abort(*id));
        scheduler.complete({.step = plan.step, .rows = {{.slot = plan.prefill[0].slot}}});
      };
      for (int32_t prompt = 1; prompt <= kPoolTokens + 4; prompt += drafts == 3 ? 1 : 37) {
        for (int64_t left : {-2, -1, 0, 1, 2, 15}) check(prompt, kPoolTokens - prompt - left);
        check(prompt, 1);
        check(prompt, kPoolTokens + 4);
      }
      EXPECT_GT(accepted, 100);
      EXPECT_GT(refused, 100);
    }
  }
}

// K9: and it runs to its end in exactly that pool, whatever the depth, with a small one behind it.
TEST(CapacityFaults, WhatJustFitsCompletes) {
  for (int32_t drafts = 0; drafts <= 7; ++drafts) {
    for (int32_t usable : {24, 41}) {
      for (int32_t prompt = 1; prompt < usable; ++prompt) {
        const int64_t output = usable - prompt;
        for (double accept_rate : {0.0, 0.7, 1.0}) {
          for (bool lag : {false, true}) {
            ScriptedEngine engine({.page_size = 1,
                                   .usable_pages = usable,
                                   .max_draft_len = drafts,
                                   .drafts_from_bonus = prompt % 2 == 0,
                                   .chunk_tokens = 5,
                                   .lag = lag});
            engine.executor().accept_rate = accept_rate;
            const RequestId big = *engine.submit(prompt_of(prompt), output);
            const RequestId small = *engine.submit({7}, 1);
            ASSERT_FALSE(engine.submit(prompt_of(prompt), output + 1));
            ASSERT_TRUE(engine.drain(500));
            ASSERT_TRUE(engine.finished(big) && engine.complete_and_right(big));
            ASSERT_TRUE(engine.finished(small) && engine.complete_and_right(small));
          }
        }
      }
    }
  }
}

// K9: a pool of 4096 tokens and a request for all of them, in every cut into pages.
TEST(CapacityFaults, TheWholePoolForOneRequest) {
  for (int32_t page : {1, 16, 32, 64}) {
    for (int32_t drafts : {0, 3, 7}) {
      ScriptedEngine engine({.page_size = page,
                             .usable_pages = 4096 / page,
                             .max_context_len = 10'000,
                             .max_draft_len = drafts});
      const auto too_long = engine.submit(prompt_of(4097), 1);
      ASSERT_FALSE(too_long);
      EXPECT_EQ(too_long.error().param, "prompt");
      const RequestId big = *engine.submit(prompt_of(10), 4086);
      const RequestId behind = *engine.submit(prompt_of(10, 100), 4);
      ASSERT_TRUE(engine.drain(9000));
      EXPECT_TRUE(engine.finished(big) && engine.complete_and_right(big));
      EXPECT_EQ(engine.tokens(big).size(), 4096u);
      EXPECT_TRUE(engine.finished(behind) && engine.complete_and_right(behind));
    }
  }
}

// K9: what is refused never waits, and what waits is waiting for something: no plan is empty while
// nothing is under way.
TEST(CapacityFaults, NobodyWaitsForNothing) {
  ScriptedEngine engine({.page_size = 16, .usable_pages = 8, .slots = 4, .lag = false});
  std::vector<RequestId> ids;
  for (int32_t i = 0; i < 12; ++i) ids.push_back(*engine.submit(prompt_of(60, 100 * i), 68));
  while (!engine.scheduler().idle()) ASSERT_FALSE(engine.step().empty());
  for (RequestId id : ids) EXPECT_TRUE(engine.finished(id) && engine.complete_and_right(id));
}

// K2: at the context limit no write leaves the row, whatever the depth.
TEST(CapacityFaults, ContextLimit) {
  for (int32_t page : {1, 16, 64}) {
    for (int32_t drafts = 0; drafts <= 15; ++drafts) {
      ScriptedEngine engine({.page_size = page,
                             .usable_pages = 2000 / page,
                             .max_context_len = 128,
                             .max_draft_len = drafts,
                             .drafts_from_bonus = drafts % 3 == 0});
      engine.executor().accept_rate = drafts % 2 == 0 ? 1.0 : 0.5;
      std::vector<RequestId> ids;
      for (int32_t i = 0; i < 4; ++i) {
        ids.push_back(*engine.submit(prompt_of(100 + i, 128 * i), 28 - i));
      }
      ASSERT_TRUE(engine.drain(500));
      for (RequestId id : ids) EXPECT_TRUE(engine.finished(id) && engine.complete_and_right(id));
    }
  }
}

}  // namespace
}  // namespace foresail
