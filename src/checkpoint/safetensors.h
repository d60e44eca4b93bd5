// Reading and writing safetensors files. Reads go through pread, never a mapping, so a file that
// shrinks while it is read is an error and not a signal.
// A SafetensorsFile may be read from several threads; a SafetensorsWriter has one owner.
#pragma once

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"
#include "checkpoint/safetensors_header.h"
#include "checkpoint/tensor_list.h"

namespace foresail {

class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return file_.path(); }
  const SafetensorsHeader& header() const { return header_; }
  // Fills `out` from `offset_bytes` inside the tensor's data; the range must lie inside it.
  void read(const StoredTensor& tensor, uint64_t offset_bytes, std::span<std::byte> out) const;

 private:
  File file_;
  uint64_t data_begin_bytes_ = 0;
  SafetensorsHeader header_;
};

// Writes the header at once, then the tensors' bytes as they come, in the order of `specs`.
// The file appears under its name only when close() has checked that every byte was given.
class SafetensorsWriter {
 public:
  SafetensorsWriter(std::filesystem::path path, std::span<const TensorSpec> specs,
                    const std::map<std::string, std::string>& metadata = {{"format", "pt"}});
  ~SafetensorsWriter();
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

  void append(std::span<const std::byte> bytes);
  void close();

 private:
  [[noreturn]] void fail(const char* action) const;

  std::filesystem::path path_, temporary_;
  std::FILE* stream_ = nullptr;
  uint64_t expected_bytes_ = 0;
  uint64_t written_bytes_ = 0;
};

}  // namespace foresail
