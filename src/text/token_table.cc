#include "text/token_table.h"

#include <bit>
#include <cstring>

namespace foresail {
namespace {

uint64_t hash_of(std::string_view bytes) {
  uint64_t hash = 0x9E3779B97F4A7C15ull ^ bytes.size();
  while (bytes.size() >= 8) {
    uint64_t word;
    std::memcpy(&word, bytes.data(), 8);
    hash = (hash ^ word) * 0xFF51AFD7ED558CCDull;
    hash ^= hash >> 32;
    bytes.remove_prefix(8);
  }
  uint64_t word = 0;
  for (size_t i = 0; i < bytes.size(); ++i) word = word << 8 | static_cast<unsigned char>(bytes[i]);
  hash = (hash ^ word) * 0xC4CEB9FE1A85EC53ull;
  return hash ^ hash >> 32;
}

}  // namespace

bool TokenTable::add(int32_t id, std::string_view bytes) {
  if (static_cast<size_t>(id) >= places_.size()) places_.resize(static_cast<size_t>(id) + 1);
  Place& place = places_[id];
  if (place.named) return false;
  place = {arena_.size(), static_cast<uint32_t>(bytes.size()), true};
  arena_ += bytes;
  return true;
}

void TokenTable::index(const std::vector<int32_t>& ids) {
  slots_.assign(std::bit_ceil(ids.size() * 2 + 1), {});
  const size_t mask = slots_.size() - 1;
  for (const int32_t id : ids) {
    const uint64_t hash = hash_of(bytes(id));
    size_t place = hash & mask;
    for (; slots_[place].id >= 0; place = (place + 1) & mask)
      if (bytes(slots_[place].id) == bytes(id)) break;
    if (slots_[place].id >= 0 && slots_[place].id < id) continue;
    slots_[place] = {static_cast<uint32_t>(hash), id};
  }
}

int32_t TokenTable::find(std::string_view wanted) const {
  if (slots_.empty()) return -1;
  const uint64_t hash = hash_of(wanted);
  const size_t mask = slots_.size() - 1;
  for (size_t place = hash & mask; slots_[place].id >= 0; place = (place + 1) & mask)
    if (slots_[place].hash == static_cast<uint32_t>(hash) && bytes(slots_[place].id) == wanted)
      return slots_[place].id;
  return -1;
}

}  // namespace foresail
