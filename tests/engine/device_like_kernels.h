// A host's set that is treated as a device: it chooses tokens and accepts drafts itself, and passes
// are queued behind a verify pass whose outcome the host does not know. What a device changes in
// its own copy of a pass's inputs, this changes in the host's.
#pragma once

#include <cstring>
#include <map>
#include <vector>

#include "base/check.h"
#include "base/thread_pool.h"
#include "kernels/cpu/cpu_set.h"
#include "kernels/cpu/isa_select.h"

namespace foresail {

// The host's, but for downloads, which bring nothing before they are finished.
class LateMemory : public Memory {
 public:
  std::byte* allocate(size_t size_bytes) override {
    ++allocations_[size_bytes];
    if (size_bytes == refused_bytes_) throw std::bad_alloc();
    return host_memory().allocate(size_bytes);
  }
  void release(std::byte* data, size_t size_bytes) noexcept override {
    host_memory().release(data, size_bytes);
  }
  bool is_host() const override { return true; }
  Memory& staging() override { return *this; }
  void upload(void* to, const void* from, size_t size_bytes) override {
    std::memcpy(to, from, size_bytes);
  }
  void download(void* to, const void* from, size_t size_bytes) override {
    std::memcpy(to, from, size_bytes);
  }
  uint64_t start_download(void* to, const void* from, size_t size_bytes) override {
    const auto* bytes = static_cast<const std::byte*>(from);
    under_way_[next_] = {to, {bytes, bytes + size_bytes}};
    most_under_way_ = std::max(most_under_way_, under_way_.size());
    std::memset(to, 0x7E, size_bytes);
    return next_++;
  }
  void finish_download(uint64_t number) override {
    const Download& download = under_way_.at(number);
    std::memcpy(download.to, download.bytes.data(), download.bytes.size());
    under_way_.erase(number);
  }
  void zero(void* data, size_t size_bytes) override { std::memset(data, 0, size_bytes); }
  void wait() override {}
  size_t most_under_way() const { return most_under_way_; }
  void refuse(size_t size_bytes) { refused_bytes_ = size_bytes; }
  int allocations_of(size_t size_bytes) const {
    const auto found = allocations_.find(size_bytes);
    return found == allocations_.end() ? 0 : found->second;
  }

 private:
  struct Download {
    void* to = nullptr;
    std::vector<std::byte> bytes;
  };
  std::map<uint64_t, Download> under_way_;
  uint64_t next_ = 0;
  size_t most_under_way_ = 0;
  std::map<size_t, int> allocations_;  // by their bytes
  size_t refused_bytes_ = 0;
};

template <typename Base>
class DeviceLike : public Base {
 public:
  using Base::Base;

  bool prefers_choosing() const override { return true; }
  Memory& memory() override { return memory_; }
  bool begin_pass(const PassInputs& inputs) override {
    const PassLinks& links = inputs.links;
    if (links.token_ids != nullptr)
      std::copy_n(links.token_ids, inputs.token_ids.size(), written(inputs.token_ids));
    if (links.lag != nullptr) apply_lag(inputs);
    if (inputs.carry.from != nullptr) apply_carry(inputs);
    if (passes_to_failure_ > 0 && --passes_to_failure_ == 0) throw std::bad_alloc();
    linked_passes_ += links.token_ids != nullptr;
    return false;
  }
  // Passes that were queued before their inputs were known to the host.
  int linked_passes() const { return linked_passes_; }
  // Rows whose token the host did not know.
  int carried_rows() const { return carried_rows_; }
  size_t most_downloads_under_way() const { return memory_.most_under_way(); }
  int allocations_of(size_t size_bytes) const { return memory_.allocations_of(size_bytes); }
  // Allocations of so many bytes fail from now on; 0: none.
  void refuse_allocations_of(size_t size_bytes) { memory_.refuse(size_bytes); }
  // The n-th pass from now on.
  void fail_in(int passes) { passes_to_failure_ = passes; }

 private:
  template <typename T>
  static T* written(std::span<const T> of_host) {
    return const_cast<T*>(of_host.data());
  }

  static void move_up(const PassInputs& inputs, size_t s, int32_t lag) {
    SequenceRows& sequence = written(inputs.sequences)[s];
    if (sequence.kv_end == 0) return;
    sequence.kv_end -= lag;
    for (int32_t row = sequence.row_begin; row < sequence.row_begin + sequence.row_count; ++row) {
      const int32_t position = inputs.positions[row] - lag;
      written(inputs.positions)[row] = position;
      written(inputs.slots)[row] =
          sequence.page_table[position / inputs.page_size] * inputs.page_size +
          position % inputs.page_size;
    }
  }

  static void apply_lag(const PassInputs& inputs) {
    const PassLinks& links = inputs.links;
    FORESAIL_CHECK(inputs.draws.size() == inputs.sequences.size() &&
                       inputs.wanted_rows.size() == inputs.sequences.size(),
                   "{} draws, {} wanted rows, {} sequences", inputs.draws.size(),
                   inputs.wanted_rows.size(), inputs.sequences.size());
    for (size_t s = 0; s < inputs.sequences.size(); ++s) {
      const int32_t row_lag = links.row_lag == nullptr ? 0 : links.row_lag[s];
      written(inputs.draws)[s].position -= links.lag[s] + row_lag;
      const bool rows_lag = links.lag_of == PassLinks::Lag::kRows;
      FORESAIL_CHECK(!rows_lag || inputs.sequences[s].row_count == 1, "{} rows",
                     inputs.sequences[s].row_count);
      if (!rows_lag) written(inputs.wanted_rows)[s] -= links.lag[s];
      move_up(inputs, s, row_lag + (rows_lag ? links.lag[s] : 0));
    }
  }

  void apply_carry(const PassInputs& inputs) {
    const PassCarry& carry = inputs.carry;
    FORESAIL_CHECK(inputs.draws.size() == inputs.positions.size() &&
                       carry.tokens.size() == inputs.positions.size(),
                   "{} draws and {} tokens for {} rows", inputs.draws.size(), carry.tokens.size(),
                   inputs.positions.size());
    for (size_t s = 0; s < inputs.sequences.size(); ++s) {
      const SequenceRows sequence = inputs.sequences[s];
      const int32_t lag = carry.lags[s] < 0 ? 0 : carry.from[carry.lags[s]];
      carry.row_lag[s] = lag;
      move_up(inputs, s, lag);
      for (int32_t i = 0; i < sequence.row_count; ++i) {
        const int32_t row = sequence.row_begin + i;
        written(inputs.draws)[row].position -= lag;
        if (carry.tokens[row] < 0) continue;
        const int32_t place = carry.tokens[row] - (i == 0 ? lag : 0);
        written(inputs.token_ids)[row] = without_mark(carry.from[place]);
        ++carried_rows_;
      }
    }
  }

  LateMemory memory_;
  int carried_rows_ = 0;
  int linked_passes_ = 0;
  int passes_to_failure_ = 0;
};

class DeviceLikeKernels : public DeviceLike<CpuKernels> {
 public:
  DeviceLikeKernels() : DeviceLike(select_isa("auto"), DType::kF32, threads(), nullptr) {}

 private:
  static ThreadPool& threads() {
    static ThreadPool pool(1);
    return pool;
  }
};

}  // namespace foresail
