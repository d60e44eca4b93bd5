// Reading files by position. Errors carry the path in the message; they are Error{kModel} unless
// the file is an input of the user's. Thread rule: a File may be read from several threads at once
// (pread).
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "base/error.h"

namespace foresail {

class File {
 public:
  // Regular files only; links are followed. `code` is what opening or reading it may fail with.
  // Pointers of Git LFS are refused where the file is a model's; a text of the user's may be one.
  explicit File(std::filesystem::path path, ErrorCode code = ErrorCode::kModel);
  ~File();
  File(File&& other) noexcept;
  File& operator=(File&&) = delete;
  File(const File&) = delete;

  uint64_t size_bytes() const { return size_bytes_; }
  const std::filesystem::path& path() const { return path_; }
  // Fills `out` from `offset_bytes`; a short read is an error (the file was truncated).
  void read(uint64_t offset_bytes, std::span<std::byte> out) const;

 private:
  std::filesystem::path path_;
  ErrorCode code_;
  int descriptor_ = -1;
  uint64_t size_bytes_ = 0;
};

// Whether there is anything of that name: a link that leads nowhere is, and opening it will say
// what is wrong. Only what does not exist is absent; throws where that can't be told.
bool is_present(const std::filesystem::path& path, ErrorCode code = ErrorCode::kModel);

// The whole file; refuses more than max_bytes before reading anything.
std::string read_text_file(const std::filesystem::path& path, uint64_t max_bytes);

// What a flag of the user's names: a file, a pipe (the shell's `<(...)`), or "-" for standard
// input. Throws Error{kUsage}.
std::string read_input(const std::string& path, uint64_t max_bytes);
// What a message calls it.
std::string input_name(const std::string& path);

// Where to write what shall become `path`: a temporary name beside it, or `path` itself where that
// is a device, a pipe or a folder, since a rename would put a plain file in its place.
std::filesystem::path partial_path(const std::filesystem::path& path);

// Writes to a temporary name beside the target, then renames, so a reader never sees half a file.
void write_file(const std::filesystem::path& path, std::string_view content);

}  // namespace foresail
