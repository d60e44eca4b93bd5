// Iteration, ranges, indexing and slicing (declared in jinja_operators.h).
#include <fmt/core.h>

#include <algorithm>

#include "text/jinja_operators.h"

namespace foresail::jinja {
namespace {

bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

// Indices that value[start:stop:step] visits: first, count, step (Python's slice.indices).
struct Visits {
  Integer first, count, step;
};
Visits resolve(const SliceBounds& bounds, Integer length) {
  const Integer step = bounds.step.value_or(1);
  if (step == 0) throw JinjaError("slice step cannot be zero");
  const Integer lowest = step < 0 ? -1 : 0, highest = step < 0 ? length - 1 : length;
  const auto place = [&](const std::optional<Integer>& bound, Integer fallback) {
    if (!bound) return fallback;
    Integer at = *bound;
    if (at < -length) at = -length - 1;  // also keeps the sum below from overflowing
    if (at < 0) at += length;
    return std::clamp(at, lowest, std::max(lowest, highest));
  };
  const Integer start = place(bounds.start, step < 0 ? highest : lowest);
  const Integer stop = place(bounds.stop, step < 0 ? lowest : highest);
  const Integer distance = step > 0 ? stop - start : start - stop;
  if (distance <= 0) return {start, 0, step};
  const Integer stride = step > 0 ? step : (step < -length ? length + 1 : -step);
  // A longer step visits the same single item; the bound keeps products small.
  return {start, (distance - 1) / stride + 1,
          std::clamp(step, -(Integer{1} << 40), Integer{1} << 40)};
}

Value slice_text(Heap& heap, const Text& text, const SliceBounds& bounds) {
  heap.charge_string(text.size_bytes());
  if (is_ascii(text.view())) {
    const Visits visits = resolve(bounds, static_cast<Integer>(text.size_bytes()));
    const auto first = static_cast<size_t>(visits.first);
    if (visits.step == 1)
      return string_value(text.slice(first, first + static_cast<size_t>(visits.count)));
  }
  heap.charge_scan(text.size_bytes());
  const std::vector<size_t> offsets = character_offsets(text.view());
  const Visits visits = resolve(bounds, static_cast<Integer>(offsets.size() - 1));
  heap.step(static_cast<int64_t>(visits.count));
  Text out;
  for (Integer i = 0; i < visits.count; ++i) {
    const auto at = static_cast<size_t>(visits.first + i * visits.step);
    out.append(text, offsets[at], offsets[at + 1]);
  }
  return string_value(std::move(out));
}

Value character(const Text& text, size_t begin, size_t end) {
  return string_value(text.slice(begin, end));
}

}  // namespace

ListObject& iterate(Heap& heap, const Value& value) {
  switch (value.kind) {
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kRange:
    case Kind::kView:
      return value.list();
    case Kind::kGenerator: {
      ListObject& source = value.list();
      std::vector<Value> rest(source.items.begin() + static_cast<long>(source.cursor),
                              source.items.end());
      source.cursor = source.items.size();
      return heap.list(std::move(rest)).list();
    }
    case Kind::kUndefined:
      return heap.list({}).list();
    case Kind::kDict: {
      std::vector<Value> keys;
      for (const auto& [key, unused] : value.dict().entries) keys.push_back(key);
      return heap.list(std::move(keys)).list();
    }
    case Kind::kString: {
      const std::vector<size_t> offsets = character_offsets(value.text->view());
      heap.charge_items(offsets.size());
      heap.step(static_cast<int64_t>(offsets.size()) * 4);
      std::vector<Value> characters;
      characters.reserve(offsets.size());
      for (size_t i = 0; i + 1 < offsets.size(); ++i) {
        characters.push_back(character(*value.text, offsets[i], offsets[i + 1]));
      }
      return heap.list(std::move(characters)).list();
    }
    default:
      throw JinjaError(fmt::format("'{}' object is not iterable", type_name(value)));
  }
}

int64_t length_of(Heap& heap, const Value& value) {
  switch (value.kind) {
    case Kind::kUndefined:
      return 0;
    case Kind::kString:
      heap.charge_string(value.text->size_bytes());
      return static_cast<int64_t>(count_characters(value.text->view()));
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kRange:
    case Kind::kView:
      return static_cast<int64_t>(value.list().items.size());
    case Kind::kDict:
      return static_cast<int64_t>(value.dict().entries.size());
    default:
      throw JinjaError(fmt::format("object of type '{}' has no len()", type_name(value)));
  }
}

Value make_range(Heap& heap, Integer start, Integer stop, Integer step) {
  if (step == 0) throw JinjaError("range() arg 3 must not be zero");
  constexpr Integer kBound = Integer{1} << 80;  // far past any length, so nothing below overflows
  for (Integer* bound : {&start, &stop, &step}) {
    if (*bound > kBound || *bound < -kBound) throw JinjaError("range() arguments too large");
  }
  const Integer distance = step > 0 ? stop - start : start - stop;
  const Integer stride = step > 0 ? step : -step;
  const Integer count = distance <= 0 ? 0 : (distance - 1) / stride + 1;
  if (count > heap.limits().max_range) {
    throw JinjaError(fmt::format("limit max_range ({}) exceeded", heap.limits().max_range));
  }
  std::vector<Value> items;
  for (Integer i = 0; i < count; ++i) items.push_back(int_value(start + i * step));
  Value out = heap.list(std::move(items), Kind::kRange);
  out.list().start = start;
  out.list().stop = stop;
  out.list().step = step;
  return out;
}

Value slice(Heap& heap, const Value& value, const SliceBounds& bounds) {
  if (value.is(Kind::kString)) return slice_text(heap, *value.text, bounds);
  const std::vector<Value>& source = value.list().items;
  const Visits visits = resolve(bounds, static_cast<Integer>(source.size()));
  std::vector<Value> items;
  for (Integer i = 0; i < visits.count; ++i) {
    items.push_back(source[static_cast<size_t>(visits.first + i * visits.step)]);
  }
  Value out = heap.list(std::move(items), value.kind);
  if (value.is(Kind::kRange)) {
    const ListObject& range = value.list();
    out.list().start = range.start + visits.first * range.step;
    out.list().step = range.step * visits.step;
    out.list().stop = out.list().start + visits.count * out.list().step;
  }
  return out;
}

std::optional<Value> element(Heap& heap, const Value& value, Integer index) {
  if (value.is(Kind::kString)) {
    const Text& text = *value.text;
    heap.charge_string(text.size_bytes());
    if (is_ascii(text.view())) {
      if (index < 0) index += static_cast<Integer>(text.size_bytes());
      if (index < 0 || index >= static_cast<Integer>(text.size_bytes())) return std::nullopt;
      return character(text, static_cast<size_t>(index), static_cast<size_t>(index) + 1);
    }
    heap.charge_scan(text.size_bytes());
    const std::vector<size_t> offsets = character_offsets(text.view());
    const auto length = static_cast<Integer>(offsets.size() - 1);
    if (index < 0) index += length;
    if (index < 0 || index >= length) return std::nullopt;
    return character(text, offsets[static_cast<size_t>(index)],
                     offsets[static_cast<size_t>(index) + 1]);
  }
  if (!value.is(Kind::kList) && !value.is(Kind::kTuple) && !value.is(Kind::kRange))
    return std::nullopt;
  const std::vector<Value>& items = value.list().items;
  if (index < 0) index += static_cast<Integer>(items.size());
  if (index < 0 || index >= static_cast<Integer>(items.size())) return std::nullopt;
  return items[static_cast<size_t>(index)];
}

}  // namespace foresail::jinja
