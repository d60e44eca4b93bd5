#include "cache/page_table.h"

#include "base/check.h"

namespace foresail {

int32_t PageTable::columns_for(Tokens longest, PageSize size) {
  constexpr int64_t kGranuleTokens = 128;
  const int64_t tokens = round_up<int64_t>(longest.value, kGranuleTokens);
  const int64_t columns = tokens / size.tokens();
  FORESAIL_CHECK(columns <= INT32_MAX, "{} columns", columns);
  return static_cast<int32_t>(columns);
}

PageTable::PageTable(int32_t slots, int32_t columns)
    : slots_(slots), columns_(columns), entries_(int64_t{slots + 1} * columns, kPastEnd) {
  std::fill(entries_.end() - columns, entries_.end(), kSinkPage.value);
}

void PageTable::set(SlotId slot, int32_t column, PageId page) {
  const RowUpdate update{slot, column, page};
  write(update);
  log_.push_back(update);
}

void PageTable::clear(SlotId slot) {
  const RowUpdate update{.slot = slot};
  write(update);
  // What was logged for the row before is moot.
  std::erase_if(log_, [&](const RowUpdate& old) { return old.slot == slot; });
  log_.push_back(update);
}

std::span<const int32_t> PageTable::row(SlotId slot) const {
  FORESAIL_CHECK(slot.value >= 0 && slot.value <= slots_, "slot {} of {}", slot.value, slots_);
  return std::span(entries_).subspan(int64_t{slot.value} * columns_, columns_);
}

void PageTable::apply(std::span<const RowUpdate> updates) {
  for (const RowUpdate& update : updates) write(update);
}

void PageTable::write(const RowUpdate& update) {
  FORESAIL_CHECK(update.slot.value >= 0 && update.slot.value < slots_, "slot {} of {}",
                 update.slot.value, slots_);
  int32_t* row = entries_.data() + int64_t{update.slot.value} * columns_;
  if (update.column == RowUpdate::kClearRow) {
    std::fill(row, row + columns_, kPastEnd);
    return;
  }
  FORESAIL_CHECK(update.column >= 0 && update.column < columns_, "column {} of {}", update.column,
                 columns_);
  FORESAIL_CHECK(update.page > kSinkPage, "page {}", update.page.value);
  row[update.column] = update.page.value;
}

}  // namespace foresail
