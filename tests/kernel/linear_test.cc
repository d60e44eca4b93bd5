#include "kernel_fixture.h"

#include "base/error.h"

namespace foresail {
namespace {

class Linear : public KernelTest {};
FORESAIL_FOR_ALL_SETS(Linear);

struct Shape {
  int64_t rows, n_in, n_out;
};

// Odd K, N not a multiple of 16, one row, tile edges, more than one block of inputs or rows.
constexpr Shape kShapes[] = {{1, 1, 1},    {1, 64, 16},   {2, 63, 17},   {3, 129, 47},
                             {7, 32, 100}, {8, 257, 49},  {9, 128, 64},  {13, 2051, 33},
                             {17, 48, 15}, {1, 4099, 65}, {5, 2100, 18}, {270, 66, 35}};

// Sources of every type; bf16 sets round f32 and f16 sources once.
TEST_P(Linear, MatchesOracle) {
  PooledSet set(GetParam());
  for (const Shape& s : kShapes) {
    const Tensor x = Tensor(act(), s.rows, s.n_in, 3).randomize(1);
    Tensor source = Tensor(DType::kBF16, s.n_out, s.n_in, 5).randomize(2);
    const auto w = set->pack(source.as_weight());
    const auto w_ref = oracle()->pack(source.as_weight());
    std::vector<float> bias(static_cast<size_t>(s.n_out));
    for (size_t i = 0; i < bias.size(); ++i) bias[i] = static_cast<float>(i % 7) - 3.0f;
    for (const bool accumulate : {false, true}) {
      Tensor got = Tensor(DType::kF32, s.rows, s.n_out, 1).randomize(3);
      Tensor want = got;
      set->linear(x, *w, accumulate ? bias.data() : nullptr, 0.7f, accumulate, got);
      oracle()->linear(x, *w_ref, accumulate ? bias.data() : nullptr, 0.7f, accumulate, want);
      expect_close(got, want, 3e-6, GetParam().label() + " K " + std::to_string(s.n_in));
    }
  }
}

TEST_P(Linear, PacksEverySource) {
  PooledSet set(GetParam());
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16})
    for (const bool transposed : {false, true}) {
      const OddWeight source(dtype);
      const HostMatrix host = source.matrix(transposed);
      const auto w = set->pack(host);
      const auto w_ref = oracle()->pack(host);
      EXPECT_GE(w->size_bytes(), static_cast<uint64_t>(37 * 53) * size_bytes(act()));
      const Tensor x = Tensor(act(), 3, host.n_in).randomize(5);
      Tensor got(DType::kF32, 3, host.n_out);
      Tensor want = got;
      set->linear(x, *w, nullptr, 1.0f, false, got);
      oracle()->linear(x, *w_ref, nullptr, 1.0f, false, want);
      const bool rounded = is_bf16() && dtype != DType::kBF16;
      expect_close(got, want, rounded ? 4e-3 : 3e-6, std::string(dtype_name(dtype)));
    }
}

TEST_P(Linear, RowsDoNotDependOnTheBatch) {
  constexpr int kRows = 83;
  const Tensor source = Tensor(DType::kBF16, 83, 2301).randomize(6);
  const Tensor x = Tensor(act(), kRows, 2301).randomize(7);
  PooledSet one(GetParam(), 1);
  const auto w_one = one->pack(source.as_weight());
  Tensor all(DType::kF32, kRows, 83);
  one->linear(x, *w_one, nullptr, 1.0f, false, all);
  for (int threads = 1; threads <= 4; ++threads) {
    PooledSet set(GetParam(), threads);
    const auto w = set->pack(source.as_weight());
    for (int count : {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 23, 61, 64, 65, 83}) {
      std::vector<int> which = shuffled(kRows, static_cast<uint64_t>(threads * 100 + count));
      which.resize(static_cast<size_t>(count));
      Tensor some(DType::kF32, count, 83);
      set->linear(x.pick(which), *w, nullptr, 1.0f, false, some);
      for (int i = 0; i < count; ++i)
        expect_same_row(some, i, all, which[static_cast<size_t>(i)],
                        GetParam().label() + " count " + std::to_string(count));
    }
  }
}

// Unit vectors bring the stored weights back exactly: f32 ones in an f32 set, rounded ones in a
// bf16 set, since f32 rows are not rounded there.
TEST_P(Linear, UnitVectorsBringWeightsBack) {
  PooledSet set(GetParam());
  const Tensor source = Tensor(DType::kF32, 19, 21).randomize(8, 1e10f);
  const auto w = set->pack(source.as_weight());
  Tensor x(DType::kF32, 21, 21);
  x.fill(0.0f);
  for (int i = 0; i < 21; ++i) x.set(i, i, 1.0f);
  Tensor out(DType::kF32, 21, 19);
  set->linear(x, *w, nullptr, 1.0f, false, out);
  for (int i = 0; i < 21; ++i)
    for (int o = 0; o < 19; ++o)
      EXPECT_EQ(out.at(i, o), is_bf16() ? to_float(to_bf16(source.at(o, i))) : source.at(o, i));
}

TEST(CpuKernels, UnknownIsaNamesTheAvailable) {
  ThreadPool pool(1);
  try {
    create_cpu_kernels({DType::kBF16, "avx1024", &pool});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUsage);
    EXPECT_NE(std::string(error.what()).find("scalar"), std::string::npos) << error.what();
  }
  EXPECT_EQ(create_cpu_kernels({DType::kF32, "auto", &pool})->name(),
            "cpu-" + std::string(available_isas().front()));
  EXPECT_EQ(available_isas().back(), "scalar");
}

}  // namespace
}  // namespace foresail
