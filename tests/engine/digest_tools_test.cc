// The checking tools themselves: every kind of wrong row that they exist for is noticed.
#include <gtest/gtest.h>

#include <algorithm>

#include "engine/scripted_loop.h"
#include "speculative/head_drafter.h"

namespace foresail {
namespace {

constexpr int kPageSize = 16;

// Serves one request and spoils the cache once, after some steps. Whether anything was noticed.
template <typename Spoil>
bool noticed(int layer, Spoil spoil) {
  EngineOptions options = scripted_options();
  options.page_size = kPageSize;
  ScriptedLoop scripted(options, certain(hashed_token));
  EngineLoop& loop = scripted.loop();
  const Request request = scripted_request(scripted_prompt(40), 30);
  Output output;
  loop.submit(*loop.prepare(request), collect_into(output));
  for (int step = 0; step < 4; ++step) loop.step();
  const LatentCache& cache = scripted.model().store().layers()[layer];
  const std::span<const int32_t> table = loop.scheduler().cache().table().row(SlotId{0});
  const auto row = [&](int position) {
    return static_cast<float*>(cache.data) +
           (int64_t{table[position / kPageSize]} * kPageSize + position % kPageSize) *
               (cache.latent_dim + cache.rope_dim);
  };
  spoil(row, cache.latent_dim + cache.rope_dim);
  while (loop.step()) {
  }
  return output.stats.finish == FinishReason::kFailed ||
         output.ids != continue_text(hashed_token, request.input_ids, 30);
}

TEST(DigestTools, NoticeRowsThatAreNotTheirOwn) {
  const auto nothing = [](auto, int) {};
  const auto never_written = [](auto row, int width) { std::fill_n(row(21), width, 0.0f); };
  const auto of_another_position = [](auto row, int width) {
    std::copy_n(row(20), width, row(21));
  };
  const auto stale_page = [](auto row, int width) {
    std::copy_n(row(0), kPageSize * width, row(kPageSize));
  };
  const auto other_token = [](auto row, int) { row(21)[0] += 1.0f; };
  const auto other_context = [](auto row, int) { row(21)[2] += 1.0f; };
  for (const int layer : {0, 1, 2}) {
    EXPECT_FALSE(noticed(layer, nothing));
    EXPECT_TRUE(noticed(layer, never_written)) << layer;
    EXPECT_TRUE(noticed(layer, of_another_position)) << layer;
    EXPECT_TRUE(noticed(layer, stale_page)) << layer;
    EXPECT_TRUE(noticed(layer, other_token)) << layer;
  }
  // The first layer's rows hold their token only.
  EXPECT_TRUE(noticed(1, other_context));
  EXPECT_TRUE(noticed(2, other_context));
}

// Hands a drafter the rows of its caller, changed.
class ChangedRows : public Drafter {
 public:
  using Change = std::function<void(ExtendRows&)>;
  ChangedRows(std::unique_ptr<Drafter> inner, Change change)
      : inner_(std::move(inner)), change_(std::move(change)) {}
  std::string_view name() const override { return "changed"; }
  std::vector<int> target_layers() const override { return inner_->target_layers(); }
  void extend(std::span<const ExtendRows> rows, const MatrixView& states) override {
    std::vector<ExtendRows> changed(rows.begin(), rows.end());
    for (ExtendRows& item : changed) change_(item);
    inner_->extend(changed, states);
  }
  void draft(std::span<const DraftRequest> requests,
             std::span<std::vector<int32_t>> drafts) override {
    inner_->draft(requests, drafts);
  }

 private:
  std::unique_ptr<Drafter> inner_;
  Change change_;
};

TEST(DigestTools, NoticeDraftEntriesOfAnotherText) {
  const auto finish = [](ChangedRows::Change change) {
    EngineOptions options = scripted_options();
    options.chunked_prefill_size = 16;
    ScriptedLoop scripted(options, certain(hashed_token));
    scripted.use_drafter(std::make_unique<ChangedRows>(
        scripted.digest_drafter(often_right(hashed_token, 60)), std::move(change)));
    return serve(scripted.loop(), {scripted_request(scripted_prompt(40), 30)})[0].stats.finish;
  };
  EXPECT_EQ(finish([](ExtendRows&) {}), FinishReason::kLength);
  // Token p instead of p + 1.
  EXPECT_EQ(finish([](ExtendRows& item) {
              item.next_tokens =
                  item.request.tokens.subspan(item.first_position, item.next_tokens.size());
            }),
            FinishReason::kFailed);
  // A chunk's last row paired with a guess.
  std::vector<int32_t> guessed;
  EXPECT_EQ(finish([&](ExtendRows& item) {
              guessed.assign(item.next_tokens.begin(), item.next_tokens.end());
              guessed.back() = (guessed.back() + 1) % 300;
              item.next_tokens = guessed;
            }),
            FinishReason::kFailed);
  // Entries one position off.
  EXPECT_EQ(finish([](ExtendRows& item) { ++item.first_position; }), FinishReason::kFailed);
  // A row of accepted drafts left out.
  EXPECT_EQ(finish([](ExtendRows& item) {
              if (item.next_tokens.size() > 1 && item.first_position >= 40)
                item.next_tokens = item.next_tokens.first(item.next_tokens.size() - 1);
            }),
            FinishReason::kFailed);
}

}  // namespace
}  // namespace foresail
