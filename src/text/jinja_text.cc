#include "text/jinja_text.h"

#include <string.h>

#include <algorithm>

namespace foresail::jinja {

Text::Text(std::string bytes, bool tainted) : bytes_(std::move(bytes)) {
  close_run(tainted);
}

bool Text::any_tainted() const {
  return std::any_of(runs_.begin(), runs_.end(), [](const Run& run) { return run.tainted; });
}

void Text::close_run(bool tainted) {
  if (bytes_.empty() || (!runs_.empty() && runs_.back().end == bytes_.size())) return;
  if (!runs_.empty() && runs_.back().tainted == tainted) {
    runs_.back().end = bytes_.size();
  } else {
    runs_.push_back({bytes_.size(), tainted});
  }
}

void Text::append(std::string_view bytes, bool tainted) {
  bytes_.append(bytes);
  close_run(tainted);
}

void Text::append(const Text& other, size_t begin, size_t end) {
  auto run = std::partition_point(other.runs_.begin(), other.runs_.end(),
                                  [&](const Run& candidate) { return candidate.end <= begin; });
  for (; begin < end; ++run) {
    const size_t stop = std::min(run->end, end);
    append(std::string_view(other.bytes_).substr(begin, stop - begin), run->tainted);
    begin = stop;
  }
}

Text Text::slice(size_t begin, size_t end) const {
  Text out;
  out.append(*this, begin, end);
  return out;
}

std::vector<size_t> character_offsets(std::string_view text) {
  std::vector<size_t> offsets;
  offsets.reserve(text.size() + 1);
  for (size_t i = 0; i < text.size(); ++i) {
    if ((static_cast<unsigned char>(text[i]) & 0xc0) != 0x80) offsets.push_back(i);
  }
  offsets.push_back(text.size());
  return offsets;
}

size_t count_characters(std::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  }));
}

size_t find_bytes(std::string_view text, std::string_view needle, size_t from) {
  if (from > text.size()) return std::string_view::npos;
  if (needle.empty()) return from;
  const void* hit = memmem(text.data() + from, text.size() - from, needle.data(), needle.size());
  if (hit == nullptr) return std::string_view::npos;
  return static_cast<size_t>(static_cast<const char*>(hit) - text.data());
}

size_t find_last_bytes(std::string_view text, std::string_view needle) {
  const std::string turned(text.rbegin(), text.rend());
  const std::string wanted(needle.rbegin(), needle.rend());
  const size_t hit = find_bytes(turned, wanted, 0);
  return hit == std::string_view::npos ? hit : text.size() - hit - needle.size();
}

}  // namespace foresail::jinja
