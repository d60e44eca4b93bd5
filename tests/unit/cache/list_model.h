// The rules of the prefix tree over a plain map of cached prefixes: slow and obvious.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <vector>

namespace foresail {

class ListModel {
 public:
  ListModel(int64_t page, bool pairs) : page_(page), extra_(pairs ? 1 : 0) {}
  using Path = std::vector<std::vector<int32_t>>;

  Path match(const std::vector<int32_t>& tokens) const {
    Path path;
    for (int64_t end = page_; end <= static_cast<int64_t>(tokens.size()) - 1; end += page_) {
      std::vector<int32_t> key(tokens.begin(), tokens.begin() + end + extra_);
      if (!entries_.contains(key)) break;
      path.push_back(std::move(key));
    }
    return path;
  }
  Path insert(const std::vector<int32_t>& tokens) {
    Path path;
    for (int64_t end = page_; end + extra_ <= static_cast<int64_t>(tokens.size()); end += page_) {
      path.emplace_back(tokens.begin(), tokens.begin() + end + extra_);
      entries_.try_emplace(path.back());
    }
    return path;
  }
  void lock(const Path& path) {
    for (const auto& key : path) ++entries_[key].locks;
  }
  void unlock(const Path& path) {
    ++clock_;
    for (const auto& key : path) {
      Entry& entry = entries_[key];
      if (--entry.locks == 0) entry.last_use = clock_;
    }
  }
  int64_t evict(int64_t count) {
    int64_t evicted = 0;
    for (; evicted < count; ++evicted) {
      auto oldest = entries_.end();
      for (auto it = entries_.begin(); it != entries_.end(); ++it) {
        const bool leaf = std::ranges::none_of(
            entries_, [&](const auto& other) { return parent(other.first) == it->first; });
        if (it->second.locks > 0 || !leaf) continue;
        if (oldest == entries_.end() || it->second.last_use < oldest->second.last_use) oldest = it;
      }
      if (oldest == entries_.end()) break;
      entries_.erase(oldest);
    }
    return evicted;
  }
  size_t size() const { return entries_.size(); }

 private:
  struct Entry {
    int locks = 0;
    int64_t last_use = 0;
  };
  // The key of the block before, or nothing.
  std::vector<int32_t> parent(const std::vector<int32_t>& key) const {
    const int64_t length = static_cast<int64_t>(key.size()) - page_;
    if (length < page_) return {};
    return {key.begin(), key.begin() + length};
  }
  int64_t page_;
  int64_t extra_;
  int64_t clock_ = 0;
  std::map<std::vector<int32_t>, Entry> entries_;
};

}  // namespace foresail
