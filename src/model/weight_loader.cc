#include "model/weight_loader.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/error.h"
#include "tensor/float_formats.h"

namespace foresail {

float element(const HostTensor& tensor, int64_t i) {
  switch (tensor.dtype) {
    case DType::kF32:
      return tensor.data.as<float>()[i];
    case DType::kBF16:
      return to_float(tensor.data.as<bf16>()[i]);
    case DType::kF16:
      return to_float(tensor.data.as<f16>()[i]);
    default:
      FORESAIL_CHECK(false, "dtype {}", dtype_name(tensor.dtype));
  }
}

WeightLoader::WeightLoader(WeightSource& source, KernelSet& kernels, LoadProgress progress)
    : source_(source),
      kernels_(kernels),
      progress_(std::move(progress)),
      total_bytes_(source.total_bytes()) {}

HostTensor WeightLoader::tensor(std::string_view name, std::initializer_list<int64_t> shape) {
  HostTensor result = source_.take(name, {shape.begin(), shape.size()});
  // A tensor can be read twice (MlaModel::load_head_rows).
  done_bytes_ = std::min(done_bytes_ + result.data.size_bytes(), total_bytes_);
  if (progress_) progress_(done_bytes_, total_bytes_);
  return result;
}

Buffer WeightLoader::vector(std::string_view name, int64_t dim) {
  const HostTensor source = tensor(name, {dim});
  Buffer values(dim * sizeof(float));
  for (int64_t i = 0; i < dim; ++i) values.as<float>()[i] = element(source, i);
  account(values.size_bytes());
  return moved_to(kernels_.memory(), std::move(values));
}

Buffer WeightLoader::optional_vector(std::string_view name, int64_t dim) {
  return has(name) ? vector(name, dim) : Buffer{};
}

MatrixPtr WeightLoader::pack(const HostMatrix& weight) {
  MatrixPtr packed = kernels_.pack(weight);
  account(packed->size_bytes());
  return packed;
}

MatrixPtr WeightLoader::matrix(std::string_view name, int64_t n_out, int64_t n_in) {
  const HostTensor source = tensor(name, {n_out, n_in});
  return pack({source.data.data(), source.dtype, n_out, n_in, n_in});
}

MatrixPtr WeightLoader::stacked(std::string_view first, std::string_view second, int64_t n_out_each,
                                int64_t n_in) {
  HostTensor upper = tensor(first, {n_out_each, n_in});
  HostTensor lower = tensor(second, {n_out_each, n_in});
  if (upper.dtype != lower.dtype)
    throw_model_error("{} is {} but {} is {}: store both alike", first, dtype_name(upper.dtype),
                      second, dtype_name(lower.dtype));
  Buffer both(upper.data.size_bytes() + lower.data.size_bytes());
  std::memcpy(both.data(), upper.data.data(), upper.data.size_bytes());
  std::memcpy(both.data() + upper.data.size_bytes(), lower.data.data(), lower.data.size_bytes());
  return pack({both.data(), upper.dtype, 2 * n_out_each, n_in, n_in});
}

}  // namespace foresail
