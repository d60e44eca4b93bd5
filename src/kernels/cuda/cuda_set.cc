#include "kernels/cuda/cuda_set.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/check.h"
#include "base/error.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/sm90/wide_product.h"

namespace foresail {
namespace {

// Packed matrices share allocations of this size.
constexpr size_t kWeightBlockBytes = 256u << 20;
constexpr size_t kWeightAlignment = 256;
// A large matrix is packed in parts, so that its source needs no second copy of it on the device.
constexpr size_t kPackPartBytes = 64u << 20;

cuda::Element element_of(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return cuda::Element::kF32;
    case DType::kBF16:
      return cuda::Element::kBF16;
    case DType::kF16:
      return cuda::Element::kF16;
    case DType::kF8E4M3:
      return cuda::Element::kF8E4M3;
    default:
      FORESAIL_CHECK(false, "dtype {} on the CUDA device", dtype_name(dtype));
  }
}

}  // namespace

cuda::Rows rows_of(const MatrixView& view) {
  return {view.data, element_of(view.dtype), view.rows, view.cols, view.stride};
}

MatrixView row_range(const MatrixView& matrix, int64_t first, int64_t count) {
  const int64_t offset = first * matrix.stride * static_cast<int64_t>(size_bytes(matrix.dtype));
  return {static_cast<std::byte*>(matrix.data) + offset, matrix.dtype, count, matrix.cols,
          matrix.stride};
}

cuda::GemmArgs linear_args(const MatrixView& x, const Matrix& weight, const float* bias,
                           float scale, bool accumulate, const MatrixView& out) {
  FORESAIL_CHECK(x.cols == weight.n_in() && out.cols == weight.n_out(),
                 "x [{}, {}], weight [{}, {}], out [{}, {}]", x.rows, x.cols, weight.n_out(),
                 weight.n_in(), out.rows, out.cols);
  return {.weight = CudaMatrix::data_of(weight),
          .n_out = weight.n_out(),
          .n_in = weight.n_in(),
          .rows = x.rows,
          .x = x.data,
          .x_is_bf16 = x.dtype == DType::kBF16,
          .x_stride = x.stride,
          .out = out.data,
          .out_is_bf16 = out.dtype == DType::kBF16,
          .out_stride = out.stride,
          .accumulate = accumulate,
          .scale = scale,
          .bias = bias};
}

cuda::Rope rope_view(const RopeTable& rope) {
  return {rope.cos, rope.sin, rope.rope_dim, rope.layout == RopeLayout::kHalfSplit};
}

cuda::Cache cache_view(const LatentCache& cache) {
  return {cache.data,      element_of(cache.dtype),
          cache.page_size, cache.latent_dim,
          cache.rope_dim,  cache.dtype == DType::kF8E4M3 ? cache.scale : 1.0f};
}

std::unique_ptr<KernelSet> create_cuda_kernels(const CudaOptions& options) {
  std::string why;
  const std::optional<CudaDevice> device = find_cuda_device(&why);
  if (!device) throw_error(ErrorCode::kDevice, "--device cuda: {}", why);
  return std::make_unique<CudaKernels>(*device, options);
}

CudaKernels::CudaKernels(const CudaDevice& device, const CudaOptions& options)
    : name_(fmt::format("cuda-sm{}{}{}", device.major, device.minor,
                        options.deterministic ? "-deterministic" : "")),
      multiprocessors_(device.multiprocessors),
      has_sm90_(device.major == 9 && device.minor == 0),
      deterministic_(options.deterministic),
      records_(options.graphs) {
  for (cudaEvent_t& event : pinned_read_)
    check_cuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "creating an event");
}

CudaKernels::~CudaKernels() {
  stop_recording();
  chained_.clear();
  forget_recordings();
  for (const cudaEvent_t event : pinned_read_) cudaEventDestroy(event);
}

void* CudaKernels::scratch(Scratch purpose, size_t size_bytes) {
  Buffer& buffer = scratch_[static_cast<size_t>(purpose)];
  if (buffer.size_bytes() < size_bytes) {
    FORESAIL_CHECK(recording_.empty(), "scratch {} grew in a pass that was met before",
                   static_cast<int>(purpose));
    forget_recordings();
    buffer = Buffer();  // or both would be there at once, which no plan counts
    buffer = Buffer(grown_scratch(size_bytes), memory_);
  }
  return buffer.data();
}

bool CudaKernels::goes_wide(const cuda::GemmArgs& args) const {
  return args.rows > 0 && !deterministic_ && has_sm90_ && cuda::is_wide(args);
}

bool CudaKernels::gates(const cuda::GemmArgs& args) const {
  return cuda::gates_rows(args) || (goes_wide(args) && cuda::wide_gates_rows(args));
}

void CudaKernels::multiply(const cuda::GemmArgs& args, const cuda::GemmArgs* before) {
  cuda::GemmArgs first = args;
  first.beside = {};
  if (!goes_wide(first)) return cuda::gemm(stream(), args);
  const bool is_split =
      before != nullptr && goes_wide(*before) && cuda::is_split_alike(*before, first);
  void* rows = scratch(Scratch::kWideRows, cuda::wide_scratch_bytes(first));
  if (args.beside.weight == nullptr) return cuda::wide_product(stream(), first, rows, is_split);
  const cuda::GemmArgs second = cuda::beside_product(args);
  if (cuda::takes_beside(first, second)) return cuda::wide_product(stream(), args, rows, is_split);
  cuda::wide_product(stream(), first, rows, is_split);
  multiply(second, second.rows == first.rows && second.x == first.x ? &first : nullptr);
}

int CudaKernels::wide_tile_rows(const cuda::GemmArgs& rows, int64_t pairs, int64_t experts,
                                int64_t inner) const {
  if (!has_sm90_ || deterministic_ || rows.rows < cuda::kLeastWideRows ||
      !cuda::has_vector_rows(rows) || inner % 4 != 0)
    return 0;
  return cuda::wide_tile_rows(pairs, experts);
}

void CudaKernels::check(std::string_view operation) const {
  check_cuda(cudaGetLastError(), operation);
}

MatrixPtr CudaKernels::pack(const HostMatrix& weight) {
  const size_t packed_bytes = cuda::packed_bytes(weight.n_out, weight.n_in);
  const size_t taken = (packed_bytes + kWeightAlignment - 1) / kWeightAlignment * kWeightAlignment;
  if (weights_.empty() || weights_used_ + taken > weights_.back().size_bytes()) {
    weights_.emplace_back(std::max(taken, kWeightBlockBytes), memory_);
    weights_used_ = 0;
  }
  std::byte* packed = weights_.back().data() + weights_used_;
  weights_used_ += taken;

  const auto row_bytes = static_cast<int64_t>(weight.stride * size_bytes(weight.dtype));
  const int64_t source_rows = weight.transposed ? weight.n_in : weight.n_out;
  int64_t part_rows = source_rows;
  if (!weight.transposed)
    part_rows = std::max<int64_t>(static_cast<int64_t>(kPackPartBytes) / row_bytes / 16 * 16, 16);
  for (int64_t begin = 0; begin < source_rows; begin += part_rows) {
    const int64_t rows = std::min(part_rows, source_rows - begin);
    // The last row may end before its stride does.
    const int64_t cols = weight.transposed ? weight.n_out : weight.n_in;
    const size_t part_bytes = static_cast<size_t>((rows - 1) * row_bytes) +
                              static_cast<size_t>(cols) * size_bytes(weight.dtype);
    void* source = scratch(Scratch::kPackSource, part_bytes);
    memory_.upload(source, static_cast<const std::byte*>(weight.data) + begin * row_bytes,
                   part_bytes);
    cuda::pack_tiles(stream(),
                     {.source = source,
                      .element = element_of(weight.dtype),
                      .stride = weight.stride,
                      .transposed = weight.transposed,
                      .n_out = weight.transposed ? weight.n_out : rows,
                      .n_in = weight.n_in},
                     packed + cuda::packed_bytes(begin, weight.n_in));
    check("packing a matrix");
  }
  return std::make_unique<CudaMatrix>(weight.n_out, weight.n_in, packed, packed_bytes);
}

const int32_t* CudaKernels::pass_words(const int32_t* host, std::span<const int32_t> of_pass,
                                       int64_t place, std::string_view what) const {
  FORESAIL_CHECK(host == of_pass.data(), "{} are not those of begin_pass", what);
  return word(place);
}

const float* CudaKernels::scale_words(const float* host) const {
  if (host == nullptr) return nullptr;
  FORESAIL_CHECK(host == inputs_.row_scale.data(), "row scales are not those of begin_pass");
  return reinterpret_cast<const float*>(word(pass_.row_scale));
}

const void* const* CudaKernels::table_of(const void* key, std::vector<const void*> pointers) {
  Table& table = tables_[key];
  if (table.pointers != pointers) {
    FORESAIL_CHECK(recording_.empty(), "a table changed in a pass that was met before");
    if (!table.pointers.empty()) forget_recordings();
    const size_t bytes = pointers.size() * sizeof(void*);
    table.device = Buffer(bytes, memory_);
    table.pointers = std::move(pointers);
    memory_.upload(table.device.data(), table.pointers.data(), bytes);
  }
  return table.device.as<const void*>();
}

const void* const* CudaKernels::head_table(std::span<const MatrixPtr> weights) {
  std::vector<const void*> pointers;
  pointers.reserve(weights.size());
  for (const MatrixPtr& matrix : weights) pointers.push_back(CudaMatrix::data_of(*matrix));
  return table_of(weights.data(), std::move(pointers));
}

void CudaKernels::embed(std::span<const int32_t> ids, const MatrixView& table, float scale,
                        const MatrixView& out) {
  cuda::embed(stream(), fed_tokens(ids), rows_of(table), scale, rows_of(out));
  check("embed");
}

void CudaKernels::rms_norm(const MatrixView& x, const float* weight, float eps,
                           const MatrixView& out) {
  cuda::rms_norm(stream(), rows_of(x), weight, eps, rows_of(out));
  check("rms_norm");
}

void CudaKernels::linear(const MatrixView& x, const Matrix& weight, const float* bias, float scale,
                         bool accumulate, const MatrixView& out) {
  multiply(linear_args(x, weight, bias, scale, accumulate, out));
  check("linear");
}

void CudaKernels::silu_mul(const MatrixView& gate_up, const MatrixView& out) {
  cuda::silu_mul(stream(), rows_of(gate_up), rows_of(out));
  check("silu_mul");
}

void CudaKernels::convert(const MatrixView& in, const MatrixView& out) {
  cuda::convert(stream(), rows_of(in), rows_of(out));
  check("convert");
}

void CudaKernels::gather_rows(const MatrixView& in, std::span<const int32_t> rows,
                              const MatrixView& out) {
  cuda::gather_rows(stream(), rows_of(in),
                    pass_words(rows.data(), inputs_.wanted_rows, pass_.wanted_rows, "wanted rows"),
                    rows_of(out));
  check("gather_rows");
}

void CudaKernels::store_rows(const MatrixView& rows, std::span<const int32_t> slots,
                             const LatentCache& cache) {
  cuda::store_latent(stream(), rows_of(rows), nullptr, 0.0f, {}, nullptr,
                     pass_words(slots.data(), inputs_.slots, pass_.slots, "slots"),
                     cache_view(cache));
  check("store_rows");
}

void CudaKernels::rotate_query(const MatrixView& q, int head_count, const RopeTable& rope,
                               std::span<const int32_t> positions, const float* row_scale) {
  cuda::rotate_query(stream(), rows_of(q), head_count, rope_view(rope),
                     pass_words(positions.data(), inputs_.positions, pass_.positions, "positions"),
                     scale_words(row_scale));
  check("rotate_query");
}

void CudaKernels::store_latent(const MatrixView& kv, const float* norm_weight, float eps,
                               const RopeTable& rope, std::span<const int32_t> positions,
                               std::span<const int32_t> slots, const LatentCache& cache) {
  cuda::store_latent(stream(), rows_of(kv), norm_weight, eps, rope_view(rope),
                     pass_words(positions.data(), inputs_.positions, pass_.positions, "positions"),
                     pass_words(slots.data(), inputs_.slots, pass_.slots, "slots"),
                     cache_view(cache));
  check("store_latent");
}

std::optional<CudaDevice> find_cuda_device(std::string* why) {
  const auto none = [&](std::string reason) {
    if (why != nullptr) *why = std::move(reason);
    return std::nullopt;
  };
  int count = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&count); error != cudaSuccess || count == 0) {
    cudaGetLastError();
    return none(
        fmt::format("no usable GPU was found ({}): check nvidia-smi and the driver, or "
                    "choose --device cpu",
                    cudaGetErrorString(error)));
  }
  int index = 0;
  cudaDeviceProp properties{};
  CudaDevice device;
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  check_cuda(cudaGetDevice(&index), "naming the device");
  check_cuda(cudaGetDeviceProperties(&properties, index), "reading the device's properties");
  if (properties.major < 8)
    return none(fmt::format("{} has compute capability {}.{}: 8.0 is the least", properties.name,
                            properties.major, properties.minor));
  check_cuda(cudaMemGetInfo(&free_bytes, &total_bytes), "reading the free memory");
  check_cuda(cudaDriverGetVersion(&device.driver_version), "reading the driver's version");
  device.name = properties.name;
  device.major = properties.major;
  device.minor = properties.minor;
  device.multiprocessors = properties.multiProcessorCount;
  device.total_bytes = total_bytes;
  device.free_bytes = free_bytes;
  return device;
}

bool built_with_cuda() {
  return true;
}

}  // namespace foresail
