#include "cache/prefix_tree.h"

#include <gtest/gtest.h>

#include <numeric>

#include "unit/cache/list_model.h"

namespace foresail {
namespace {

std::vector<int32_t> iota(int32_t count, int32_t first = 0) {
  std::vector<int32_t> tokens(count);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

struct Fixture {
  explicit Fixture(int32_t page_size, PrefixKeys keys = PrefixKeys::kTokens, int64_t pages = 300)
      : pool(Pages{pages + 1}, PageSize(page_size)), tree(pool, keys) {}

  // Caches the prefix of `tokens` that a request with all of them computed, as one that finished.
  void store(const std::vector<int32_t>& tokens, const std::string& salt = "") {
    store(tokens, static_cast<int64_t>(tokens.size()), salt);
  }
  void store(const std::vector<int32_t>& tokens, int64_t computed, const std::string& salt = "") {
    PrefixHit hit = tree.match(salt, tokens);
    std::vector<PageRef> own =
        pool.take(pages_holding(Tokens{computed} - hit.reuse(), pool.page_size()));
    tree.insert(hit.lock, tokens, Tokens{computed}, pool.completed(), own);
  }

  PagePool pool;
  PrefixTree tree;
};

// K7: what is reusable depends on the successor only when a drafter keeps KV.
TEST(PrefixTree, PairKeysLookOneTokenAhead) {
  Fixture plain(1), pairs(1, PrefixKeys::kPairs);
  plain.store({1, 2, 3, 4});
  pairs.store({1, 2, 3, 4});
  const std::vector<int32_t> query{1, 2, 3, 9};
  EXPECT_EQ(plain.tree.match("", query).reuse(), Tokens{3});
  const PrefixHit hit = pairs.tree.match("", query);
  EXPECT_EQ(hit.target_hit, Tokens{3});
  EXPECT_EQ(hit.draft_hit, Tokens{2});
  EXPECT_EQ(hit.reuse(), Tokens{2});
  EXPECT_EQ(hit.pages.size(), 2u);
}

// K7: a key of 64 tokens is 63 pairs, no page and no node.
TEST(PrefixTree, PairsPerPage) {
  const std::vector<std::pair<int32_t, int64_t>> expected{{64, 0}, {65, 1}, {128, 1}, {129, 2}};
  for (const auto& [tokens, pages] : expected) {
    Fixture f(64, PrefixKeys::kPairs);
    f.store(iota(tokens));
    EXPECT_EQ(f.tree.size(), Pages{pages}) << tokens;
    f.tree.check();
  }
  Fixture f(64);
  f.store(iota(64));
  EXPECT_EQ(f.tree.size(), Pages{1});
}

// K7: a query shorter than a page matches nothing and changes nothing.
TEST(PrefixTree, ShortQuery) {
  for (PrefixKeys keys : {PrefixKeys::kTokens, PrefixKeys::kPairs}) {
    Fixture f(64, keys);
    f.store(iota(200));
    const Pages before = f.tree.size();
    EXPECT_EQ(f.tree.match("", iota(63)).reuse(), Tokens{0});
    EXPECT_EQ(f.tree.match("", {}).reuse(), Tokens{0});
    EXPECT_EQ(f.tree.size(), before);
    f.tree.check();
  }
}

// K7: the whole prompt is cached, and its last token is computed all the same.
TEST(PrefixTree, NeverTheLastToken) {
  const auto hit = [](int32_t page, PrefixKeys keys, int32_t prompt) {
    Fixture f(page, keys);
    std::vector<int32_t> tokens = iota(prompt);
    tokens.push_back(99);  // the first token of its completion
    f.store(tokens, prompt);
    return f.tree.match("", iota(prompt)).reuse().value;
  };
  EXPECT_EQ(hit(64, PrefixKeys::kTokens, 128), 64);
  EXPECT_EQ(hit(1, PrefixKeys::kTokens, 128), 127);
  EXPECT_EQ(hit(64, PrefixKeys::kPairs, 128), 64);
  EXPECT_EQ(hit(1, PrefixKeys::kPairs, 128), 127);
  EXPECT_EQ(hit(1, PrefixKeys::kTokens, 1), 0);
}

// K7, K16: tenants do not see each other's prefixes.
TEST(PrefixTree, NamespacesAreApart) {
  Fixture f(1);
  f.store(iota(10), "a");
  EXPECT_EQ(f.tree.match("b", iota(10)).reuse(), Tokens{0});
  EXPECT_EQ(f.tree.match("", iota(10)).reuse(), Tokens{0});
  EXPECT_EQ(f.tree.match("a", iota(10)).reuse(), Tokens{9});
  f.tree.check();
}

// K7: work of a step that has not completed cannot be published.
TEST(PrefixTreeDeathTest, InsertTakesCompletedWorkOnly) {
  Fixture f(1);
  EXPECT_DEATH(
      {
        PrefixHit hit = f.tree.match("", iota(4));
        std::vector<PageRef> own = f.pool.take(Pages{4});
        f.pool.note_planned(1);
        f.tree.insert(hit.lock, iota(4), Tokens{4}, 1, own);
      },
      "not complete");
}

// K8: the partially filled last page stays with its owner.
TEST(PrefixTree, PartialPageIsNeverShared) {
  Fixture f(16);
  PrefixHit hit = f.tree.match("", iota(40));
  std::vector<PageRef> own = f.pool.take(Pages{3});
  const PageId last = own.back().id();
  EXPECT_EQ(f.tree.insert(hit.lock, iota(40), Tokens{40}, 0, own).size(), 2u);
  ASSERT_EQ(own.size(), 1u);
  EXPECT_EQ(own[0].id(), last);
}

TEST(PrefixTree, DuplicateWorkAdoptsTheCachedPage) {
  Fixture f(16);
  PrefixHit a = f.tree.match("", iota(33)), b = f.tree.match("", iota(33));
  std::vector<PageRef> own_a = f.pool.take(Pages{3}), own_b = f.pool.take(Pages{3});
  const std::vector<PageId> first = f.tree.insert(a.lock, iota(33), Tokens{32}, 0, own_a);
  EXPECT_EQ(f.tree.insert(b.lock, iota(33), Tokens{32}, 0, own_b), first);
  EXPECT_EQ(f.tree.size(), Pages{2});
  EXPECT_EQ(f.pool.held(), Pages{4});  // two cached, one tail each
  f.tree.check();
}

TEST(PrefixTree, EvictsLeastRecentlyUsedUnlockedLeaves) {
  Fixture f(1);
  f.store({1, 2, 3});
  f.store({1, 5, 6});
  f.tree.match("", std::vector<int32_t>{1, 2, 3, 0});  // 1-2-3 is now the fresher path
  EXPECT_EQ(f.tree.evict(Pages{2}), Pages{2});
  EXPECT_EQ(f.tree.match("", std::vector<int32_t>{1, 5, 6, 0}).reuse(), Tokens{1});
  PrefixHit locked = f.tree.match("", std::vector<int32_t>{1, 2, 3, 0});
  EXPECT_EQ(locked.reuse(), Tokens{3});
  EXPECT_EQ(f.tree.evictable(), Pages{0});
  EXPECT_EQ(f.tree.evict(Pages{9}), Pages{0});
  locked.lock.reset();
  EXPECT_EQ(f.tree.evict(Pages{9}), Pages{3});
  EXPECT_EQ(f.pool.free(), f.pool.usable());
  f.tree.check();
}

TEST(PrefixTree, EvictedPageWaitsOnlyForTheStepThatMayReadIt) {
  Fixture f(1);
  f.store({1, 2});
  f.pool.note_planned(1);
  EXPECT_EQ(f.tree.evict(Pages{1}), Pages{1});  // idle since before step 1
  EXPECT_EQ(f.pool.in_flight(), Pages{0});
  f.tree.match("", std::vector<int32_t>{1, 2});  // let go while step 1 is in flight
  EXPECT_EQ(f.tree.evict(Pages{1}), Pages{1});
  EXPECT_EQ(f.pool.in_flight(), Pages{1});
  f.pool.note_completed(1);
  EXPECT_EQ(f.pool.free(), f.pool.usable());
}

TEST(PrefixTree, OffMatchesAndTakesNothing) {
  Fixture f(1, PrefixKeys::kOff);
  f.store(iota(5));
  EXPECT_EQ(f.tree.match("", iota(5)).reuse(), Tokens{0});
  EXPECT_EQ(f.pool.free(), f.pool.usable());
}

// K7
TEST(PrefixTree, RandomOperationsEqualAListModel) {
  for (int32_t page : {1, 16, 64}) {
    for (PrefixKeys keys : {PrefixKeys::kTokens, PrefixKeys::kPairs}) {
      Fixture f(page, keys, 60);
      ListModel model(page, keys == PrefixKeys::kPairs);
      struct Holder {
        PrefixLock lock;
        ListModel::Path path;
      };
      std::vector<Holder> holders;
      uint64_t state = 88172645463325252ull;
      const auto random = [&](uint64_t bound) {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        return state % bound;
      };
      const auto random_tokens = [&] {
        std::vector<int32_t> tokens;
        for (uint64_t blocks = random(6); blocks > 0; --blocks) {
          const int32_t kind = static_cast<int32_t>(random(2));
          for (int32_t i = 0; i < page; ++i) tokens.push_back(kind * 100 + i);
        }
        for (uint64_t tail = random(page + 1); tail > 0; --tail) tokens.push_back(100);
        return tokens;
      };
      for (int step = 0; step < 10'000; ++step) {
        if (random(3) == 0 && !holders.empty()) {
          const size_t index = random(holders.size());
          model.unlock(holders[index].path);
          holders[index].lock.reset();
          holders.erase(holders.begin() + static_cast<std::ptrdiff_t>(index));
        } else if (random(4) == 0) {
          const int64_t count = static_cast<int64_t>(random(5));
          ASSERT_EQ(f.tree.evict(Pages{count}).value, model.evict(count));
        } else {
          const std::vector<int32_t> tokens = random_tokens();
          PrefixHit hit = f.tree.match("", tokens);
          const ListModel::Path path = model.match(tokens);
          ASSERT_EQ(hit.reuse().value, static_cast<int64_t>(path.size()) * page);
          model.lock(path);
          const Pages need = pages_holding(
              Tokens{static_cast<int64_t>(tokens.size())} - hit.reuse(), PageSize(page));
          std::vector<PageRef> own = f.pool.take(need);
          if (static_cast<int64_t>(own.size()) == need.value) {
            f.tree.insert(hit.lock, tokens, Tokens{static_cast<int64_t>(tokens.size())}, 0, own);
            const ListModel::Path whole = model.insert(tokens);
            model.lock(whole);
            model.unlock(path);
            holders.push_back({std::move(hit.lock), whole});
          } else {
            model.unlock(path);
          }
        }
        ASSERT_EQ(static_cast<size_t>(f.tree.size().value), model.size());
        ASSERT_EQ(f.pool.held(), f.tree.size());
        if (step % 16 == 0) f.tree.check();
      }
    }
  }
}

}  // namespace
}  // namespace foresail
