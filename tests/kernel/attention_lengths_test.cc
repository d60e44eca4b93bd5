// Attention over the page table at every length that a loop may get wrong, with nothing but the
// needed entries and rows readable: one step too far is a crash here.
#include <sys/mman.h>

#include "kernel/random_inputs.h"

namespace foresail {
namespace {

class AttentionLengths : public KernelTest {};
FORESAIL_FOR_ALL_SETS(AttentionLengths);

constexpr int kWidth = kSmallLatent + kSmallRope;
constexpr float kScoreScale = 0.15f;

// Memory of which only the pages that were written take room. 64-bit offsets from its start.
class SparseMemory {
 public:
  explicit SparseMemory(int64_t size_bytes) : size_bytes_(size_bytes) {
    data_ = mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  }
  ~SparseMemory() {
    if (data_ != MAP_FAILED) munmap(data_, size_bytes_);
  }
  SparseMemory(const SparseMemory&) = delete;
  SparseMemory& operator=(const SparseMemory&) = delete;
  void* data() const { return data_ == MAP_FAILED ? nullptr : data_; }

 private:
  int64_t size_bytes_;
  void* data_;
};

// A page table whose last entry is the last readable word.
class GuardedTable {
 public:
  explicit GuardedTable(const std::vector<int32_t>& entries) : memory_(size_of(entries.size())) {
    const int64_t guard = size_of(entries.size()) - kGuardBytes;
    auto* bytes = static_cast<std::byte*>(memory_.data());
    first_ = reinterpret_cast<int32_t*>(bytes + guard) - entries.size();
    std::copy(entries.begin(), entries.end(), first_);
    mprotect(bytes + guard, kGuardBytes, PROT_NONE);
  }
  const int32_t* data() const { return first_; }

 private:
  static constexpr int64_t kGuardBytes = 1 << 16;
  static int64_t size_of(size_t entries) {
    const auto bytes = static_cast<int64_t>(entries * sizeof(int32_t));
    return (bytes + kGuardBytes - 1) / kGuardBytes * kGuardBytes + kGuardBytes;
  }
  SparseMemory memory_;
  int32_t* first_;
};

// Row of key j: the same numbers whatever the paging. Cheap, for 80,000 of them.
void fill_row(const LatentCache& cache, int64_t slot, int64_t key) {
  uint64_t state = static_cast<uint64_t>(key) * 0x9E3779B97F4A7C15ull + 1;
  for (int d = 0; d < kWidth; ++d) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    store_element(cache.data, cache.dtype, slot * kWidth + d,
                  static_cast<float>(state >> 40) * 0x1p-23f - 1.0f);
  }
}

// A cache of `length` keys in scattered pages; every other row holds NaN.
struct Sequence {
  Sequence(DType dtype, int page_size, int64_t length) {
    const auto pages = static_cast<int>((length + page_size - 1) / page_size);
    storage = std::make_unique<Tensor>(dtype, int64_t{pages + 1} * page_size, kWidth);
    cache = {storage->view().data, dtype, page_size, kSmallLatent, kSmallRope};
    std::vector<int32_t> entries;
    for (const int page : shuffled(pages, 7)) entries.push_back(page + 1);
    for (int64_t key = 0; key < length; ++key)
      fill_row(cache, int64_t{entries[key / page_size]} * page_size + key % page_size, key);
    table = std::make_unique<GuardedTable>(entries);
  }
  std::unique_ptr<Tensor> storage;
  std::unique_ptr<GuardedTable> table;
  LatentCache cache;
};

// In float64 from the same numbers; row i of `rows` sees length - rows + 1 + i keys.
Tensor attend_plainly(const Tensor& q, const Sequence& sequence, int64_t length) {
  const int64_t rows = q.rows();
  Tensor out(DType::kF32, rows, kSmallHeads * kSmallLatent);
  std::vector<float> keys(length * kWidth);
  for (int64_t key = 0; key < length; ++key) {
    const LatentCache& cache = sequence.cache;
    const int64_t slot = int64_t{sequence.table->data()[key / cache.page_size]} * cache.page_size +
                         key % cache.page_size;
    for (int d = 0; d < kWidth; ++d)
      keys[key * kWidth + d] = load_element(cache.data, cache.dtype, slot * kWidth + d);
  }
  for (int64_t row = 0; row < rows; ++row)
    for (int head = 0; head < kSmallHeads; ++head) {
      double total = 0.0;
      std::vector<double> sum(kSmallLatent);
      for (int64_t key = 0; key < length - rows + 1 + row; ++key) {
        double score = 0.0;
        for (int d = 0; d < kWidth; ++d)
          score += double{q.at(row, head * kWidth + d)} * keys[key * kWidth + d];
        const double weight = std::exp(score * kScoreScale);  // scores stay below 10
        total += weight;
        for (int d = 0; d < kSmallLatent; ++d) sum[d] += weight * keys[key * kWidth + d];
      }
      for (int d = 0; d < kSmallLatent; ++d)
        out.set(row, head * kSmallLatent + d, static_cast<float>(sum[d] / total));
    }
  return out;
}

// T2, T3, T20: verify passes of several rows that cross one page border or many, and the lengths
// about every power that a tile or a split may use.
TEST_P(AttentionLengths, EveryBorderAgainstFloat64) {
  PooledSet set(GetParam());
  for (const int page_size : {1, 16, 32, 64}) {
    std::vector<int64_t> lengths = {1, 2, 127, 128, 129, 255, 256, 257, 4095, 4096, 4097, 9416};
    for (const int64_t around : {page_size - 1, page_size, page_size + 1})
      if (around > 0) lengths.push_back(around);
    if (page_size == 32) lengths.insert(lengths.end(), {2047, 2048, 2049});
    if (page_size == 64) lengths.push_back(80'000);
    const DType cache_dtype = page_size == 16 || page_size == 64 ? act() : DType::kF32;
    for (const int64_t length : lengths) {
      const Sequence sequence(cache_dtype, page_size, length);
      const int64_t rows = std::min<int64_t>(length, length < 9000 ? 4 : 1);
      const Tensor q = Tensor(DType::kF32, rows, kSmallHeads * kWidth).randomize(length, 0.7f);
      const SequenceRows batch[] = {
          {0, static_cast<int32_t>(rows), static_cast<int32_t>(length), sequence.table->data()}};
      Tensor got(act(), rows, kSmallHeads * kSmallLatent);
      set->latent_attention(q, kSmallHeads, kScoreScale, batch, sequence.cache, got);
      expect_close(got, attend_plainly(q, sequence, length), is_bf16() ? 1.5e-2 : 1e-4,
                   GetParam().label() + " page " + std::to_string(page_size) + " length " +
                       std::to_string(length));
    }
  }
}

// T20: what stands in a row past its length is not a page. Padding has no pages at all.
TEST_P(AttentionLengths, EntriesPastTheLengthAreNeverFollowed) {
  PooledSet set(GetParam());
  for (const int page_size : {1, 16, 64}) {
    for (const int64_t length : {1, 16, 63, 64, 65, 300}) {
      const Sequence sequence(DType::kF32, page_size, length);
      const auto pages = static_cast<size_t>((length + page_size - 1) / page_size);
      std::vector<int32_t> poisoned(sequence.table->data(), sequence.table->data() + pages);
      poisoned.resize(pages + 130, INT32_MIN);
      const Tensor q = Tensor(DType::kF32, 2, kSmallHeads * kWidth).randomize(1);
      const SequenceRows clean[] = {{0, 1, static_cast<int32_t>(length), sequence.table->data()}};
      const SequenceRows bad[] = {{0, 1, static_cast<int32_t>(length), poisoned.data()},
                                  {1, 1, 0, nullptr}};
      Tensor want(act(), 1, kSmallHeads * kSmallLatent), got(act(), 2, kSmallHeads * kSmallLatent);
      set->latent_attention(q.pick({0}), kSmallHeads, kScoreScale, clean, sequence.cache, want);
      set->latent_attention(q, kSmallHeads, kScoreScale, bad, sequence.cache, got);
      expect_same_row(got, 0, want, 0, GetParam().label());
    }
  }
}

// K2, T21: pages whose bytes lie beyond 2^31 and 2^32, written and read.
TEST_P(AttentionLengths, PoolsBeyondFourGibibytes) {
  PooledSet set(GetParam());
  constexpr int kPageSize = 64;
  const int64_t page_bytes = int64_t{kPageSize} * kWidth * static_cast<int64_t>(sizeof(float));
  const int64_t page_count = (int64_t{9} << 30) / page_bytes;
  const SparseMemory memory(page_count * page_bytes);
  if (memory.data() == nullptr) GTEST_SKIP() << "the address space is limited";
  const LatentCache far = {memory.data(), DType::kF32, kPageSize, kSmallLatent, kSmallRope};
  std::vector<int32_t> entries;
  for (const int64_t gib : {0, 1, 2, 3, 4, 6, 8})
    entries.push_back(static_cast<int32_t>((gib << 30) / page_bytes + 1));
  const auto length = static_cast<int32_t>(entries.size() * kPageSize);

  Tensor near_rows(DType::kF32, int64_t{length} + kPageSize, kWidth);
  const LatentCache near = {near_rows.view().data, DType::kF32, kPageSize, kSmallLatent,
                            kSmallRope};
  std::vector<int32_t> near_entries, far_slots, near_slots, positions;
  for (size_t i = 0; i < entries.size(); ++i) near_entries.push_back(static_cast<int32_t>(i) + 1);
  for (int32_t key = 0; key < length; ++key) {
    far_slots.push_back(entries[key / kPageSize] * kPageSize + key % kPageSize);
    near_slots.push_back(near_entries[key / kPageSize] * kPageSize + key % kPageSize);
    positions.push_back(key);
  }
  const Tensor kv = Tensor(DType::kF32, length, kWidth).randomize(5);
  const Tensor norm = Tensor(DType::kF32, 1, kSmallLatent).fill(1.0f);
  const Tensor cos = Tensor(DType::kF32, length, kSmallRope / 2).fill(1.0f);
  const Tensor sin = Tensor(DType::kF32, length, kSmallRope / 2).fill(0.0f);
  const auto data = [](const Tensor& t) { return static_cast<const float*>(t.view().data); };
  const RopeTable rope = {data(cos), data(sin), kSmallRope, RopeLayout::kAdjacentPairs};
  set->store_latent(kv, data(norm), 1e-6f, rope, positions, far_slots, far);
  set->store_latent(kv, data(norm), 1e-6f, rope, positions, near_slots, near);

  const Tensor q = Tensor(DType::kF32, 3, kSmallHeads * kWidth).randomize(6);
  Tensor got(act(), 3, kSmallHeads * kSmallLatent), want(act(), 3, kSmallHeads * kSmallLatent);
  const SequenceRows far_batch[] = {{0, 3, length, entries.data()}};
  const SequenceRows near_batch[] = {{0, 3, length, near_entries.data()}};
  set->latent_attention(q, kSmallHeads, kScoreScale, far_batch, far, got);
  set->latent_attention(q, kSmallHeads, kScoreScale, near_batch, near, want);
  for (int row = 0; row < 3; ++row) expect_same_row(got, row, want, row, GetParam().label());
}

}  // namespace
}  // namespace foresail
