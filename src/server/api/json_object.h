// The fields of a request's JSON object, read once each into typed values with their ranges. The
// first fault is kept; what is read after it stays as it was. null counts as left out.
// A value on one thread; the JSON outlives it.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json_types.h"
#include "base/result.h"

namespace foresail {

class JsonObject {
 public:
  // `path` names the object in messages: "stream_options." or empty.
  explicit JsonObject(const OrderedJson& object, std::string path = {});

  // Null when absent.
  const OrderedJson* find(std::string_view name) const;
  bool has(std::string_view name) const { return find(name) != nullptr; }
  // Adds the names, with the path, of fields that nobody has asked for; `out` then holds at most so
  // many. None that is not spelled like a name: it may be a text gone astray.
  void add_unread(size_t most, std::vector<std::string>& out) const;

  template <typename Integer>
  void integer(std::string_view name, int64_t least, int64_t most, Integer& out) {
    if (const auto value = integer_within(name, least, most)) out = static_cast<Integer>(*value);
  }
  void number(std::string_view name, double least, double most, float& out);
  void boolean(std::string_view name, bool& out);
  void text(std::string_view name, size_t max_bytes, std::string& out);
  // One, or a list of at most `max_count`.
  void texts(std::string_view name, size_t max_count, size_t max_bytes,
             std::vector<std::string>& out);
  void token_ids(std::string_view name, size_t max_count, std::vector<int32_t>& out);
  // The same of a value that stands inside the field.
  void token_ids(std::string_view name, const OrderedJson& value, size_t max_count,
                 std::vector<int32_t>& out);
  // {"token id": bias}
  void logit_bias(std::vector<std::pair<int32_t, float>>& out);

  // With the path.
  std::string full_name(std::string_view name) const { return path_ + std::string(name); }
  void refuse(std::string_view name, const std::string& message);
  // That of an object inside, whose path says where it stands.
  void take_fault(const JsonObject& inside) {
    if (!fault_) fault_ = inside.fault_;
  }
  const std::optional<InputError>& fault() const { return fault_; }

 private:
  std::optional<int64_t> integer_within(std::string_view name, int64_t least, int64_t most);

  const OrderedJson& object_;
  std::string path_;
  std::optional<InputError> fault_;
  mutable std::vector<const OrderedJson*> read_;  // values, some more than once
};

// An integer in a JSON value; 3.0 counts as one. Empty for anything else.
std::optional<int64_t> json_integer(const OrderedJson& value);

}  // namespace foresail
