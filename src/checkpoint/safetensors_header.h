// The JSON header of a safetensors file, parsed in one pass without recursion.
// Memory is bounded by the header's size: names and shapes lie in two flat arrays, so a header of a
// million empty tensors costs about 40 bytes a tensor on top of its own text.
// Value type; after construction it may be read from several threads.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tensor/dtype.h"

namespace foresail {

// One element type as the format names it.
struct StoredType {
  std::string_view name;       // "BF16"
  uint32_t bits;               // 4, 6, 8 ...
  std::optional<DType> dtype;  // empty: recognised, but no buffer of ours can hold it
};

const StoredType* find_stored_type(std::string_view name);

// A view into a header; valid as long as the header lives.
struct StoredTensor {
  std::string_view name;
  const StoredType* type;
  std::span<const int64_t> shape;
  uint64_t begin_bytes, end_bytes;  // from the start of the data
};

class SafetensorsHeader {
 public:
  static constexpr uint64_t kMaxHeaderBytes = 100'000'000;

  SafetensorsHeader() = default;
  // `text` is the header without its length prefix; `data_bytes` what follows it in the file;
  // `where` names the file. Throws Error{kModel} on any broken rule of the format.
  SafetensorsHeader(std::string_view text, uint64_t data_bytes, const std::string& where);

  // Sorted by name.
  size_t tensor_count() const { return records_.size(); }
  StoredTensor tensor(size_t index) const;
  std::optional<size_t> find(std::string_view name) const;

 private:
  friend class SafetensorsHeaderParser;
  struct Record {
    uint64_t begin_bytes, end_bytes;
    uint32_t name_offset, name_length;
    uint32_t shape_offset;
    uint16_t rank;
    uint16_t type;
  };
  std::string_view name_of(const Record& record) const {
    return std::string_view(names_).substr(record.name_offset, record.name_length);
  }
  void check_names(const std::string& where);
  void check_offsets(uint64_t data_bytes, const std::string& where) const;

  std::string names_;
  std::vector<int64_t> shapes_;
  std::vector<Record> records_;
};

}  // namespace foresail
