// Absorbed attention of the CUDA set beside the oracle: the general kernel and the one of sm90/.
#include <fmt/core.h>

#include "gpu_fixture.h"
#include "kernel/random_inputs.h"

namespace foresail {
namespace {

class GpuAttention : public testing::TestWithParam<bool> {
 protected:
  KernelSet& set() { return *set_; }
  // The kernel of sm90/ takes bf16 queries and gives bf16 rows.
  bool is_exact(const ScatteredCache& cache, int heads) {
    return set_->latent_query_dtype(cache.view(), heads) == DType::kF32;
  }
  Tensor attend(const Tensor& q, int heads, float scale, std::span<const SequenceRows> rows,
                const ScatteredCache& cache, const Tensor& out) {
    const Copy storage(set(), cache.storage());
    LatentCache device = cache.view();
    device.data = storage.view().data;
    return attend_in(device, q, heads, scale, rows, out);
  }
  // `device` lies in the memory of the set.
  Tensor attend_in(const LatentCache& device, const Tensor& q, int heads, float scale,
                   std::span<const SequenceRows> rows, const Tensor& out) {
    set().begin_pass({.positions = std::vector<int32_t>(static_cast<size_t>(q.rows())),
                      .sequences = rows,
                      .page_size = device.page_size});
    const Copy device_out(set(), out);
    set().latent_attention(Copy(set(), q), heads, scale, rows, device, device_out);
    Tensor result = out;
    return device_out.read(result);
  }

  void expect_latent(int heads, int latent, int rope, DType dtype, int page_size,
                     const std::vector<int>& lengths, const std::vector<int>& counts) {
    const auto ref = create_ref_kernels(DType::kBF16);
    const ScatteredCache cache(dtype, page_size, latent, rope, lengths);
    std::vector<SequenceRows> rows;
    int total = 0;
    for (size_t s = 0; s < lengths.size(); ++s) {
      rows.push_back({total, counts[s], lengths[s], cache.table(s)});
      total += counts[s];
    }
    const Tensor q = Tensor(DType::kF32, total, heads * (latent + rope), 2).randomize(3, 0.5f);
    Tensor want = Tensor(DType::kF32, total, heads * latent).fill(7.0f);
    ref->latent_attention(q, heads, 0.1f, rows, cache.view(), want);
    for (const DType act : {DType::kF32, DType::kBF16}) {
      const Tensor blank = Tensor(act, total, heads * latent).fill(7.0f);
      const Tensor got = attend(q, heads, 0.1f, rows, cache, blank);
      const bool bf16 = act == DType::kBF16 || !is_exact(cache, heads);
      expect_close(got, want, bf16 ? 1.5e-2 : 1e-5,
                   fmt::format("heads {} latent {} page {} {}", heads, latent, page_size,
                               dtype_name(dtype)));
    }
  }

 private:
  std::unique_ptr<KernelSet> set_ = create_cuda_kernels({.deterministic = GetParam()});
};
INSTANTIATE_TEST_SUITE_P(Kernels, GpuAttention, testing::Bool(),
                         [](const auto& test) { return test.param ? "deterministic" : "fastest"; });

TEST_P(GpuAttention, LatentMatchesOracle) {
  const int geometries[][3] = {{16, 512, 64}, {4, 512, 64},  {128, 512, 64}, {20, 512, 64},
                               {5, 256, 64},  {40, 256, 32}, {1, 32, 16},    {3, 33, 6}};
  for (const auto& [heads, latent, rope] : geometries)
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF8E4M3})
      for (const int page_size : {1, 16, 32, 64}) {
        if (heads >= 16 && page_size != 64 && page_size != 16) continue;  // time
        const bool with_long = page_size == 64 && heads < 20;
        // One decode row, whole prompt, two rows, padding, five rows of a long one, more rows than
        // one call of the tensor-core kernel takes.
        expect_latent(heads, latent, rope, dtype, page_size,
                      {1, page_size, page_size + 1, 0, 150, with_long ? 600 : 7},
                      {1, std::min(page_size, 9), 1, 2, 5, with_long ? 70 : 2});
      }
}

// Little enough to be run under compute-sanitizer: each kernel, over several blocks.
TEST_P(GpuAttention, FewKeys) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF8E4M3}) {
    expect_latent(16, 512, 64, dtype, 64, {70, 0, 131}, {1, 1, 2});
    expect_latent(16, 512, 64, dtype, 64, {130}, {4});
    expect_latent(3, 33, 6, dtype, 16, {17, 140}, {2, 1});
  }
}

// One set, calls of changing shapes: what one call leaves behind in the scratch must not disturb
// another.
TEST_P(GpuAttention, ShapesTakeTurns) {
  const auto ref = create_ref_kernels(DType::kBF16);
  std::vector<int> lengths;
  for (int i = 0; i < 96; ++i) lengths.push_back(40 + 5 * i);
  const ScatteredCache cache(DType::kBF16, 64, 512, 64, lengths);
  for (const auto& [batch, q_len] :
       {std::pair{1, 1}, {96, 1}, {1, 4}, {96, 3}, {2, 40}, {64, 1}, {96, 1}, {5, 2}}) {
    std::vector<SequenceRows> rows;
    for (int s = 0; s < batch; ++s)
      rows.push_back(
          {s * q_len, q_len, lengths[static_cast<size_t>(s)], cache.table(static_cast<size_t>(s))});
    const Tensor q = Tensor(DType::kF32, batch * q_len, 4 * 576).randomize(3, 0.5f);
    Tensor want(DType::kBF16, batch * q_len, 4 * 512);
    const Tensor got = attend(q, 4, 0.1f, rows, cache, want);
    ref->latent_attention(q, 4, 0.1f, rows, cache.view(), want);
    expect_close(got, want, 1.5e-2, fmt::format("batch {} q_len {}", batch, q_len));
  }
}

// A prefill row at position p equals a decode row with kv_end = p + 1, beside any neighbour.
TEST_P(GpuAttention, LatentRowsEqualDecodeRows) {
  if (!GetParam()) GTEST_SKIP() << "the tensor-core kernel cuts keys over the whole batch";
  constexpr int kLength = 1200;
  struct Form {
    DType dtype;
    int latent, rope;
  };
  for (const Form& form :
       {Form{DType::kBF16, 128, 32}, Form{DType::kBF16, 512, 64}, Form{DType::kF8E4M3, 512, 64}}) {
    const ScatteredCache cache(form.dtype, 64, form.latent, form.rope, {kLength, 70});
    const Tensor q = Tensor(DType::kF32, kLength, 5 * (form.latent + form.rope)).randomize(4);
    const SequenceRows whole[] = {{0, kLength, kLength, cache.table(0)}};
    const Tensor blank(DType::kF32, kLength, 5 * form.latent);
    const Tensor all = attend(q, 5, 0.1f, whole, cache, blank);
    for (int p : {0, 63, 64, 511, 512, 513, 1023, 1024, 1199}) {
      const SequenceRows rows[] = {{0, 1, 70, cache.table(1)}, {1, 1, p + 1, cache.table(0)}};
      const Tensor out =
          attend(q.pick({7, p}), 5, 0.1f, rows, cache, Tensor(DType::kF32, 2, 5 * form.latent));
      expect_same_row(
          out, 1, all, p,
          fmt::format("{} latent {} decode at {}", dtype_name(form.dtype), form.latent, p));
    }
  }
}

// A key that is no number, as the set stores it, reaches the rows that see it, and none of those
// beside them that do not.
TEST_P(GpuAttention, RowsAreSpoiltByKeysTheySee) {
  constexpr int kRows = 4;
  const int geometries[][3] = {{16, 512, 64}, {4, 512, 64}, {40, 512, 64}, {5, 64, 16}};
  for (const auto& [heads, latent, rope] : geometries)
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF8E4M3})
      for (const int known : {1, 2, 31, 63, 64, 65, 513}) {
        SCOPED_TRACE(
            fmt::format("heads {} latent {} {} keys {}", heads, latent, dtype_name(dtype), known));
        const ScatteredCache cache(dtype, 64, latent, rope, {known});
        const Copy storage(set(), cache.storage());
        LatentCache device = cache.view();
        device.data = storage.view().data;
        Tensor kv = Tensor(DType::kF32, kRows - 1, latent + rope).randomize(8);
        std::vector<int32_t> positions, slots;
        for (int i = 0; i < kRows - 1; ++i) {
          kv.set(i, 3 * i, std::numeric_limits<float>::quiet_NaN());
          positions.push_back(i);
          slots.push_back(static_cast<int32_t>(cache.slot(0, known + i)));
        }
        const Tensor turns = Tensor(DType::kF32, kRows, rope / 2).randomize(9);
        const Tensor ones = Tensor(DType::kF32, 1, latent).fill(1.0f);
        const Copy device_turns(set(), turns), device_ones(set(), ones);
        set().begin_pass({.positions = positions, .slots = slots, .page_size = 64});
        set().store_latent(
            Copy(set(), kv), device_ones.f32(), 1e-6f,
            {device_turns.f32(), device_turns.f32(), rope, RopeLayout::kAdjacentPairs}, positions,
            slots, device);

        const Tensor q = Tensor(DType::kF32, kRows, heads * (latent + rope)).randomize(5, 0.5f);
        const SequenceRows one[] = {{0, 1, known, cache.table(0)}};
        const SequenceRows all[] = {{0, kRows, known + kRows - 1, cache.table(0)}};
        const Tensor alone = attend_in(device, q.pick({0}), heads, 0.1f, one,
                                       Tensor(DType::kF32, 1, heads * latent));
        const Tensor got =
            attend_in(device, q, heads, 0.1f, all, Tensor(DType::kF32, kRows, heads * latent));
        if (GetParam())
          expect_same_row(got, 0, alone, 0, "row before");
        else
          expect_close(got.pick({0}), alone, 1.5e-2, "row before");
        int64_t numbers = 0;
        for (int row = 1; row < kRows; ++row)
          for (int64_t i = 0; i < got.cols(); ++i) numbers += !std::isnan(got.at(row, i));
        EXPECT_EQ(numbers, 0);
      }
}

// T20, T21: pages beyond 2^31 and 2^32 bytes, and table entries past the length that lead nowhere.
TEST_P(GpuAttention, PoolsBeyondFourGibibytes) {
  constexpr int kHeads = 4, kLatent = 512, kRope = 64, kWidth = kLatent + kRope, kPage = 64;
  const int64_t page_bytes = int64_t{kPage} * kWidth * 2;
  const int64_t page_count = (int64_t{9} << 30) / page_bytes;
  const int length = 7 * kPage;
  const ScatteredCache near(DType::kBF16, kPage, kLatent, kRope, {length});
  const Buffer pool(static_cast<size_t>(page_count * page_bytes), set().memory());
  std::vector<int32_t> entries;
  for (const int64_t gib : {8, 0, 4, 2, 6, 1, 3}) {
    const auto page = static_cast<int32_t>((gib << 30) / page_bytes + 1);
    const std::byte* from = static_cast<const std::byte*>(near.view().data) +
                            near.table(0)[entries.size()] * page_bytes;
    set().memory().upload(pool.data() + page * page_bytes, from, page_bytes);
    entries.push_back(page);
  }
  entries.insert(entries.end(), 8, INT32_MAX);
  LatentCache far = near.view();
  far.data = pool.data();
  far.page_count = page_count;
  const Tensor q = Tensor(DType::kF32, 3, kHeads * kWidth).randomize(6, 0.5f);
  const SequenceRows near_batch[] = {{0, 3, length, near.table(0)}};
  const SequenceRows far_batch[] = {{0, 3, length, entries.data()}};
  const Tensor blank(DType::kF32, 3, kHeads * kLatent);
  const Tensor want = attend(q, kHeads, 0.1f, near_batch, near, blank);
  const Tensor got = attend_in(far, q, kHeads, 0.1f, far_batch, blank);
  for (int row = 0; row < 3; ++row) expect_same_row(got, row, want, row, "far pages");
}

}  // namespace
}  // namespace foresail
