#include "text/byte_pair_encoder.h"

#include <algorithm>
#include <bit>
#include <queue>

namespace foresail {
namespace {

constexpr size_t kShortPiece = 48;  // below, scanning all pairs beats a heap

uint64_t mixed(uint64_t key) {
  key *= 0x9E3779B97F4A7C15ull;
  return key ^ key >> 29;
}

uint64_t pair_key(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

}  // namespace

BytePairEncoder::BytePairEncoder(const TokenTable& tokens, std::span<const Merge> merges,
                                 bool takes_whole_pieces)
    : tokens_(tokens) {
  for (int byte = 0; byte < 256; ++byte) {
    const char spelled = static_cast<char>(byte);
    byte_token_[byte] = tokens.find(std::string_view(&spelled, 1));
  }
  pairs_.assign(std::bit_ceil(merges.size() * 2 + 1), {kEmpty, 0, 0});
  const size_t mask = pairs_.size() - 1;
  for (const Merge& merge : merges) {
    const uint64_t key = pair_key(merge.left, merge.right);
    size_t place = mixed(key) & mask;
    while (pairs_[place].key != kEmpty && pairs_[place].key != key) place = (place + 1) & mask;
    pairs_[place] = {key, merge.rank, merge.result};  // of a repeated pair the last one counts
  }
  whole_.resize(tokens.vocab_size());
  std::vector<int32_t> merged;
  for (int32_t id = 0; id < static_cast<int32_t>(tokens.vocab_size()); ++id) {
    const std::string_view bytes = tokens.bytes(id);
    if (bytes.empty() || tokens.find(bytes) != id) continue;
    if (!takes_whole_pieces) {
      merged.clear();
      this->merge(bytes, merged);
    }
    whole_[id] = takes_whole_pieces || (merged.size() == 1 && merged[0] == id);
  }
}

const BytePairEncoder::Pair* BytePairEncoder::find(int32_t left, int32_t right) const {
  const uint64_t key = pair_key(left, right);
  const size_t mask = pairs_.size() - 1;
  for (size_t place = mixed(key) & mask; pairs_[place].key != kEmpty; place = (place + 1) & mask)
    if (pairs_[place].key == key) return &pairs_[place];
  return nullptr;
}

void BytePairEncoder::encode(std::string_view piece, std::vector<int32_t>& out) const {
  const int32_t id = tokens_.find(piece);
  if (id >= 0 && whole_[id])
    out.push_back(id);
  else
    merge(piece, out);
}

void BytePairEncoder::merge(std::string_view piece, std::vector<int32_t>& out) const {
  if (piece.size() <= kShortPiece)
    merge_short(piece, out);
  else
    merge_long(piece, out);
}

void BytePairEncoder::merge_short(std::string_view piece, std::vector<int32_t>& out) const {
  int32_t ids[kShortPiece];
  const Pair* pairs[kShortPiece];  // pairs[i] joins ids[i] and ids[i + 1]
  size_t count = 0;
  for (const char byte : piece) {
    const int32_t id = byte_token_[static_cast<unsigned char>(byte)];
    if (id >= 0) ids[count++] = id;
  }
  for (size_t i = 0; i + 1 < count; ++i) pairs[i] = find(ids[i], ids[i + 1]);
  while (count > 1) {
    size_t best = count;
    uint32_t best_rank = kNoRank;
    for (size_t i = 0; i + 1 < count; ++i)
      if (pairs[i] != nullptr && pairs[i]->rank < best_rank) best_rank = pairs[best = i]->rank;
    if (best == count) break;
    ids[best] = pairs[best]->result;
    std::copy(ids + best + 2, ids + count, ids + best + 1);
    if (best + 2 < count) std::copy(pairs + best + 2, pairs + count - 1, pairs + best + 1);
    --count;
    if (best + 1 < count) pairs[best] = find(ids[best], ids[best + 1]);
    if (best > 0) pairs[best - 1] = find(ids[best - 1], ids[best]);
  }
  out.insert(out.end(), ids, ids + count);
}

void BytePairEncoder::merge_long(std::string_view piece, std::vector<int32_t>& out) const {
  constexpr uint32_t kNone = ~0u;
  struct Symbol {
    int32_t id;  // -1: merged into the symbol before it
    uint32_t previous, next;
  };
  std::vector<Symbol> symbols;
  symbols.reserve(piece.size());
  for (const char byte : piece) {
    const int32_t id = byte_token_[static_cast<unsigned char>(byte)];
    if (id < 0) continue;
    const auto index = static_cast<uint32_t>(symbols.size());
    symbols.push_back({id, index - 1, index + 1});  // the first one's previous wraps to kNone
  }
  if (symbols.empty()) return;
  symbols.back().next = kNone;

  // rank << 32 | position: the smallest is the lowest rank, leftmost.
  std::priority_queue<uint64_t, std::vector<uint64_t>, std::greater<>> queue;
  const auto consider = [&](uint32_t position) {
    const uint32_t next = symbols[position].next;
    if (next == kNone) return;
    if (const Pair* pair = find(symbols[position].id, symbols[next].id))
      queue.push(static_cast<uint64_t>(pair->rank) << 32 | position);
  };
  for (uint32_t position = 0; position < symbols.size(); ++position) consider(position);
  while (!queue.empty()) {
    const uint64_t top = queue.top();
    queue.pop();
    const auto position = static_cast<uint32_t>(top);
    Symbol& left = symbols[position];
    if (left.id < 0 || left.next == kNone) continue;
    Symbol& right = symbols[left.next];
    const Pair* pair = find(left.id, right.id);
    if (pair == nullptr || pair->rank != top >> 32) continue;  // an older pair at this place
    left.id = pair->result;
    right.id = -1;
    left.next = right.next;
    if (left.next != kNone) symbols[left.next].previous = position;
    consider(position);
    if (left.previous != kNone) consider(left.previous);
  }
  for (uint32_t position = 0; position != kNone; position = symbols[position].next)
    out.push_back(symbols[position].id);
}

}  // namespace foresail
