// The one page table: which page holds which part of which running request.
// The scheduler owns the master; an executor keeps a replica by applying the logged updates in
// order. One thread per instance.
#pragma once

#include <span>
#include <vector>

#include "base/ids.h"

namespace foresail {

struct RowUpdate {
  static constexpr int32_t kClearRow = -1;

  SlotId slot;
  int32_t column = kClearRow;  // kClearRow: the whole row becomes kPastEnd
  PageId page;
};

class PageTable {
 public:
  // What stands past the length of a row. Kernels never read it; debug builds prove that.
#ifdef NDEBUG
  static constexpr int32_t kPastEnd = 0;
#else
  static constexpr int32_t kPastEnd = -559038737;  // 0xdeadbeef
#endif

  // The width rule: the longest sequence in multiples of 128 tokens, because block-table kernels
  // read the table in units of 128. Speculation needs no margin: Capacity keeps drafts within it.
  static int32_t columns_for(Tokens longest, PageSize size);

  PageTable(int32_t slots, int32_t columns);

  void set(SlotId slot, int32_t column, PageId page);
  void clear(SlotId slot);

  int32_t slots() const {
    return slots_;
  }
  int32_t columns() const {
    return columns_;
  }
  // One more row stands after the slots: all sink pages, in every build, for the padding of
  // buckets.
  SlotId padding_slot() const {
    return SlotId{slots_};
  }
  std::span<const int32_t> row(SlotId slot) const;  // [columns]
  std::span<const int32_t> entries() const {
    return entries_;
  }  // [slots + 1, columns]

  // The changes since the last call, in order, and their replay on a replica.
  std::vector<RowUpdate> take_updates() {
    return std::exchange(log_, {});
  }
  void apply(std::span<const RowUpdate> updates);

 private:
  void write(const RowUpdate& update);

  int32_t slots_;
  int32_t columns_;
  std::vector<int32_t> entries_;
  std::vector<RowUpdate> log_;
};

}  // namespace foresail
