// The grammars compiled latest, by what they were compiled from: who sends the same schema again
// gets the same object, and with it the masks that were found for it. Any thread.
#pragma once

#include <list>
#include <mutex>
#include <string>
#include <utility>

#include "grammar/grammar.h"

namespace foresail {

class GrammarCache {
 public:
  // `compile` returns Result<GrammarPtr>; it runs without a lock, now and then once too often.
  template <typename Compile>
  Result<GrammarPtr> get(const std::string& key, Compile compile) {
    if (GrammarPtr known = find(key)) return known;
    Result<GrammarPtr> made = compile();
    if (made) add(key, *made);
    return made;
  }

 private:
  static constexpr size_t kMost = 32;

  GrammarPtr find(const std::string& key) {
    const std::lock_guard lock(mutex_);
    for (auto it = recent_.begin(); it != recent_.end(); ++it) {
      if (it->first != key) continue;
      recent_.splice(recent_.begin(), recent_, it);
      return it->second;
    }
    return nullptr;
  }
  void add(const std::string& key, GrammarPtr grammar) {
    const std::lock_guard lock(mutex_);
    recent_.emplace_front(key, std::move(grammar));
    if (recent_.size() > kMost) recent_.pop_back();
  }

  std::mutex mutex_;
  std::list<std::pair<std::string, GrammarPtr>> recent_;
};

}  // namespace foresail
