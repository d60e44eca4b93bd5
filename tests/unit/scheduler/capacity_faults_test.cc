// Faults seen in other engines, by class, that concern what fits.
#include <gtest/gtest.h>

#include <numeric>

#include "unit/scheduler/scripted_engine.h"

namespace foresail {
namespace {

std::vector<int32_t> prompt_of(int32_t length, int32_t first = 1) {
  std::vector<int32_t> prompt(length);
  std::iota(prompt.begin(), prompt.end(), first);
  return prompt;
}

// K9: accepted means admitted on an empty pool, in the first plan.
TEST(CapacityFaults, AcceptedIsAdmitted) {
  for (int32_t drafts : {0, 3}) {
    for (int32_t page : {16, 64}) {
      ScriptedEngine engine({.page_size = page,
                             .usable_pages = 4096 / page,
                             .max_context_len = 100'000,
                             .max_draft_len = drafts,
                             .chunk_tokens = 8192});
      Scheduler& scheduler = engine.scheduler();
      int64_t accepted = 0, refused = 0;
      for (int32_t prompt = 1; prompt <= 4100; prompt += prompt > 4000 ? 9 : 191) {
        for (int64_t output = 1; output <= 4100; output += output > 4000 ? 9 : 97) {
          const auto id =
              scheduler.submit({.prompt = prompt_of(prompt), .max_new_tokens = Tokens{output}});
          const int64_t lookahead = scheduler.capacity().lookahead().value;
          EXPECT_EQ(id.has_value(), prompt + output + lookahead <= 4096);
          if (!id) {
            ++refused;
            continue;
          }
          ++accepted;
          const StepPlan plan = scheduler.plan_step(drafts);
          ASSERT_EQ(plan.prefill.size(), 1u);
          EXPECT_TRUE(scheduler.abort(*id));
          scheduler.complete({.step = plan.step, .rows = {{.slot = plan.prefill[0].slot}}});
        }
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
        const int64_t lookahead = std::max(3 * drafts - 2, 0);
        const int64_t output = usable - prompt - lookahead;
        if (output < 1) continue;
        for (double accept_rate : {0.0, 0.7, 1.0}) {
          ScriptedEngine engine(
              {.page_size = 1, .usable_pages = usable, .max_draft_len = drafts, .chunk_tokens = 5});
          engine.executor().accept_rate = accept_rate;
          const RequestId big = *engine.submit(prompt_of(prompt), output);
          const bool room_for_small = usable >= 2 + lookahead;
          if (room_for_small) {
            ASSERT_TRUE(engine.submit({7}, 1));
          }
          ASSERT_FALSE(engine.submit(prompt_of(prompt), output + 1));
          ASSERT_TRUE(engine.drain(500));
          ASSERT_TRUE(engine.finished(big) && engine.complete_and_right(big));
        }
      }
    }
  }
}

// K2: at the context limit no write leaves the row, whatever the depth.
TEST(CapacityFaults, ContextLimit) {
  for (int32_t page : {1, 16, 64}) {
    for (int32_t drafts = 0; drafts <= 15; ++drafts) {
      ScriptedEngine engine({.page_size = page,
                             .usable_pages = 2000 / page,
                             .max_context_len = 128,
                             .max_draft_len = drafts});
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
