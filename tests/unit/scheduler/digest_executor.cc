#include "unit/scheduler/digest_executor.h"

#include <stdexcept>

namespace foresail {
namespace {

uint64_t mix(uint64_t a, uint64_t b) {
  uint64_t z = a * 0x9e3779b97f4a7c15ull + b + 1;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  return z ^ (z >> 31);
}

constexpr uint64_t kGarbage = 0xbad;

}  // namespace

VirtualStream::VirtualStream(const std::string& cache_salt, std::vector<int32_t> prompt,
                             Tokens max_new_tokens, int32_t vocab)
    : tokens(std::move(prompt)), prompt_len(static_cast<int64_t>(tokens.size())) {
  constexpr int64_t kBeyond = 64;  // what a device may write of a request that has ended
  const int64_t limit = (prompt_len + max_new_tokens).value;
  uint64_t prefix = std::hash<std::string>{}(cache_salt);
  end = Tokens{limit};
  for (int64_t p = 0; p < limit + kBeyond; ++p) {
    if (p == static_cast<int64_t>(tokens.size())) {
      tokens.push_back(static_cast<int32_t>(mix(prefix, 77) % static_cast<uint64_t>(vocab)));
      if (tokens.back() == kStop && end == Tokens{limit}) end = Tokens{std::min(p + 1, limit)};
    }
    prefix = mix(prefix, static_cast<uint64_t>(tokens[p]) << 32 | static_cast<uint64_t>(p));
    target.push_back(prefix);
    if (p > 0) draft.push_back(mix(target[p - 1], static_cast<uint64_t>(tokens[p])));
  }
}

DigestExecutor::DigestExecutor(const KvCache& cache, bool kv_drafter, uint64_t seed)
    : table_(cache.table().slots(), cache.table().columns()),
      capacity_(cache.capacity()),
      page_size_(cache.pool().page_size().tokens()),
      pages_(static_cast<int32_t>(cache.pool().usable().value) + 1),
      kv_drafter_(kv_drafter),
      target_(int64_t{pages_} * page_size_),
      draft_(int64_t{pages_} * page_size_),
      slots_(cache.table().slots()),
      last_user_(pages_),
      rng_(seed) {}

StepResult DigestExecutor::run(const StepPlan& plan, bool lagged) {
  table_.apply(plan.page_updates);
  step_before_ = step_;
  step_ = plan.step;
  lagged_ = lagged;
  StepResult result{.step = plan.step};
  for (const PrefillChunk& chunk : plan.prefill) run_chunk(plan, chunk, result);
  for (const DecodeRow& row : plan.decode) run_decode(row, result);
  // Whoever is in this step keeps these pages until it completes.
  for (const PrefillChunk& chunk : plan.prefill) use_pages(chunk.slot, chunk.end.value);
  for (const DecodeRow& row : plan.decode) {
    use_pages(row.slot, row.kv_len_upper.value + row.draft_len + 1);
  }
  return result;
}

void DigestExecutor::run_chunk(const StepPlan& plan, const PrefillChunk& chunk,
                               StepResult& result) {
  Slot& slot = slots_[chunk.slot.value];
  if (chunk.first) slot = {chunk.request, chunk.begin.value};
  if (slot.request != chunk.request) fail(chunk.slot, 0, "the slot is another request's");
  const VirtualStream& stream = streams_.at(chunk.request);
  if (slot.kv_len != chunk.begin.value) fail(chunk.slot, chunk.begin.value, "chunk starts off");
  if (chunk.end <= chunk.begin) fail(chunk.slot, chunk.begin.value, "empty chunk");
  for (int64_t p = chunk.begin.value; p < chunk.end.value; ++p) {
    if (plan.prefill_tokens[chunk.tokens_offset + p - chunk.begin.value] != stream.tokens[p]) {
      fail(chunk.slot, p, "wrong prompt token");
    }
    write(target_, chunk.slot, p, stream.target[p]);
    // The drafter's input is shifted by one: a chunk that is not the last ends with a known token.
    const bool known = p + 1 < chunk.end.value || chunk.is_last();
    const int32_t next = known ? stream.tokens[p + 1] : chunk.next_token;
    write(draft_, chunk.slot, p, mix(stream.target[p], static_cast<uint64_t>(next)));
  }
  slot.kv_len = chunk.end.value;
  verify(chunk.slot, slot.kv_len, stream);
  if (!chunk.is_last()) return;
  draft(chunk.slot, chunk.next_draft_len);
  result.rows.push_back({.slot = chunk.slot, .accept_len = 1});
  result.tokens.push_back(stream.tokens[slot.kv_len]);
}

void DigestExecutor::run_decode(const DecodeRow& row, StepResult& result) {
  Slot& slot = slots_[row.slot.value];
  if (slot.request != row.request) fail(row.slot, 0, "the slot is another request's");
  const VirtualStream& stream = streams_.at(row.request);
  const int64_t length = slot.kv_len;
  if (length > row.kv_len_upper.value) fail(row.slot, length, "longer than the host's bound");
  int32_t accept_len = 1;
  while (accept_len <= row.draft_len && static_cast<double>(random() % 1000) < 1000 * accept_rate) {
    ++accept_len;
  }
  // Verify: the bonus token and the drafts; the rejected ones leave their KV behind.
  for (int32_t i = 0; i <= row.draft_len; ++i) {
    const int64_t p = length + i;
    write(target_, row.slot, p, i < accept_len ? stream.target[p] : kGarbage);
    write(draft_, row.slot, p, i < accept_len ? stream.draft[p] : kGarbage);
  }
  slot.kv_len = length + accept_len;
  verify(row.slot, slot.kv_len, stream);
  draft(row.slot, row.next_draft_len);
  result.rows.push_back({.slot = row.slot, .accept_len = accept_len});
  for (int32_t i = 0; i < accept_len; ++i) {
    result.tokens.push_back(stream.tokens[length + 1 + i]);
  }
}

void DigestExecutor::draft(SlotId slot, int32_t next_draft_len) {
  const int64_t begin = slots_[slot.value].kv_len;
  const int64_t end = capacity_.prefill_reach(Tokens{begin}, next_draft_len).value;
  for (int64_t position = begin; position < end; ++position) {
    write(draft_, slot, position, kGarbage);
  }
}

int32_t DigestExecutor::page_at(SlotId slot, int64_t position) const {
  const int64_t column = position / page_size_;
  if (column >= table_.columns()) fail(slot, position, "past the row");
  const int32_t page = table_.row(slot)[column];
  if (page <= kSinkPage.value || page >= pages_) fail(slot, position, "no page here");
  return page;
}

void DigestExecutor::write(std::vector<uint64_t>& pool, SlotId slot, int64_t position,
                           uint64_t digest) {
  const int32_t page = page_at(slot, position);
  const auto& [step, user] = last_user_[page];
  if (lagged_ && step == step_before_ && step > 0 && user != slots_[slot.value].request) {
    fail(slot, position, fmt::format("page {} still belongs to request {}", page, user.value));
  }
  pool[int64_t{page} * page_size_ + position % page_size_] = digest;
}

void DigestExecutor::verify(SlotId slot, int64_t length, const VirtualStream& stream) const {
  for (int64_t start = 0; start < length; start += page_size_) {
    const int64_t base = int64_t{page_at(slot, start)} * page_size_;
    const int64_t count = std::min<int64_t>(page_size_, length - start);
    for (int64_t i = 0; i < count; ++i) {
      if (target_[base + i] != stream.target[start + i]) fail(slot, start + i, "wrong target KV");
      if (kv_drafter_ && draft_[base + i] != stream.draft[start + i]) {
        fail(slot, start + i, "wrong drafter KV");
      }
    }
  }
}

void DigestExecutor::use_pages(SlotId slot, int64_t length) {
  for (int64_t start = 0; start < length; start += page_size_) {
    last_user_[page_at(slot, start)] = {step_, slots_[slot.value].request};
  }
}

uint64_t DigestExecutor::random() {
  return rng_ = mix(rng_, 5);
}

void DigestExecutor::fail(SlotId slot, int64_t position, const std::string& what) const {
  const int64_t request =
      slot.value < static_cast<int32_t>(slots_.size()) ? slots_[slot.value].request.value : -1;
  throw std::runtime_error(fmt::format("step {}, request {}, slot {}, position {}: {}", step_,
                                       request, slot.value, position, what));
}

}  // namespace foresail
