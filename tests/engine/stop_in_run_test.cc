// Where a request ends is decided token by token, also inside a run of accepted drafts.
#include <gtest/gtest.h>

#include "engine/scripted_loop.h"

namespace foresail {
namespace {

constexpr int32_t kStop = 1;  // the scripted model's end token
constexpr int32_t kEndId = 2;
constexpr int kTextStart = 5;

struct Ending {
  std::string name;
  std::vector<int32_t> run;  // what the model says; it goes on with 99
  int64_t max_tokens;
  int64_t kept;
  FinishReason finish;
  bool ignore_eos = false;
};

const Ending kEndings[] = {
    {"stop_before_cap", {10, 11, kStop, 20, 21, 22}, 5, 3, FinishReason::kEndToken},
    {"cap_before_stop", {10, 11, kStop, 20, 21, 22}, 2, 2, FinishReason::kLength},
    {"stop_at_cap", {10, 11, kStop, 20, 21, 22}, 3, 3, FinishReason::kEndToken},
    {"end_inside", {7, 8, kStop, 9}, 10, 3, FinishReason::kEndToken},
    {"end_ignored", {7, 8, kStop, 9}, 4, 4, FinishReason::kLength, true},
    {"end_first", {kStop, 8, 9, 9}, 4, 1, FinishReason::kEndToken},
    {"one_token", {7, 8, 9}, 1, 1, FinishReason::kLength},
    {"two_ends", {7, kStop, 8, kStop}, 9, 2, FinishReason::kEndToken},
};

// K5: whatever the run is cut into.
TEST(StopInRun, TheFirstReasonInTokenOrderWins) {
  for (const Ending& ending : kEndings) {
    const NextToken next = [&](std::span<const int32_t> context) {
      const size_t at = context.size() - kTextStart;
      return at < ending.run.size() ? ending.run[at] : 99;
    };
    for (const bool late : {false, true}) {
      for (int steps = 0; steps <= 7; ++steps) {
        SCOPED_TRACE(fmt::format("{} steps {} late {}", ending.name, steps, late));
        EngineOptions options = scripted_options();
        options.speculative.steps = steps;
        options.late_results = late;
        ScriptedLoop scripted(options, certain(next));
        if (steps > 0) scripted.use_digest_drafter(next);
        Request request = scripted_request(scripted_prompt(kTextStart), ending.max_tokens);
        request.ignore_eos = ending.ignore_eos;
        const Output output = serve(scripted.loop(), {request})[0];
        const std::vector<int32_t> kept(ending.run.begin(), ending.run.begin() + ending.kept);
        EXPECT_EQ(output.ids, kept);
        EXPECT_EQ(output.stats.output_tokens, ending.kept);
        EXPECT_EQ(output.stats.finish, ending.finish);
        EXPECT_EQ(output.endings, 1);
        EXPECT_EQ(scripted.loop().stats().output_tokens, ending.kept);
        expect_idle(scripted.loop());
      }
    }
  }
}

// K5: the minimum counts tokens, not steps.
TEST(StopInRun, NoEndTokenBeforeTheMinimum) {
  const Script wants_to_end = [](std::span<const int32_t>, std::span<float> logits) {
    logits[kStop] = 100.0f;
    logits[7] = 50.0f;
  };
  for (const int32_t guess : {7, kStop, 8}) {
    for (int steps = 0; steps <= 7; ++steps) {
      EngineOptions options = scripted_options();
      options.speculative.steps = steps;
      ScriptedLoop scripted(options, wants_to_end);
      if (steps > 0) scripted.use_digest_drafter([=](auto) { return guess; });
      for (int64_t least = 0; least <= 6; ++least) {
        Request request = scripted_request(scripted_prompt(kTextStart), 9);
        request.ignore_eos = false;
        request.min_tokens = least;
        const Output output = serve(scripted.loop(), {request})[0];
        std::vector<int32_t> expected(least, 7);
        expected.push_back(kStop);
        EXPECT_EQ(output.ids, expected) << "guess " << guess << " steps " << steps;
        EXPECT_EQ(output.stats.finish, FinishReason::kEndToken);
      }
    }
  }
}

class CommitRun : public testing::Test {
 protected:
  // Commits the run as one step would; true for every token that came from a draft.
  std::vector<Event> commit(const Request& request, std::span<const int32_t> run) {
    Commit commit(request, end_ids_, tokenizer_.get(), {});
    std::vector<Event> events;
    for (const int32_t token : run) {
      events.push_back(commit(token, true, stats_));
      if (events.back().finish) break;
    }
    return events;
  }
  static std::string text_of(const std::vector<Event>& events) {
    std::string text;
    for (const Event& event : events) text += event.text;
    return text;
  }

  std::unique_ptr<Tokenizer> tokenizer_ = Tokenizer::load(model_path("tales"));
  std::vector<int64_t> end_ids_ = {kEndId};
  GenerationStats stats_;
};

// K5: a stop string complete at one token, an end token at the next.
TEST_F(CommitRun, AStopStringBeforeTheEndTokenWins) {
  const std::string whole = "the old king said to his daughter";
  std::vector<int32_t> run = tokenizer_->encode(whole, {});
  run.push_back(kEndId);
  run.push_back(run[0]);
  Request request;
  request.max_tokens = 100;
  for (size_t cut = 1; cut + 2 < run.size(); ++cut) {
    const std::string before = tokenizer_->decode(std::span(run).first(cut), true);
    const std::string after = tokenizer_->decode(std::span(run).first(cut + 1), true);
    stats_ = {};
    request.stops = {after.substr(before.size())};
    const size_t first = whole.find(request.stops[0]);
    const std::vector<Event> events = commit(request, run);
    EXPECT_EQ(stats_.finish, FinishReason::kStopString) << request.stops[0];
    EXPECT_EQ(text_of(events), whole.substr(0, first));
    EXPECT_LE(events.size(), cut + 1);
  }
  request.stops = {"nowhere"};
  stats_ = {};
  const std::vector<Event> events = commit(request, run);
  EXPECT_EQ(stats_.finish, FinishReason::kEndToken);
  EXPECT_EQ(text_of(events), whole);
  EXPECT_EQ(events.size(), run.size() - 1);
}

// Stops are not looked for before the minimum: neither in the events nor, later, in what came then.
TEST_F(CommitRun, NoStopBeforeTheMinimum) {
  const std::string whole = "the old king said to the old king";
  const std::vector<int32_t> run = tokenizer_->encode(whole, {});
  const auto length_before = [&](size_t count) {
    return tokenizer_->decode(std::span(run).first(count), true).size();
  };
  Request request;
  request.max_tokens = 100;
  for (const std::string stop : {"the", " old", "ld ki", "king", "g s"}) {
    for (size_t least = 0; least < run.size(); ++least) {
      SCOPED_TRACE(fmt::format("{} after {}", stop, least));
      stats_ = {};
      request.min_tokens = static_cast<int64_t>(least);
      request.stops = {stop, "said to nobody"};
      const std::vector<Event> events = commit(request, run);
      // The first that ends in a later token, wherever it began.
      size_t at = whole.find(stop);
      while (at != std::string::npos && at + stop.size() <= length_before(least))
        at = whole.find(stop, at + 1);
      if (at != std::string::npos) {
        EXPECT_EQ(stats_.matched_stop, stop);
        EXPECT_GT(events.size(), least);
        EXPECT_EQ(text_of(events), whole.substr(0, at));
      } else {
        EXPECT_EQ(stats_.matched_stop, "");
        EXPECT_EQ(events.size(), run.size());
        // The end may yet become a stop.
        EXPECT_TRUE(whole.starts_with(text_of(events)));
      }
    }
  }
}

TEST_F(CommitRun, NoStopTokenBeforeTheMinimum) {
  const std::vector<int32_t> run = {300, 301, 300, kEndId, 301, 300};
  Request request;
  request.max_tokens = 10;
  request.stop_token_ids = {300};
  for (const auto& [least, count] :
       std::vector<std::pair<int, size_t>>{{0, 1}, {1, 3}, {2, 3}, {3, 4}, {4, 6}, {5, 6}}) {
    stats_ = {};
    request.min_tokens = least;
    EXPECT_EQ(commit(request, run).size(), count) << least;
    EXPECT_EQ(stats_.finish, FinishReason::kEndToken);
  }
}

// K5: what follows the end token is in no figure: not in text, ids or usage.
TEST_F(CommitRun, NothingAfterTheEnd) {
  const std::vector<int32_t> run = {300, 301, kEndId, 302};
  Request request;
  request.max_tokens = 10;
  EXPECT_EQ(commit(request, run).size(), 3u);
  EXPECT_EQ(stats_.output_tokens, 3);
  request.ignore_eos = true;
  stats_ = {};
  EXPECT_EQ(commit(request, run).size(), 4u);
  EXPECT_EQ(stats_.output_tokens, 4);
}

}  // namespace
}  // namespace foresail
