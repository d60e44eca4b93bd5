// How a pass is laid out for one upload, and which attention calls follow: no device needed.
#include "kernels/cuda/pass_words.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

namespace foresail::cuda {
namespace {

using testing::ElementsAre;

std::vector<int32_t> part(const PassWords& pass, int64_t begin, int64_t count) {
  return {pass.words.begin() + begin, pass.words.begin() + begin + count};
}

TEST(PassWords, DecodeOfThreeRequestsIsOneCall) {
  const int32_t pages[3][3] = {{7, 8, 9}, {1, 2, 3}, {5, 6, 4}};
  const std::vector<int32_t> ids = {10, 11, 12, 13, 14, 15}, positions = {4, 5, 31, 32, 0, 1},
                             slots = {60, 61, 62, -1, 63, 64};
  const SequenceRows sequences[] = {{0, 2, 6, pages[0]}, {2, 2, 33, pages[1]}, {4, 2, 2, pages[2]}};
  PassWords pass;
  lay_out({.token_ids = ids,
           .positions = positions,
           .slots = slots,
           .sequences = sequences,
           .page_size = 16},
          pass);
  EXPECT_EQ(part(pass, pass.token_ids, 6), ids);
  EXPECT_EQ(part(pass, pass.positions, 6), positions);
  EXPECT_EQ(part(pass, pass.slots, 6), slots);
  EXPECT_THAT(part(pass, pass.visible, 6), ElementsAre(5, 6, 32, 33, 1, 2));
  EXPECT_THAT(part(pass, pass.table_row, 6), ElementsAre(0, 0, 1, 1, 2, 2));
  EXPECT_THAT(pass.runs, ElementsAre(AttentionRun{0, 2, 3, 0}));
  EXPECT_THAT(part(pass, pass.piece_end, 3), ElementsAre(6, 33, 2));
  EXPECT_THAT(part(pass, pass.piece_table, 3), ElementsAre(0, 1, 2));
  EXPECT_EQ(pass.most_visible, 512);
  EXPECT_EQ(pass.table_width, 32);
  EXPECT_THAT(part(pass, pass.tables, 3), ElementsAre(7, 0, 0));
  EXPECT_THAT(part(pass, pass.tables + 32, 4), ElementsAre(1, 2, 3, 0));
  EXPECT_THAT(part(pass, pass.tables + 64, 2), ElementsAre(5, 0));
}

TEST(PassWords, LongPromptsAreCutAndPaddingIsLeftOut) {
  const int32_t pages[] = {1, 2, 3};
  std::vector<int32_t> positions(135);
  // A prompt of 130 rows behind 20 cached keys, two rows of padding, three single rows.
  const SequenceRows sequences[] = {{0, 130, 150, pages},
                                    {130, 2, 0, nullptr},
                                    {132, 1, 9, pages},
                                    {133, 1, 1, pages},
                                    {134, 1, 64, pages}};
  PassWords pass;
  lay_out({.positions = positions, .sequences = sequences, .page_size = 64}, pass);
  EXPECT_THAT(pass.runs, ElementsAre(AttentionRun{0, 64, 2, 0}, AttentionRun{128, 2, 1, 2},
                                     AttentionRun{132, 1, 3, 3}));
  EXPECT_THAT(part(pass, pass.piece_end, 6), ElementsAre(84, 148, 150, 9, 1, 64));
  EXPECT_THAT(part(pass, pass.visible + 128, 7), ElementsAre(149, 150, 0, 0, 9, 1, 64));
  EXPECT_EQ(pass.words[pass.visible], 21);
  // A second pass in the same object leaves nothing of the first.
  lay_out({.positions = std::vector<int32_t>(1), .sequences = {sequences + 3, 1}, .page_size = 64},
          pass);
  EXPECT_EQ(pass.words.size(), 1 + 1 + 1 + 1 + 1 + 8u);  // position, visible, row, piece, pages
}

TEST(PassWords, DrawsAndAcceptanceTravelToo) {
  const std::vector<int32_t> ids = {5, 6, 7}, positions = {8, 9, 20}, pretended = {-1, 0};
  const int32_t pages[] = {1, 2};
  const SequenceRows sequences[] = {{0, 2, 10, pages}, {2, 1, 21, pages}};
  const TokenDraw draws[] = {{1ull << 40, 0.5, 9}, {2, 0.0, 10}, {3, 2.0, 21}};
  PassWords pass;
  lay_out({.token_ids = ids,
           .positions = positions,
           .sequences = sequences,
           .draws = draws,
           .pretended = pretended,
           .page_size = 16},
          pass);
  EXPECT_EQ(pass.draws % 2, 0);  // aligned for eight bytes
  const auto* laid_out = reinterpret_cast<const TokenDraw*>(pass.words.data() + pass.draws);
  for (int row = 0; row < 3; ++row) {
    EXPECT_EQ(laid_out[row].seed, draws[row].seed);
    EXPECT_EQ(laid_out[row].inverse_temperature, draws[row].inverse_temperature);
    EXPECT_EQ(laid_out[row].position, draws[row].position);
  }
  EXPECT_EQ(part(pass, pass.token_ids, 3), ids);
  EXPECT_EQ(part(pass, pass.pretended, 2), pretended);
  EXPECT_THAT(part(pass, pass.row_begin, 2), ElementsAre(0, 2));
  EXPECT_THAT(part(pass, pass.row_count, 2), ElementsAre(2, 1));
  EXPECT_EQ(pass.piece_count, 2);
}

TEST(PassWords, TermsTravelAndCostNothingWhereThereAreNone) {
  const std::vector<int32_t> ids = {5, 6}, positions = {8, 9};
  const int32_t pages[] = {1, 2};
  const SequenceRows sequences[] = {{0, 2, 10, pages}};
  const std::vector<TokenDraw> draws(2);
  const DrawTerms terms[] = {{3, 0, 1, 5, 40, {1.5f, 0.25f, -0.5f}}, {-1, 1, -1, -1, 0, {}}};
  PassInputs inputs{.token_ids = ids,
                    .positions = positions,
                    .sequences = sequences,
                    .draws = draws,
                    .page_size = 16};
  PassWords pass;
  lay_out(inputs, pass);
  const size_t without = pass.words.size();
  inputs.terms = terms;
  lay_out(inputs, pass);
  EXPECT_EQ(pass.words.size(), without + 2 * sizeof(DrawTerms) / sizeof(int32_t));
  const auto* laid_out = reinterpret_cast<const DrawTerms*>(pass.words.data() + pass.terms);
  EXPECT_EQ(laid_out[0].table_row, 3);
  EXPECT_EQ(laid_out[0].pretended, 1);
  EXPECT_EQ(laid_out[0].top_count, 5);
  EXPECT_EQ(laid_out[0].blocked_until, 40);
  EXPECT_EQ(laid_out[0].penalties.frequency, -0.5f);
  EXPECT_EQ(laid_out[1].table_row, -1);
  EXPECT_EQ(laid_out[1].row, 1);
}

TEST(PassWords, WhatIsCarriedTravelsToo) {
  const std::vector<int32_t> ids = {0, 0, 6}, positions = {8, 9, 20}, tokens = {11, 14, -1},
                             lags = {17, -1}, wanted = {0, 1, 2};
  const int32_t pages[] = {1, 2}, from[] = {0};
  int32_t row_lag[2];
  const SequenceRows sequences[] = {{0, 2, 10, pages}, {2, 1, 21, pages}};
  const std::vector<TokenDraw> draws(3);
  PassInputs inputs{.token_ids = ids,
                    .positions = positions,
                    .sequences = sequences,
                    .wanted_rows = wanted,
                    .draws = draws,
                    .page_size = 16};
  PassWords pass;
  lay_out(inputs, pass);
  const size_t without = pass.words.size();
  inputs.carry = {from, tokens, lags, row_lag};
  lay_out(inputs, pass);
  EXPECT_EQ(part(pass, pass.carried_tokens, 3), tokens);
  EXPECT_EQ(part(pass, pass.carried_lags, 2), lags);
  EXPECT_EQ(pass.words.size(), without + 5);
}

}  // namespace
}  // namespace foresail::cuda
