// Stand-alone check and microbenchmark of the MLA decode kernel.
// Times the shapes of the peer table with at most 64 rows and checks each, unless flags say else.
// Cold caches: the calls of one graph use different pages, 150 MB apart before a page is read
// again.
#include <cuda_runtime.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "apps/flag_checks.h"
#include "apps/program.h"
#include "kernels/cuda/sm90/mla_decode.h"
#include "mla_decode_peers.h"
#include "mla_reference.cuh"

namespace foresail::bench {
namespace {

#define CUDA_CHECK(call) check_cuda(call, #call)

void check_cuda(cudaError_t error, const char* call) {
  if (error != cudaSuccess)
    throw_device_error(std::string(call) + ": " + cudaGetErrorString(error));
}

constexpr double kColdBytes = 150e6;  // 2.5 x the 60 MB of L2
constexpr double kRelativeErrorBar = 2.5e-3;
constexpr double kCodeRelativeErrorBar = 1.5e-2;
constexpr float kCodeScale = 0.045f;        // of an e4m3 cache with values of variance 1
constexpr double kBytesPerSecond = 4.3e12;  // measured copy rate, read + write
constexpr double kFlopsPerSecond = 790e12;  // measured bf16 product of random matrices

template <typename T>
struct DeviceArray {
  T* data = nullptr;
  size_t count = 0;
  DeviceArray() = default;
  explicit DeviceArray(size_t n) : count(n) {
    CUDA_CHECK(cudaMalloc(&data, std::max<size_t>(n, 1) * sizeof(T)));
  }
  explicit DeviceArray(const std::vector<T>& host) : DeviceArray(host.size()) {
    CUDA_CHECK(cudaMemcpy(data, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice));
  }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  ~DeviceArray() { cudaFree(data); }
  std::vector<T> host() const {
    std::vector<T> values(count);
    CUDA_CHECK(cudaMemcpy(values.data(), data, count * sizeof(T), cudaMemcpyDeviceToHost));
    return values;
  }
};

struct Shape {
  int heads = 16;
  int q_len = 1;
  int page = 64;
  std::vector<int> key_lens;  // per request
  int kv_end_add = 0;
  bool codes = false;   // an e4m3 cache
  int max_blocks = 0;   // 0: as many as the device runs
  bool rising = false;  // scores rise from zero on, far enough that references of rows must move

  int key_bytes() const { return codes ? 576 : 1152; }
  double error_bar() const { return codes ? kCodeRelativeErrorBar : kRelativeErrorBar; }
};

struct Options {
  bool check_only = false, tiny = false, sweep = false, all_rows = false, quick = false;
  bool bars = false, codes = false;
  int unit = 0, from_rows = 0, most_rows = 1 << 20, nth = -1;
  std::string csv;
};

cuda::MlaLaunch launch_mode = cuda::MlaLaunch::kCooperative;
bool fixed_cut = false;

// One shape with its pages, tables (one per replica), queries and outputs on the device.
class Case {
 public:
  Case(const Shape& shape, bool cold) : shape_(shape) {
    const int batch = static_cast<int>(shape.key_lens.size());
    size_t pages_a_replica = 0;
    for (int key_len : shape.key_lens) {
      const int pages = (key_len + shape.page - 1) / shape.page;
      max_pages_ = std::max(max_pages_, pages);
      pages_a_replica += pages;
      keys_ += key_len;
    }
    bytes_ = keys_ * shape.key_bytes();
    if (cold)
      replicas_ = std::max(1, static_cast<int>(std::ceil(kColdBytes / std::max(bytes_, 1e6))));
    num_pages_ = static_cast<int>(pages_a_replica * replicas_ + 3);
    std::mt19937 random(shape.heads * 131 + shape.q_len * 17 + batch + shape.page);
    std::vector<int> order(num_pages_);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random);
    // Entries past a request's pages point far outside of the pool.
    std::vector<int> tables(size_t(replicas_) * batch * max_pages_, 0x40000000);
    std::vector<int2> poison, pieces;
    size_t used = 0;
    for (int replica = 0; replica < replicas_; ++replica) {
      for (int request = 0; request < batch; ++request) {
        const int key_len = shape.key_lens[request];
        for (int at = 0; at * shape.page < key_len; ++at) {
          const int page = order[used++];
          tables[(size_t(replica) * batch + request) * max_pages_ + at] = page;
          const int valid = std::min(shape.page, key_len - at * shape.page);
          if (valid < shape.page) {
            poison.push_back({page * shape.page + valid, shape.page - valid});
          }
          for (int first = 0; first < valid; first += 16) {
            pieces.push_back({page * shape.page + first, std::min(16, valid - first)});
          }
        }
      }
    }
    for (; used < order.size(); ++used) poison.push_back({order[used] * shape.page, shape.page});
    pieces_a_replica_ = static_cast<int>(pieces.size() / replicas_);
    pool_ = new DeviceArray<uint8_t>(size_t(num_pages_) * shape.page * shape.key_bytes());
    DeviceArray<int2> ranges(poison);
    with_pool([&](auto* pool) {
      fill_normal<<<4096, 256>>>(pool, pool_->count / sizeof *pool, 1, cache_scale());
      poison_rows<<<int(poison.size()), 256>>>(pool, ranges.data);
    });
    pieces_ = new DeviceArray<int2>(pieces);
    if (shape.rising) {
      with_pool([&](auto* pool) {
        raise_rows<<<int(pieces.size()), 256>>>(pool, pieces_->data, int(pieces.size()));
      });
    }
    const size_t rows = size_t(batch) * shape.heads * shape.q_len;
    query_ = new DeviceArray<__nv_bfloat16>(rows * 576);
    fill_normal<<<256, 256>>>(query_->data, query_->count, 2, shape.rising ? 0.25f : 1.f);
    output_ = new DeviceArray<__nv_bfloat16>(rows * 512);
    lse_ = new DeviceArray<float>(rows);
    table_ = new DeviceArray<int>(tables);
    kv_end_ = new DeviceArray<int>(shape.key_lens);
    std::vector<int> lagging = shape.key_lens;  // what a draft loop would still have on the device
    for (int& value : lagging) value -= shape.kv_end_add;
    lagging_ = new DeviceArray<int>(lagging);
    CUDA_CHECK(cudaDeviceSynchronize());
    workspace_ = new DeviceArray<uint8_t>(cuda::mla_decode_workspace_bytes(params(0, 0)));
    CUDA_CHECK(cudaMemset(workspace_->data, 0, workspace_->count));
  }
  ~Case() {
    delete pool_;
    delete query_;
    delete output_;
    delete lse_;
    delete table_;
    delete pieces_;
    delete kv_end_;
    delete lagging_;
    delete workspace_;
  }
  Case(const Case&) = delete;
  Case& operator=(const Case&) = delete;

  cuda::MlaDecodeParams params(int replica, int unit) const {
    cuda::MlaDecodeParams p;
    const int batch = static_cast<int>(shape_.key_lens.size());
    p.batch = batch;
    p.q_len = shape_.q_len;
    p.num_heads = shape_.heads;
    p.page_size = shape_.page;
    p.num_pages = num_pages_;
    p.max_pages = std::max(max_pages_, 1);
    p.query = query_->data;
    p.cache = pool_->data;
    p.cache_type = shape_.codes ? cuda::MlaCacheType::kE4m3 : cuda::MlaCacheType::kBf16;
    p.cache_scale = cache_scale();
    p.block_table = table_->data + size_t(replica) * batch * max_pages_;
    p.kv_end = lagging_->data;
    p.kv_end_add = shape_.kv_end_add;
    p.softmax_scale = scale();
    p.output = output_->data;
    p.lse = lse_->data;
    p.workspace = workspace_ ? workspace_->data : nullptr;
    p.workspace_bytes = workspace_ ? workspace_->count : 0;
    p.unit_tokens = unit;
    p.fixed_cut = fixed_cut;
    p.launch = launch_mode;
    p.max_blocks = shape_.max_blocks;
    return p;
  }
  static float scale() { return 1.f / std::sqrt(192.f); }

  void launch(cudaStream_t stream, int replica, int unit) const {
    launch(stream, params(replica, unit));
  }
  static void launch(cudaStream_t stream, const cuda::MlaDecodeParams& params) {
    const cuda::MlaDecodeStatus status = cuda::mla_decode(stream, params);
    if (status != cuda::MlaDecodeStatus::kOk)
      throw_device_error(std::string("mla_decode: ") + cuda::to_string(status) + " (" +
                         cudaGetErrorString(cudaGetLastError()) + ")");
  }

  // ||out - ref|| / ||ref|| over sampled rows; infinity when a value is not finite or lse is off.
  double relative_error(int unit, int max_rows, int repeats) {
    const int rows = shape_.heads * shape_.q_len;
    const int batch = static_cast<int>(shape_.key_lens.size());
    std::vector<ReferenceRow> samples;
    const int total = rows * batch;
    if (total <= max_rows) {
      for (int i = 0; i < total; ++i) samples.push_back({i / rows, i % rows});
    } else {
      std::mt19937 random(5);
      for (int i = 0; i < max_rows; ++i) {
        const int pick = i == 0 ? 0 : i == 1 ? total - 1 : int(random() % total);
        samples.push_back({pick / rows, pick % rows});
      }
    }
    DeviceArray<ReferenceRow> sample_array(samples);
    DeviceArray<float> reference(samples.size() * 512), reference_lse(samples.size());
    const int replica = replicas_ - 1;
    with_pool([&](auto* pool) {
      mla_reference<<<int(samples.size()), 512>>>(
          query_->data, pool, cache_scale(), table_->data + size_t(replica) * batch * max_pages_,
          kv_end_->data, sample_array.data, reference.data, reference_lse.data, max_pages_,
          shape_.page, shape_.q_len, shape_.heads, scale());
    });
    CUDA_CHECK(cudaDeviceSynchronize());
    const std::vector<float> expected = reference.host(), expected_lse = reference_lse.host();
    double worst = 0.0;
    for (int repeat = 0; repeat < repeats; ++repeat) {
      CUDA_CHECK(cudaMemset(output_->data, 0xff, output_->count * 2));
      CUDA_CHECK(cudaMemset(lse_->data, 0xff, lse_->count * 4));
      launch(nullptr, replica, unit);
      CUDA_CHECK(cudaDeviceSynchronize());
      const std::vector<__nv_bfloat16> out = output_->host();
      const std::vector<float> lse = lse_->host();
      for (__nv_bfloat16 value : out) {
        if (!std::isfinite(__bfloat162float(value))) return INFINITY;
      }
      double difference = 0.0, norm = 0.0;
      for (size_t i = 0; i < samples.size(); ++i) {
        const size_t row = size_t(samples[i].request) * rows + samples[i].row;
        for (int d = 0; d < 512; ++d) {
          const double want = expected[i * 512 + d];
          const double gap = __bfloat162float(out[row * 512 + d]) - want;
          difference += gap * gap;
          norm += want * want;
        }
        const float want = expected_lse[i];
        const bool both_empty =
            std::isinf(want) && want < 0 && std::isinf(lse[row]) && lse[row] < 0;
        if (!both_empty && !(std::fabs(lse[row] - want) <= 2e-3f * (1.f + std::fabs(want)))) {
          return INFINITY;
        }
      }
      worst = std::max(worst, norm > 0 ? std::sqrt(difference / norm) : std::sqrt(difference));
    }
    return worst;
  }

  // Query tokens whose output in a call of their own is not that of the whole batch, bit for bit.
  int tokens_that_differ() const {
    const int batch = static_cast<int>(shape_.key_lens.size());
    const size_t token_rows = shape_.heads;
    launch(nullptr, 0, 0);
    CUDA_CHECK(cudaDeviceSynchronize());
    const std::vector<__nv_bfloat16> all = output_->host();
    const std::vector<float> all_lse = lse_->host();
    int differ = 0;
    for (int request = 0; request < batch; ++request) {
      for (int token = 0; token < shape_.q_len; ++token) {
        const size_t row = (size_t(request) * shape_.q_len + token) * token_rows;
        DeviceArray<int> slot(std::vector<int>{request});
        DeviceArray<int> end(
            std::vector<int>{shape_.key_lens[request] - (shape_.q_len - 1 - token)});
        cuda::MlaDecodeParams p = params(0, 0);
        p.batch = 1;
        p.q_len = 1;
        p.query = query_->data + row * 576;
        p.slots = slot.data;
        p.kv_end = end.data;
        p.kv_end_add = 0;
        p.output = output_->data + row * 512;
        p.lse = lse_->data + row;
        CUDA_CHECK(cudaMemset(p.output, 0xff, token_rows * 512 * 2));
        launch(nullptr, p);
        CUDA_CHECK(cudaDeviceSynchronize());
        const std::vector<__nv_bfloat16> alone = output_->host();
        const std::vector<float> lse = lse_->host();
        if (std::memcmp(&all[row * 512], &alone[row * 512], token_rows * 512 * 2) != 0 ||
            std::memcmp(&all_lse[row], &lse[row], token_rows * 4) != 0) {
          ++differ;
        }
      }
    }
    return differ;
  }

  struct Timing {
    double us = 0, spread = 0, stream_us = 0;
  };

  // Median over graph replays, ours and the stream floor in turn.
  Timing time(int unit, int replays) const {
    const int nodes = std::max(replicas_, bytes_ > 3e8 ? 4 : 8);
    cudaStream_t stream;
    CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    cudaGraphExec_t ours = record(stream, [&] {
      for (int i = 0; i < nodes; ++i) launch(stream, i % replicas_, unit);
    });
    const int blocks = std::min(pieces_a_replica_, 132 * 6);
    cudaGraphExec_t floor = record(stream, [&] {
      for (int i = 0; i < nodes; ++i) {
        (shape_.codes ? kvread<36> : kvread<72>)<<<blocks, 288, 0, stream>>>(
            reinterpret_cast<const uint4*>(pool_->data),
            pieces_->data + size_t(i % replicas_) * pieces_a_replica_, pieces_a_replica_,
            reinterpret_cast<uint4*>(output_->data));
      }
    });
    std::vector<double> times, floors;
    cudaEvent_t begin, middle, end;
    CUDA_CHECK(cudaEventCreate(&begin));
    CUDA_CHECK(cudaEventCreate(&middle));
    CUDA_CHECK(cudaEventCreate(&end));
    for (int i = 0; i < replays + 2; ++i) {
      CUDA_CHECK(cudaEventRecord(begin, stream));
      CUDA_CHECK(cudaGraphLaunch(ours, stream));
      CUDA_CHECK(cudaEventRecord(middle, stream));
      CUDA_CHECK(cudaGraphLaunch(floor, stream));
      CUDA_CHECK(cudaEventRecord(end, stream));
      CUDA_CHECK(cudaEventSynchronize(end));
      float a = 0, b = 0;
      CUDA_CHECK(cudaEventElapsedTime(&a, begin, middle));
      CUDA_CHECK(cudaEventElapsedTime(&b, middle, end));
      if (i >= 2) {
        times.push_back(a * 1e3 / nodes);
        floors.push_back(b * 1e3 / nodes);
      }
    }
    CUDA_CHECK(cudaEventDestroy(begin));
    CUDA_CHECK(cudaEventDestroy(middle));
    CUDA_CHECK(cudaEventDestroy(end));
    CUDA_CHECK(cudaGraphExecDestroy(ours));
    CUDA_CHECK(cudaGraphExecDestroy(floor));
    CUDA_CHECK(cudaStreamDestroy(stream));
    std::sort(times.begin(), times.end());
    std::sort(floors.begin(), floors.end());
    Timing timing;
    timing.us = times[times.size() / 2];
    timing.stream_us = floors[floors.size() / 2];
    timing.spread = (times[times.size() * 9 / 10] - times[times.size() / 10]) / timing.us;
    return timing;
  }

  double floor_us() const {
    const double rows = double(shape_.key_lens.size()) * shape_.heads * shape_.q_len;
    const double io = bytes_ + rows * (576 + 512) * 2;
    return 1e6 * std::max(io / kBytesPerSecond, flops() / kFlopsPerSecond);
  }
  double flops() const { return 2.0 * keys_ * shape_.heads * shape_.q_len * 1088; }
  double bytes() const { return bytes_; }

 private:
  float cache_scale() const { return shape_.codes ? kCodeScale : 1.f; }

  template <typename Body>
  void with_pool(Body body) const {
    if (shape_.codes) {
      body(reinterpret_cast<__nv_fp8_e4m3*>(pool_->data));
    } else {
      body(reinterpret_cast<__nv_bfloat16*>(pool_->data));
    }
  }

  template <typename Body>
  static cudaGraphExec_t record(cudaStream_t stream, Body body) {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    body();
    CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
    CUDA_CHECK(cudaGraphInstantiate(&exec, graph, 0));
    CUDA_CHECK(cudaGraphDestroy(graph));
    return exec;
  }

  Shape shape_;
  int replicas_ = 1;
  int max_pages_ = 0, num_pages_ = 0, pieces_a_replica_ = 0;
  double keys_ = 0, bytes_ = 0;
  DeviceArray<uint8_t>* pool_ = nullptr;
  DeviceArray<__nv_bfloat16>*query_ = nullptr, *output_ = nullptr;
  DeviceArray<float>* lse_ = nullptr;
  DeviceArray<int>*table_ = nullptr, *kv_end_ = nullptr, *lagging_ = nullptr;
  DeviceArray<int2>* pieces_ = nullptr;
  DeviceArray<uint8_t>* workspace_ = nullptr;
};

std::string name_of(const Shape& shape) {
  char text[96];
  std::snprintf(text, sizeof text, "b%zu h%d q%d len%d page%d%s", shape.key_lens.size(),
                shape.heads, shape.q_len,
                *std::max_element(shape.key_lens.begin(), shape.key_lens.end()), shape.page,
                shape.codes ? " e4m3" : "");
  return text;
}

int run_checks(std::vector<Shape> shapes, const Options& options, const std::vector<int>& units,
               int repeats) {
  int failed = 0, done = 0;
  double worst = 0;
  for (Shape& shape : shapes) {
    const int rows = shape.heads * shape.q_len;
    if (rows < options.from_rows || rows > options.most_rows) continue;
    shape.codes = options.codes;
    Case one(shape, false);
    for (int unit : units) {
      const double error = one.relative_error(unit, 1024, repeats);
      if (failed >= 12) break;
      ++done;
      if (error <= shape.error_bar()) {
        worst = std::max(worst, error);
        continue;
      }
      if (++failed <= 12) {
        std::printf("FAIL %s unit %d: relative error %g\n", name_of(shape).c_str(), unit, error);
      }
    }
  }
  std::printf("check: %d cases, %d failed, worst relative error %.3g\n", done, failed, worst);
  return failed;
}

std::vector<Shape> check_grid() {
  std::vector<Shape> shapes;
  const std::vector<int> mixed = {0, 1, 63, 64, 65, 1000, 8192, 2, 15, 16, 17, 300};
  for (int heads : {1, 5, 8, 16, 20, 40, 64, 128}) {
    for (int q_len : {1, 2, 3, 4, 8}) {
      for (int page : {16, 32, 64}) shapes.push_back({heads, q_len, page, mixed});
    }
  }
  for (int page : {1, 2, 8, 16, 32, 64, 128}) {
    for (int key_len : {0, 1, page - 1, page, page + 1, 1000, 8192}) {
      if (page < 16 && (key_len < 1 || key_len == 8192)) continue;
      shapes.push_back({16, 1, page, {key_len}});
      shapes.push_back({16, 4, page, {key_len}, 3});
      shapes.push_back({16, 1, page, std::vector<int>(33, key_len)});
    }
  }
  shapes.push_back({16, 4, 64, {4641, 45118, 1730, 1696}});
  shapes.push_back({16, 2, 64, std::vector<int>(300, 37)});
  // Shares long enough for tiles that are claimed, cut within and at the ends of requests.
  shapes.push_back({16, 1, 64, {81920, 81920}});
  shapes.push_back({16, 4, 64, {81000, 40001, 7, 33000}});
  shapes.push_back({20, 1, 16, {130, 60001, 64, 40000, 90000}});
  shapes.push_back({8, 1, 64, {90000}});
  for (int max_blocks : {1, 2, 5, 11}) {
    for (int rows : {1, 2, 4}) shapes.push_back({16, rows, 64, mixed, 0, false, max_blocks});
    shapes.push_back({16, 4, 32, {3000, 3000, 3000}, 2, false, max_blocks});
    shapes.push_back({16, 1, 16, {5000, 4100}, 0, false, max_blocks});
  }
  shapes.push_back({16, 3, 32, std::vector<int>(8, 30001), 3});
  shapes.push_back({64, 3, 64, std::vector<int>(40, 300)});
  for (int heads : {16, 64}) {
    for (int q_len : {1, 2, 3, 4}) shapes.push_back({heads, q_len, 64, {8192}, 0, false, 1, true});
    shapes.push_back({heads, 4, 64, {40000}, 0, false, 0, true});
  }
  return shapes;
}

int check_fixed_cut(bool codes) {
  int differ = 0, tokens = 0;
  for (int heads : {1, 5, 16, 40, 128}) {
    for (int q_len : {1, 3, 4}) {
      Case one(
          {heads, q_len, 64, {4, 63, 64, 65, 255, 256, 257, 1000, 8192, 9001, 20000}, 0, codes},
          false);
      tokens += 11 * q_len;
      differ += one.tokens_that_differ();
    }
  }
  std::printf("fixed cut: %d of %d query tokens differ from a call of their own\n", differ, tokens);
  return differ;
}

std::span<const MlaPeer> peers(bool codes) {
  if (codes) return kMlaCodePeers;
  return kMlaPeers;
}

void print_row(FILE* csv, const Shape& shape, const Case& one, const Case::Timing& t, double error,
               int unit) {
  const int key_len = *std::max_element(shape.key_lens.begin(), shape.key_lens.end());
  const bool mixed = *std::min_element(shape.key_lens.begin(), shape.key_lens.end()) != key_len;
  const int batch = static_cast<int>(shape.key_lens.size());
  const char* peer = "-";
  double peer_us = 0;
  if (mixed && !shape.codes) {
    peer = "best";
    peer_us = kMlaMixedPeerUs;
  }
  for (const MlaPeer& p : peers(shape.codes)) {
    if (!mixed && p.batch == batch && p.num_heads == shape.heads && p.q_len == shape.q_len &&
        p.key_len == key_len && p.page_size == shape.page) {
      peer = p.name;
      peer_us = p.us;
    }
  }
  std::printf(
      "%3d %3d %2d %6d%s %3d u%-3d %8.2f us  %5.3fx %-10s stream %8.2f  %5.1f%%  err %.2e  "
      "+-%.1f%%\n",
      batch, shape.heads, shape.q_len, key_len, mixed ? "m" : " ", shape.page, unit, t.us,
      peer_us / t.us, peer, t.stream_us, 100 * t.stream_us / t.us, error, 50 * t.spread);
  if (csv == nullptr) return;
  const auto line = [&](const char* who, double us, double relerr) {
    std::fprintf(
        csv, "%s,%d,%d,%d,%d%s,%d,%.3f,0.000,0.000,%.3f,%.4f,%.1f,%.1f,%.3e,%s,%.3f,%.3f,%.3f\n",
        who, batch, shape.heads, shape.q_len, key_len, mixed ? "m" : "", shape.page, us,
        one.floor_us(), one.floor_us() / us, one.bytes() / us * 1e-3, one.flops() / us * 1e-6,
        relerr, peer, peer_us, peer_us / us, t.stream_us / us);
  };
  line(shape.codes ? "kvread_fp8" : "kvread", t.stream_us, -1.0);
  line(shape.codes ? "foresail_fp8" : "foresail", t.us, error);
}

// The target list's shapes.
bool is_bar(const MlaPeer& p) {
  if (p.page_size != 64) return false;
  if (p.key_len == 81920) {
    if (p.num_heads == 16) return p.q_len == 4 || p.batch == 1 || p.batch == 2 || p.batch == 32;
    return p.num_heads == 128 && p.q_len == 4 && p.batch == 32;
  }
  if (p.key_len == 1024) return p.num_heads == 16 && p.q_len == 1;
  if (p.num_heads == 16) return true;
  if (p.batch != 32) return false;
  return p.num_heads == 64 || p.q_len == 1;
}

void require_gpu() {
  const cudaError_t error = cudaFree(nullptr);
  if (error != cudaSuccess)
    throw_device_error(std::string("no usable GPU: ") + cudaGetErrorString(error));
}

int run_bench(const Options& options) {
  std::vector<Shape> shapes;
  for (const MlaPeer& p : peers(options.codes)) {
    const int rows = p.num_heads * p.q_len;
    if (p.page_size < 16 || (rows > 64 && !options.all_rows && !options.bars)) continue;
    if (options.sweep && (p.batch > 4 || p.page_size != 64)) continue;
    if (options.quick && p.page_size != 64) continue;
    if (options.bars && !is_bar(p)) continue;
    if (rows < options.from_rows || rows > options.most_rows) continue;
    shapes.push_back({p.num_heads, p.q_len, p.page_size, std::vector<int>(p.batch, p.key_len), 0,
                      options.codes});
  }
  shapes.push_back({16, 4, 64, {4641, 45118, 1730, 1696}, 0, options.codes});
  if (options.nth >= static_cast<int>(shapes.size()))
    throw_usage_error("--nth: there are " + std::to_string(shapes.size()) + " shapes");
  if (options.nth >= 0) shapes = {Shape(shapes[options.nth])};
  FILE* csv = options.csv.empty() ? nullptr : std::fopen(options.csv.c_str(), "w");
  if (!csv && !options.csv.empty())
    throw_usage_error("cannot write " + options.csv + ": " + std::strerror(errno));
  require_gpu();
  if (csv) {
    std::fprintf(csv,
                 "peer,b,h,q,ctx,page,us_per_layer,meta_us,plan_host_us,floor_us,"
                 "floor_over_time,GBps,TFLOPs,relerr,best_peer,best_peer_us,ratio,"
                 "stream_over_time\n");
  }
  int failed = 0;
  std::printf("  b   h  q    ctx page unit\n");
  for (const Shape& shape : shapes) {
    Case one(shape, true);
    const std::vector<int> units =
        options.sweep ? std::vector<int>{16, 32, 64, 128, 256} : std::vector<int>{options.unit};
    for (int unit : units) {
      const double error = one.relative_error(unit, 64, 1);
      if (!(error <= shape.error_bar())) ++failed;
      print_row(csv, shape, one, one.time(unit, options.sweep ? 11 : 25), error, unit);
    }
    std::fflush(stdout);
  }
  if (csv) std::fclose(csv);
  return failed;
}

// How much was wrong.
int run(const Options& options) {
  if (!options.tiny && !options.check_only) return run_bench(options);
  require_gpu();
  if (options.tiny) {
    const std::vector<int> lens = {0, 1, 17, 64, 130, 65};
    return run_checks({{5, 1, 16, lens},
                       {16, 1, 64, lens},
                       {16, 2, 32, lens},
                       {16, 3, 64, lens},
                       {16, 4, 64, lens},
                       {20, 4, 64, {33}, 2},
                       {48, 3, 64, {130, 17}},
                       {16, 1, 64, {700}},
                       {16, 1, 64, {2100, 700}, 0, false, 4},
                       {16, 4, 64, {1500, 40, 900}, 0, false, 4}},
                      options, {0, 16, 64}, 1);
  }
  if (fixed_cut) return run_checks(check_grid(), options, {0}, 2) + check_fixed_cut(options.codes);
  return run_checks(check_grid(), options, {0, 16, 32, 64, 128}, 2);
}

void add_flags(Command& command, Options& options) {
  command.add_flag("--quick", options.quick, "pages of 64 only");
  command.add_flag("--bars", options.bars, "the shapes of the target list only, of any rows");
  command.add_flag("--check", options.check_only, "correctness only, a wide grid of small shapes");
  command.add_flag("--tiny", options.tiny, "a few very small checks, for compute-sanitizer");
  command.add_flag("--sweep", options.sweep, "each small-batch shape at several unit sizes");
  command.add_flag("--fp8", options.codes, "an e4m3 cache");
  command.add_flag("--all-rows", options.all_rows, "time shapes above 64 rows too");
  command.add_flag("--fixed-cut", fixed_cut,
                   "with --check also: bits of every row are those of a call with nothing but it");
  command.add_flag_callback(
      "--plain-launch", [] { launch_mode = cuda::MlaLaunch::kPlain; },
      "blocks that do not wait for each other");
  command.add_flag_callback(
      "--overlapped-launch", [] { launch_mode = cuda::MlaLaunch::kOverlapped; },
      "started before the kernel in front ends");
  command.add_option("--unit", options.unit, "tokens of a unit of work; 0: the kernel's choice")
      ->check(number_in(0, 1 << 20));
  command.add_option("--from-rows", options.from_rows, "only shapes of at least so many rows")
      ->check(number_in(0, 1 << 20));
  command.add_option("--most-rows", options.most_rows, "only shapes of at most so many rows")
      ->check(number_in(0, 1 << 20));
  command.add_option("--nth", options.nth, "only shape number N of those, from 0: for a profiler")
      ->check(number_in(0, 1 << 20));
  command.add_option("--csv", options.csv, "file that rows are written to as well");
}

}  // namespace
}  // namespace foresail::bench

int main(int argc, char** argv) {
  using namespace foresail;
  bench::Options options;
  int wrong = 0;
  const int status = run_program(
      "mla_decode_bench",
      "Check and time of the MLA decode kernel on the GPU: without flags the shapes of the peer "
      "table with at most 64 rows",
      argc, argv, [&](Command& command) {
        bench::add_flags(command, options);
        command.callback([&] { wrong = bench::run(options); });
      });
  return status != 0 ? status : wrong != 0;
}
