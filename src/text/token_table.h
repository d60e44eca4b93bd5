// Ids and the bytes they stand for, both ways. Ids may have gaps: a nameless id has no bytes.
// Immutable once filled; any thread may read it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace foresail {

class TokenTable {
 public:
  static constexpr int64_t kMaxId = (1 << 22) - 1;  // bounds the memory a hostile file can ask for

  // False if the id already has a token. Precondition: 0 <= id <= kMaxId.
  bool add(int32_t id, std::string_view bytes);
  // Makes find() see the tokens of `ids`; of two with the same bytes the lower id wins.
  void index(const std::vector<int32_t>& ids);

  size_t vocab_size() const { return places_.size(); }  // highest id + 1
  bool has(int32_t id) const { return in_range(id) && places_[id].named; }
  std::string_view bytes(int32_t id) const {
    if (!in_range(id)) return {};
    return std::string_view(arena_).substr(places_[id].offset_bytes, places_[id].length_bytes);
  }
  // The indexed token with these bytes, or -1.
  int32_t find(std::string_view bytes) const;

 private:
  struct Place {
    uint64_t offset_bytes = 0;
    uint32_t length_bytes = 0;
    bool named = false;
  };
  struct Slot {
    uint32_t hash = 0;
    int32_t id = -1;
  };
  bool in_range(int32_t id) const { return id >= 0 && static_cast<size_t>(id) < places_.size(); }

  std::string arena_;          // the bytes of all tokens
  std::vector<Place> places_;  // [vocab_size]
  std::vector<Slot> slots_;    // open addressing, a power of two
};

}  // namespace foresail
