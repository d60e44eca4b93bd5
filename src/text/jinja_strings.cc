#include "text/jinja_strings.h"

#include <algorithm>

#include "base/utf8.h"

namespace foresail::jinja {
namespace {

size_t character_before(std::string_view text, size_t end) {
  size_t begin = end - 1;
  while (begin > 0 && (static_cast<unsigned char>(text[begin]) & 0xc0) == 0x80) --begin;
  return begin;
}

void push(Heap& heap, std::vector<Value>& out, Text piece) {
  heap.charge_items(out.size() + 1);
  heap.step(2);
  out.push_back(string_value(std::move(piece)));
}

}  // namespace

Text strip(Heap& heap, const Text& text, const Text* characters, bool left, bool right) {
  const std::string_view body = text.view();
  heap.charge_string(body.size());
  const auto matches = [&](size_t begin, size_t length) {
    heap.step(1 + static_cast<int64_t>(characters == nullptr ? 0 : characters->size_bytes() / 32));
    if (characters == nullptr) return is_space(decode_utf8(body, begin).code_point);
    return characters->view().find(body.substr(begin, length)) != std::string_view::npos;
  };
  size_t begin = 0, end = body.size();
  while (left && begin < end) {
    const size_t length = decode_utf8(body, begin).length_bytes;
    if (!matches(begin, length)) break;
    begin += length;
  }
  while (right && end > begin) {
    const size_t start = character_before(body, end);
    if (!matches(start, end - start)) break;
    end = start;
  }
  return text.slice(begin, end);
}

std::vector<Value> split(Heap& heap, const Text& text, const Text& separator, int64_t max_splits,
                         bool from_right) {
  const size_t width = separator.size_bytes();
  std::vector<Value> out;
  if (!from_right) {
    size_t begin = 0;
    while (max_splits < 0 || static_cast<int64_t>(out.size()) < max_splits) {
      const size_t hit = find_bytes(text.view(), separator.view(), begin);
      if (hit == std::string_view::npos) break;
      push(heap, out, text.slice(begin, hit));
      begin = hit + width;
    }
    push(heap, out, text.slice(begin, text.size_bytes()));
    return out;
  }
  // Turned round, what is searched from the right is searched from the left, in linear time.
  const std::string turned(text.view().rbegin(), text.view().rend());
  const std::string wanted(separator.view().rbegin(), separator.view().rend());
  size_t begin = 0;
  while (max_splits < 0 || static_cast<int64_t>(out.size()) < max_splits) {
    const size_t hit = find_bytes(turned, wanted, begin);
    if (hit == std::string_view::npos) break;
    push(heap, out, text.slice(turned.size() - hit, turned.size() - begin));
    begin = hit + width;
  }
  push(heap, out, text.slice(0, turned.size() - begin));
  std::reverse(out.begin(), out.end());
  return out;
}

std::vector<Value> split_space(Heap& heap, const Text& text, int64_t max_splits, bool from_right) {
  const std::string_view body = text.view();
  heap.charge_scan(body.size());
  std::vector<std::pair<size_t, size_t>> words;
  for (size_t i = 0, begin = 0; i <= body.size();) {
    const Utf8Char c = i < body.size() ? decode_utf8(body, i) : Utf8Char{' ', 1, true};
    if (is_space(c.code_point)) {
      if (i > begin) words.emplace_back(begin, i);
      begin = i + c.length_bytes;
    }
    i += c.length_bytes;
  }
  std::vector<Value> out;
  const size_t count = words.size();
  const size_t splits = max_splits < 0 ? count : static_cast<size_t>(max_splits);
  if (count <= splits || count == 0) {
    for (const auto& [begin, end] : words) push(heap, out, text.slice(begin, end));
  } else if (!from_right) {
    for (size_t i = 0; i < splits; ++i)
      push(heap, out, text.slice(words[i].first, words[i].second));
    push(heap, out, text.slice(words[splits].first, body.size()));  // white space at the end stays
  } else {
    push(heap, out, text.slice(0, words[count - splits - 1].second));
    for (size_t i = count - splits; i < count; ++i)
      push(heap, out, text.slice(words[i].first, words[i].second));
  }
  return out;
}

std::vector<Value> split_lines(Heap& heap, const Text& text, bool keep_ends) {
  const std::string_view body = text.view();
  heap.charge_scan(body.size());
  std::vector<Value> out;
  size_t begin = 0;
  for (size_t i = 0; i < body.size();) {
    const Utf8Char c = decode_utf8(body, i);
    size_t after = i + c.length_bytes;
    if (is_line_break(c.code_point)) {
      if (c.code_point == '\r' && after < body.size() && body[after] == '\n') ++after;
      push(heap, out, text.slice(begin, keep_ends ? after : i));
      begin = after;
    }
    i = after;
  }
  if (begin < body.size()) push(heap, out, text.slice(begin, body.size()));
  return out;
}

Text replace(Heap& heap, const Text& text, const Text& from, const Text& to, Integer count) {
  Text out;
  size_t copied = 0;
  Integer done = 0;
  for (size_t at = 0; (count < 0 || done < count) && at <= text.size_bytes(); ++done) {
    const size_t hit = find_bytes(text.view(), from.view(), at);
    if (hit == std::string_view::npos) break;
    heap.step();
    heap.charge_string(to.size_bytes());
    out.append(text, copied, hit);
    out.append(to);
    if (out.size_bytes() > heap.limits().max_string_bytes) heap.charge_string(out.size_bytes());
    copied = hit + from.size_bytes();
    // An empty `from` matches before every character and at the end.
    at = from.empty()
             ? hit + (hit < text.size_bytes() ? decode_utf8(text.view(), hit).length_bytes : 1)
             : copied;
  }
  out.append(text, copied, text.size_bytes());
  return out;
}

Text map_case(Heap& heap, const Text& text, Casing casing) {
  heap.charge_scan(text.size_bytes());
  const std::string_view body = text.view();
  constexpr std::string_view kWordBreaks = "-({[<";
  Text out;
  std::string mapped;
  bool word_start = true;
  size_t run = 0;
  for (size_t i = 0; i < body.size();) {
    const Utf8Char c = decode_utf8(body, i);
    Case wanted = casing == Casing::kUpper ? Case::kUpper : Case::kLower;
    if (word_start && (casing == Casing::kCapitalize || casing == Casing::kTitleMethod))
      wanted = Case::kTitle;
    if (word_start && casing == Casing::kTitleFilter) wanted = Case::kUpper;
    mapped.clear();
    const size_t after = i + c.length_bytes;
    // Greek sigma at the end of a word.
    if (c.code_point == 0x3a3 && wanted == Case::kLower && i > 0 &&
        is_alphabetic(decode_utf8(body, character_before(body, i)).code_point) &&
        (after >= body.size() || !is_alphabetic(decode_utf8(body, after).code_point))) {
      append_utf8(mapped, 0x3c2);
    } else {
      append_case(mapped, c.code_point, wanted);
    }
    while (text.runs()[run].end <= i) ++run;
    out.append(mapped, text.runs()[run].tainted);
    if (casing == Casing::kCapitalize) word_start = false;
    if (casing == Casing::kTitleMethod) word_start = !is_alphabetic(c.code_point);
    if (casing == Casing::kTitleFilter) {
      word_start = is_space(c.code_point) ||
                   (c.code_point < 0x80 &&
                    kWordBreaks.find(static_cast<char>(c.code_point)) != std::string_view::npos);
    }
    i = after;
  }
  return out;
}

}  // namespace foresail::jinja
