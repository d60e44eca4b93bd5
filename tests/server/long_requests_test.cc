#include "server/http/long_requests.h"

#include <gtest/gtest.h>

namespace foresail {
namespace {

TEST(LongRequests, LeaveAThread) {
  LongRequests requests(3);
  const LongRequests::Turn first = requests.take_turn(false);
  LongRequests::Turn second = requests.take_turn(false);
  EXPECT_NE(first, nullptr);
  EXPECT_NE(second, nullptr);
  EXPECT_EQ(requests.take_turn(false), nullptr);
  second.reset();
  EXPECT_NE(requests.take_turn(false), nullptr);
  LongRequests of_one_thread(1);
  EXPECT_NE(of_one_thread.take_turn(false), nullptr);
}

TEST(LongRequests, PassNobodyWhoWaits) {
  LongRequests requests(2);
  LongRequests::Turn turn = requests.take_turn(false);
  LongRequests::Place place = requests.take_place();
  turn.reset();
  EXPECT_EQ(requests.take_turn(false), nullptr);
  turn = requests.take_turn(true);
  EXPECT_NE(turn, nullptr);
  turn.reset();
  place.reset();  // it was served, or its client left
  EXPECT_NE(requests.take_turn(false), nullptr);
}

TEST(LongRequests, GoQuietOnceAfterTheyCame) {
  LongRequests requests(3);
  EXPECT_FALSE(requests.have_gone_quiet());
  EXPECT_FALSE(requests.have_gone_quiet());
  LongRequests::Turn turn = requests.take_turn(false);
  EXPECT_FALSE(requests.have_gone_quiet());
  turn.reset();
  EXPECT_FALSE(requests.have_gone_quiet());  // it ended between the looks
  turn = requests.take_turn(false);
  EXPECT_FALSE(requests.have_gone_quiet());  // one runs
  turn.reset();
  EXPECT_FALSE(requests.have_gone_quiet());
  LongRequests::Place place = requests.take_place();
  EXPECT_FALSE(requests.have_gone_quiet());  // one waits
  place.reset();
  EXPECT_TRUE(requests.have_gone_quiet());
  EXPECT_FALSE(requests.have_gone_quiet());
}

}  // namespace
}  // namespace foresail
