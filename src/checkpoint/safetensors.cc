#include "checkpoint/safetensors.h"

#include <cerrno>
#include <cstring>

#include "base/check.h"
#include "base/checked_math.h"
#include "base/error.h"
#include "base/json.h"

namespace foresail {
namespace {

constexpr uint64_t kLengthBytes = 8;
constexpr uint64_t kHeaderAlignment = 8;

}  // namespace

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) : file_(path) {
  const std::string where = path.string();
  const uint64_t file_bytes = file_.size_bytes();
  if (file_bytes < kLengthBytes)
    throw_model_error("{}: {} bytes are too few for a safetensors file: copy it again", where,
                      file_bytes);
  unsigned char prefix[kLengthBytes];
  file_.read(0, std::as_writable_bytes(std::span(prefix)));
  uint64_t header_bytes = 0;
  for (int i = 7; i >= 0; --i) header_bytes = header_bytes << 8 | prefix[i];
  if (header_bytes > SafetensorsHeader::kMaxHeaderBytes)
    throw_model_error(
        "{}: the header claims {} bytes, more than the {} allowed: not a safetensors file", where,
        header_bytes, SafetensorsHeader::kMaxHeaderBytes);
  if (header_bytes > file_bytes - kLengthBytes)
    throw_model_error(
        "{}: the header claims {} bytes but the file has only {}: it is truncated, copy it again",
        where, header_bytes, file_bytes - kLengthBytes);
  std::string text(header_bytes, '\0');
  file_.read(kLengthBytes, std::as_writable_bytes(std::span(text)));
  data_begin_bytes_ = kLengthBytes + header_bytes;
  header_ = SafetensorsHeader(text, file_bytes - data_begin_bytes_, where);
}

void SafetensorsFile::read(const StoredTensor& tensor, uint64_t offset_bytes,
                           std::span<std::byte> out) const {
  const uint64_t tensor_bytes = tensor.end_bytes - tensor.begin_bytes;
  FORESAIL_CHECK(offset_bytes <= tensor_bytes && out.size() <= tensor_bytes - offset_bytes,
                 "a read must stay inside its tensor");
  file_.read(data_begin_bytes_ + tensor.begin_bytes + offset_bytes, out);
}

SafetensorsWriter::SafetensorsWriter(std::filesystem::path path, std::span<const TensorSpec> specs,
                                     const std::map<std::string, std::string>& metadata)
    : path_(std::move(path)), temporary_(partial_path(path_)) {
  std::string header = "{";
  if (!metadata.empty()) header += "\"__metadata__\":" + json_text(Json(metadata));
  for (const TensorSpec& spec : specs) {
    const uint64_t end_bytes = expected_bytes_ + spec.size_bytes();
    header += fmt::format("{}{}:{{\"dtype\":\"{}\",\"shape\":{},\"data_offsets\":[{},{}]}}",
                          header.size() > 1 ? "," : "", json_text(Json(spec.name)),
                          dtype_name(spec.dtype), json_text(Json(spec.shape)), expected_bytes_,
                          end_bytes);
    expected_bytes_ = end_bytes;
  }
  header += "}";
  header.resize(round_up<size_t>(header.size(), kHeaderAlignment), ' ');

  stream_ = std::fopen(temporary_.c_str(), "wb");
  if (stream_ == nullptr) fail("create");
  unsigned char prefix[kLengthBytes];
  for (size_t i = 0; i < kLengthBytes; ++i)
    prefix[i] = static_cast<unsigned char>(header.size() >> (8 * i));
  if (std::fwrite(prefix, 1, kLengthBytes, stream_) != kLengthBytes) fail("write");
  if (std::fwrite(header.data(), 1, header.size(), stream_) != header.size()) fail("write");
}

SafetensorsWriter::~SafetensorsWriter() {
  if (stream_ == nullptr) return;
  std::fclose(stream_);
  if (temporary_ == path_) return;
  std::error_code ignored;
  std::filesystem::remove(temporary_, ignored);
}

void SafetensorsWriter::append(std::span<const std::byte> bytes) {
  FORESAIL_CHECK(bytes.size() <= expected_bytes_ - written_bytes_,
                 "more bytes than the specs announced");
  if (std::fwrite(bytes.data(), 1, bytes.size(), stream_) != bytes.size()) fail("write");
  written_bytes_ += bytes.size();
}

void SafetensorsWriter::close() {
  FORESAIL_CHECK(written_bytes_ == expected_bytes_, "fewer bytes than the specs announced");
  std::FILE* stream = stream_;
  stream_ = nullptr;
  if (std::fclose(stream) != 0) fail("write");
  if (temporary_ == path_) return;
  std::error_code error;
  std::filesystem::rename(temporary_, path_, error);
  if (error) fail("rename");
}

void SafetensorsWriter::fail(const char* action) const {
  throw_error(ErrorCode::kUsage, "cannot {} {}: {}", action, temporary_.string(),
              std::strerror(errno));
}

}  // namespace foresail
