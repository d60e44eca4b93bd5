#include "checkpoint/safetensors_header.h"

#include <algorithm>
#include <numeric>

#include "base/checked_math.h"
#include "base/error.h"
#include "base/utf8.h"
#include "checkpoint/json_scanner.h"
#include "checkpoint/printable_name.h"

namespace foresail {
namespace {

constexpr StoredType kStoredTypes[] = {
    {"BOOL", 8, DType::kBool}, {"U8", 8, DType::kU8},
    {"I8", 8, DType::kI8},     {"F8_E4M3", 8, DType::kF8E4M3},
    {"F8_E5M2", 8, {}},        {"F8_E8M0", 8, {}},
    {"F8_E4M3FNUZ", 8, {}},    {"F8_E5M2FNUZ", 8, {}},
    {"I16", 16, DType::kI16},  {"U16", 16, {}},
    {"F16", 16, DType::kF16},  {"BF16", 16, DType::kBF16},
    {"I32", 32, DType::kI32},  {"U32", 32, {}},
    {"F32", 32, DType::kF32},  {"C64", 64, {}},
    {"F64", 64, DType::kF64},  {"I64", 64, DType::kI64},
    {"U64", 64, {}},           {"F4", 4, {}},
    {"F6_E2M3", 6, {}},        {"F6_E3M2", 6, {}},
};
constexpr size_t kMaxRank = 64;  // more is no tensor; keeps a record's rank in 16 bits

}  // namespace

const StoredType* find_stored_type(std::string_view name) {
  for (const StoredType& type : kStoredTypes)
    if (type.name == name) return &type;
  return nullptr;
}

// One entry at a time: nothing of the text outlives its entry but the name and the shape.
class SafetensorsHeaderParser {
 public:
  SafetensorsHeaderParser(std::string_view text, const std::string& where,
                          SafetensorsHeader& header)
      : scanner_(text, where), where_(where), header_(header) {}

  void parse() {
    scanner_.expect('{', "at the start of the header");
    if (!scanner_.accept('}')) {
      do {
        scanner_.read_string(key_, "a tensor name");
        scanner_.expect(':', "after a tensor name");
        if (key_ == "__metadata__") {
          parse_metadata();
        } else {
          parse_tensor();
        }
      } while (scanner_.accept(','));
      scanner_.expect('}', "at the end of the header");
    }
    scanner_.expect_end();
  }

 private:
  void parse_metadata() {
    if (has_metadata_) scanner_.fail("__metadata__ appears twice");
    has_metadata_ = true;
    scanner_.expect('{', "for __metadata__, which must be an object of strings");
    if (scanner_.accept('}')) return;
    do {
      scanner_.read_string(word_, "a key of __metadata__");
      scanner_.expect(':', "after a key of __metadata__");
      scanner_.read_string(word_, "a value of __metadata__");
    } while (scanner_.accept(','));
    scanner_.expect('}', "at the end of __metadata__");
  }

  void parse_tensor() {
    SafetensorsHeader::Record record{};
    record.name_offset = static_cast<uint32_t>(header_.names_.size());
    record.name_length = static_cast<uint32_t>(key_.size());
    header_.names_ += key_;
    bool has_type = false, has_shape = false, has_offsets = false;
    scanner_.expect('{', "after a tensor name");
    do {
      scanner_.read_string(word_, "a key of a tensor");
      scanner_.expect(':', "after a key of a tensor");
      if (word_ == "dtype" && !has_type) {
        parse_type(record);
        has_type = true;
      } else if (word_ == "shape" && !has_shape) {
        parse_shape(record);
        has_shape = true;
      } else if (word_ == "data_offsets" && !has_offsets) {
        parse_offsets(record);
        has_offsets = true;
      } else {
        fail(fmt::format("unknown or repeated key \"{}\"", printable_name(word_)));
      }
    } while (scanner_.accept(','));
    scanner_.expect('}', "at the end of a tensor");
    if (!has_type || !has_shape || !has_offsets)
      fail("dtype, shape and data_offsets are all needed");
    check_size(record);
    header_.records_.push_back(record);
  }

  void parse_type(SafetensorsHeader::Record& record) {
    scanner_.read_string(word_, "dtype");
    const StoredType* type = find_stored_type(word_);
    if (type == nullptr) fail(fmt::format("unknown dtype \"{}\"", printable_name(word_)));
    record.type = static_cast<uint16_t>(type - kStoredTypes);
  }

  void parse_shape(SafetensorsHeader::Record& record) {
    record.shape_offset = static_cast<uint32_t>(header_.shapes_.size());
    scanner_.expect('[', "for shape");
    if (scanner_.accept(']')) return;
    do {
      if (record.rank == kMaxRank) fail(fmt::format("more than {} dimensions", kMaxRank));
      header_.shapes_.push_back(
          static_cast<int64_t>(scanner_.read_unsigned("a dimension of shape")));
      ++record.rank;
    } while (scanner_.accept(','));
    scanner_.expect(']', "at the end of shape");
  }

  void parse_offsets(SafetensorsHeader::Record& record) {
    scanner_.expect('[', "for data_offsets");
    record.begin_bytes = scanner_.read_unsigned("data_offsets");
    scanner_.expect(',', "between the two data_offsets");
    record.end_bytes = scanner_.read_unsigned("data_offsets");
    scanner_.expect(']', "after the two data_offsets");
  }

  void check_size(const SafetensorsHeader::Record& record) {
    if (record.end_bytes < record.begin_bytes)
      fail(
          fmt::format("data_offsets [{}, {}] run backwards", record.begin_bytes, record.end_bytes));
    std::optional<uint64_t> bits = kStoredTypes[record.type].bits;
    for (uint16_t i = 0; i < record.rank && bits; ++i)
      bits = checked_mul(*bits, static_cast<uint64_t>(header_.shapes_[record.shape_offset + i]));
    if (!bits) fail("the product of its shape overflows");
    if (*bits % 8 != 0) fail(fmt::format("its {} bits are no whole number of bytes", *bits));
    const uint64_t spanned = record.end_bytes - record.begin_bytes;
    if (spanned != *bits / 8)
      fail(fmt::format("shape and dtype need {} bytes but data_offsets span {}", *bits / 8,
                       spanned));
  }

  [[noreturn]] void fail(const std::string& what) {
    throw_model_error("{}: tensor {}: {}", where_, printable_name(key_), what);
  }

  JsonScanner scanner_;
  const std::string& where_;
  SafetensorsHeader& header_;
  std::string key_, word_;
  bool has_metadata_ = false;
};

SafetensorsHeader::SafetensorsHeader(std::string_view text, uint64_t data_bytes,
                                     const std::string& where) {
  if (text.size() > kMaxHeaderBytes)
    throw_model_error("{}: the header has {} bytes, more than the {} allowed", where, text.size(),
                      kMaxHeaderBytes);
  if (!text.starts_with('{'))
    throw_model_error("{}: the header does not start with '{{': not a safetensors file", where);
  if (!is_valid_utf8(text)) throw_model_error("{}: the header is not valid UTF-8", where);
  SafetensorsHeaderParser(text, where, *this).parse();
  names_.shrink_to_fit();
  check_names(where);
  check_offsets(data_bytes, where);
}

void SafetensorsHeader::check_names(const std::string& where) {
  std::sort(records_.begin(), records_.end(),
            [this](const Record& a, const Record& b) { return name_of(a) < name_of(b); });
  for (size_t i = 1; i < records_.size(); ++i)
    if (name_of(records_[i - 1]) == name_of(records_[i]))
      throw_model_error("{}: tensor {} appears twice in the header", where,
                        printable_name(name_of(records_[i])));
}

void SafetensorsHeader::check_offsets(uint64_t data_bytes, const std::string& where) const {
  std::vector<uint32_t> order(records_.size());
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(), [this](uint32_t a, uint32_t b) {
    const Record& left = records_[a];
    const Record& right = records_[b];
    if (left.begin_bytes != right.begin_bytes) return left.begin_bytes < right.begin_bytes;
    return left.end_bytes < right.end_bytes;
  });
  uint64_t end_bytes = 0;
  for (const uint32_t index : order) {
    const Record& record = records_[index];
    if (record.begin_bytes != end_bytes)
      throw_model_error(
          "{}: tensor {}: its data begin at byte {} but the data before end at {}: {}", where,
          printable_name(name_of(record)), record.begin_bytes, end_bytes,
          record.begin_bytes < end_bytes ? "they overlap" : "there is a hole");
    end_bytes = record.end_bytes;
  }
  if (end_bytes > data_bytes)
    throw_model_error(
        "{}: the tensors need {} bytes but the file holds {}: it is truncated, copy it again",
        where, end_bytes, data_bytes);
  if (end_bytes < data_bytes)
    throw_model_error("{}: {} bytes follow the last tensor: the file is damaged, copy it again",
                      where, data_bytes - end_bytes);
}

StoredTensor SafetensorsHeader::tensor(size_t index) const {
  const Record& record = records_[index];
  return {name_of(record), &kStoredTypes[record.type],
          std::span<const int64_t>(shapes_).subspan(record.shape_offset, record.rank),
          record.begin_bytes, record.end_bytes};
}

std::optional<size_t> SafetensorsHeader::find(std::string_view name) const {
  const auto found =
      std::lower_bound(records_.begin(), records_.end(), name,
                       [this](const Record& a, std::string_view b) { return name_of(a) < b; });
  if (found == records_.end() || name_of(*found) != name) return std::nullopt;
  return static_cast<size_t>(found - records_.begin());
}

}  // namespace foresail
