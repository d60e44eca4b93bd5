#include "base/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iostream>

#include "base/error.h"

namespace foresail {
namespace {

// What a clone without Git LFS holds in place of every large file: a few lines of text.
bool is_lfs_pointer(int descriptor, uint64_t size_bytes) {
  constexpr std::string_view kBeginning = "version https://git-lfs";
  char beginning[kBeginning.size()];
  return size_bytes < 1024 &&
         ::pread(descriptor, beginning, sizeof(beginning), 0) == ssize_t{sizeof(beginning)} &&
         std::string_view(beginning, sizeof(beginning)) == kBeginning;
}

}  // namespace

File::File(std::filesystem::path path, ErrorCode code) : path_(std::move(path)), code_(code) {
  descriptor_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor_ < 0)
    throw_error(code_, "cannot open {}: {}", path_.string(), std::strerror(errno));
  struct stat info {};
  const bool is_regular = ::fstat(descriptor_, &info) == 0 && S_ISREG(info.st_mode);
  if (!is_regular) {
    ::close(descriptor_);
    throw_error(code_, "{} is not a regular file", path_.string());
  }
  size_bytes_ = static_cast<uint64_t>(info.st_size);
  if (code_ == ErrorCode::kModel && is_lfs_pointer(descriptor_, size_bytes_)) {
    ::close(descriptor_);
    throw_error(code_, "{} is a Git LFS pointer, not the file itself: run `git lfs pull` there",
                path_.string());
  }
}

File::~File() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

File::File(File&& other) noexcept
    : path_(std::move(other.path_)),
      code_(other.code_),
      descriptor_(other.descriptor_),
      size_bytes_(other.size_bytes_) {
  other.descriptor_ = -1;
}

void File::read(uint64_t offset_bytes, std::span<std::byte> out) const {
  size_t done = 0;
  while (done < out.size()) {
    const ssize_t got = ::pread(descriptor_, out.data() + done, out.size() - done,
                                static_cast<off_t>(offset_bytes + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw_error(code_, "cannot read {}: {}", path_.string(), std::strerror(errno));
    if (got == 0)
      throw_error(code_, "{} ended at byte {} while {} more were expected: the file is truncated",
                  path_.string(), offset_bytes + done, out.size() - done);
    done += static_cast<size_t>(got);
  }
}

bool is_present(const std::filesystem::path& path, ErrorCode code) {
  std::error_code error;
  const auto type = std::filesystem::symlink_status(path, error).type();
  if (type == std::filesystem::file_type::none)
    throw_error(code, "cannot look for {}: {}", path.string(), error.message());
  return type != std::filesystem::file_type::not_found;
}

namespace {

std::string read_file(const std::filesystem::path& path, uint64_t max_bytes, ErrorCode code) {
  File file(path, code);
  if (file.size_bytes() > max_bytes)
    throw_error(code, "{} has {} bytes, more than the {} allowed for this kind of file",
                path.string(), file.size_bytes(), max_bytes);
  std::string content(file.size_bytes(), '\0');
  file.read(0, std::as_writable_bytes(std::span(content.data(), content.size())));
  return content;
}

// Its size is known only at its end.
std::string read_stream(std::istream& stream, const std::string& name, uint64_t max_bytes) {
  std::string content;
  char part[1 << 16];
  while (stream.read(part, sizeof(part)), stream.gcount() > 0) {
    content.append(part, static_cast<size_t>(stream.gcount()));
    if (content.size() > max_bytes)
      throw_error(ErrorCode::kUsage, "{} has more than the {} bytes allowed for this kind of file",
                  name, max_bytes);
  }
  if (stream.bad()) throw_error(ErrorCode::kUsage, "cannot read {}", name);
  return content;
}

}  // namespace

std::string read_text_file(const std::filesystem::path& path, uint64_t max_bytes) {
  return read_file(path, max_bytes, ErrorCode::kModel);
}

std::string input_name(const std::string& path) {
  return path == "-" ? "standard input" : path;
}

std::string read_input(const std::string& path, uint64_t max_bytes) {
  if (path == "-") return read_stream(std::cin, input_name(path), max_bytes);
  std::error_code ignored;
  const auto status = std::filesystem::status(path, ignored);
  if (!std::filesystem::is_fifo(status) && !std::filesystem::is_character_file(status))
    return read_file(path, max_bytes, ErrorCode::kUsage);
  std::ifstream stream(path, std::ios::binary);
  if (!stream) throw_error(ErrorCode::kUsage, "cannot open {}: {}", path, std::strerror(errno));
  return read_stream(stream, path, max_bytes);
}

std::filesystem::path partial_path(const std::filesystem::path& path) {
  std::error_code ignored;
  const auto status = std::filesystem::status(path, ignored);
  std::filesystem::path temporary = path;
  if (!std::filesystem::exists(status) || std::filesystem::is_regular_file(status))
    temporary += ".partial";
  return temporary;
}

void write_file(const std::filesystem::path& path, std::string_view content) {
  const std::filesystem::path temporary = partial_path(path);
  std::ofstream stream(temporary, std::ios::binary | std::ios::trunc);
  stream.write(content.data(), static_cast<std::streamsize>(content.size()));
  stream.close();
  if (!stream)
    throw_error(ErrorCode::kUsage, "cannot write {}: {}", temporary.string(), std::strerror(errno));
  if (temporary == path) return;
  std::error_code error;
  std::filesystem::rename(temporary, path, error);
  if (error) throw_error(ErrorCode::kUsage, "cannot write {}: {}", path.string(), error.message());
}

}  // namespace foresail
