// What a draft step sees: with L committed positions, step i sees exactly L + i + 1 keys, its own
// among them and those of the steps before it, on both sides of every page border.
#include <gtest/gtest.h>

#include <algorithm>

#include "engine/scripted_loop.h"

namespace foresail {
namespace {

using Pass = DigestHead::Pass;

// The passes of one request that ran alone.
void expect_exact_keys(const std::vector<Pass>& passes, int steps) {
  int64_t length = 0;  // L
  int step = 0, deepest = 0;
  for (const Pass& pass : passes) {
    if (!pass.recycled) {
      length = pass.kv_end;
      step = 0;
      EXPECT_EQ(pass.last_position + 1, length);
      EXPECT_EQ(pass.guessed_keys, 0);
      continue;
    }
    EXPECT_EQ(pass.row_count, 1);
    EXPECT_EQ(pass.last_position, length + step);
    EXPECT_EQ(pass.kv_end, length + step + 1);
    EXPECT_EQ(pass.guessed_keys, step + 1);
    deepest = std::max(deepest, ++step);
  }
  // The first proposal comes from the pass over the accepted rows: one step less than drafts.
  EXPECT_EQ(deepest, steps - 1);
}

// T1, T2: L one before, on and one after a page border, chains that cross one border or many.
TEST(DraftReach, StepSeesItsOwnKeyAndNoMore) {
  for (const int page_size : {1, 16, 64}) {
    for (int steps = 1; steps <= 7; ++steps) {
      EngineOptions options = scripted_options();
      options.page_size = page_size;
      options.speculative.steps = steps;
      options.attention_backend = steps % 2 == 0 ? "paged" : "indexed";
      for (const int percent : {0, 70, 100}) {
        ScriptedLoop scripted(options, certain(hashed_token));
        for (const int offset : {-1, 0, 1}) {
          scripted.use_digest_drafter(often_right(hashed_token, percent));
          const int length = std::max(2, 64 + offset);
          const Request request = scripted_request(scripted_prompt(length, offset + 5), 40);
          const Output output = serve(scripted.loop(), {request})[0];
          EXPECT_EQ(output.ids, continue_text(hashed_token, request.input_ids, 40));
          SCOPED_TRACE(fmt::format("page {} steps {} length {}", page_size, steps, length));
          expect_exact_keys(scripted.draft_passes(), steps);
        }
      }
    }
  }
}

// T7: prompt and output fill the context to its last position, which is the last one ever written.
TEST(DraftReach, NothingBeyondTheContext) {
  for (const int steps : {1, 2, 3, 4, 7, 15}) {
    EngineOptions options = scripted_options();
    options.context_length = 128;
    options.speculative.steps = steps;
    options.max_total_tokens = 512;
    for (const int percent : {0, 80, 100}) {
      ScriptedLoop scripted(options, certain(hashed_token));
      if (percent == 80)
        scripted.use_model_drafter(certain(often_right(hashed_token, percent)));
      else
        scripted.use_digest_drafter(often_right(hashed_token, percent));
      for (const bool late : {false, true}) {
        options.late_results = late;
        std::vector<Request> requests;
        for (const int prompt_len : {1, 90, 111, 112, 113, 126, 127})
          requests.push_back(
              scripted_request(scripted_prompt(prompt_len, prompt_len), 128 - prompt_len));
        EngineLoop& loop = scripted.restart(options);
        const std::vector<Output> outputs = serve(loop, requests);
        for (size_t i = 0; i < requests.size(); ++i)
          EXPECT_EQ(outputs[i].ids,
                    continue_text(hashed_token, requests[i].input_ids, requests[i].max_tokens))
              << "steps " << steps << " late " << late << " request " << i;
        Request beyond = requests[1];
        ++beyond.max_tokens;
        EXPECT_FALSE(loop.prepare(beyond));
        expect_idle(loop);
      }
    }
  }
}

// K9: a pool that one request fills to its last page serves it with speculation too.
TEST(DraftReach, ARequestMayFillThePool) {
  for (const int page_size : {1, 16, 64}) {
    for (const int steps : {0, 3, 7}) {
      EngineOptions options = scripted_options();
      options.page_size = page_size;
      options.max_total_tokens = 192;
      options.speculative.steps = steps;
      ScriptedLoop scripted(options, certain(hashed_token));
      if (steps == 3) scripted.use_digest_drafter(often_right(hashed_token, 70));
      if (steps == 7) scripted.use_model_drafter(certain(often_right(hashed_token, 70)));
      for (const bool late : {false, true}) {
        options.late_results = late;
        const Request request = scripted_request(scripted_prompt(40), 152);
        const Request behind = scripted_request(scripted_prompt(3, 9), 5);
        const std::vector<Output> outputs = serve(scripted.restart(options), {request, behind});
        EXPECT_EQ(outputs[0].ids, continue_text(hashed_token, request.input_ids, 152));
        EXPECT_EQ(outputs[1].ids, continue_text(hashed_token, behind.input_ids, 5));
      }
    }
  }
}

}  // namespace
}  // namespace foresail
