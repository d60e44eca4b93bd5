// A UTF-8 string that remembers which bytes came from the conversation (tainted) and which from the
// template. Every string of the interpreter is one, so the origin survives slicing and joining.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace foresail::jinja {

class Text {
 public:
  struct Run {
    size_t end;  // one past the last byte
    bool tainted;
  };

  Text() = default;
  Text(std::string bytes, bool tainted);

  const std::string& bytes() const { return bytes_; }
  std::string_view view() const { return bytes_; }
  size_t size_bytes() const { return bytes_.size(); }
  bool empty() const { return bytes_.empty(); }
  const std::vector<Run>& runs() const { return runs_; }
  bool any_tainted() const;

  void append(std::string_view bytes, bool tainted);
  void append(const Text& other) { append(other, 0, other.bytes_.size()); }
  void append(const Text& other, size_t begin, size_t end);  // bytes [begin, end)
  Text slice(size_t begin, size_t end) const;

  bool markup = false;  // made by the `safe` filter: `+` escapes its other operand

 private:
  void close_run(bool tainted);

  std::string bytes_;
  std::vector<Run> runs_;
};

// Byte offset of every character plus the size, so offsets[i]..offsets[i+1] is character i.
std::vector<size_t> character_offsets(std::string_view text);
size_t count_characters(std::string_view text);
// Position of needle at or after `from`, npos when absent; linear time.
size_t find_bytes(std::string_view text, std::string_view needle, size_t from);
// Of the last needle in the text.
size_t find_last_bytes(std::string_view text, std::string_view needle);

}  // namespace foresail::jinja
