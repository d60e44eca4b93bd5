#include "text/jinja_heap.h"

#include <fmt/core.h>

namespace foresail::jinja {
namespace {

constexpr size_t kBytesPerStep = 32;
constexpr size_t kScannedBytesPerStep = 4;

[[noreturn]] void over_limit(const char* name, size_t value) {
  throw JinjaError(fmt::format("limit {} ({}) exceeded", name, value));
}

}  // namespace

Value* Scope::find_here(std::string_view name) {
  for (auto& [key, value] : names) {
    if (key == name) return &value;
  }
  return nullptr;
}

void Scope::set(std::string_view name, Value value) {
  if (Value* old = find_here(name)) {
    *old = std::move(value);
  } else {
    names.emplace_back(name, std::move(value));
  }
}

void Heap::step(int64_t count) {
  steps_ += count;
  if (steps_ > limits_.max_steps) over_limit("max_steps", static_cast<size_t>(limits_.max_steps));
}

void Heap::charge_string(size_t bytes) {
  if (bytes > limits_.max_string_bytes) over_limit("max_string_bytes", limits_.max_string_bytes);
  step(static_cast<int64_t>(bytes / kBytesPerStep));
}

void Heap::charge_scan(size_t bytes) {
  step(static_cast<int64_t>(bytes / kScannedBytesPerStep));
}

void Heap::charge_comparisons(size_t count, size_t bytes) {
  step(static_cast<int64_t>(count * (bytes / kBytesPerStep)));
}

void Heap::charge_items(size_t total) {
  if (total > limits_.max_items) over_limit("max_items", limits_.max_items);
}

void Heap::charge_heap(size_t bytes) {
  heap_bytes_ += bytes;
  if (heap_bytes_ > limits_.max_heap_bytes) over_limit("max_heap_bytes", limits_.max_heap_bytes);
}

Scope& Heap::create_scope(Scope* parent) {
  if (!free_scopes_.empty()) {
    Scope& out = *free_scopes_.back();
    free_scopes_.pop_back();
    out.parent = parent;
    return out;
  }
  Scope& out = create<Scope>();
  out.parent = parent;
  return out;
}

void Heap::release_scope(Scope& scope) {
  if (scope.captured) return;
  scope.names.clear();
  free_scopes_.push_back(&scope);
}

Value Heap::list(std::vector<Value> items, Kind kind) {
  charge_items(items.size());
  charge_heap(items.size() * sizeof(Value));
  step(static_cast<int64_t>(items.size()));
  ListObject& object = create<ListObject>();
  object.items = std::move(items);
  Value out;
  out.kind = kind;
  out.object = &object;
  return out;
}

Value Heap::dict() {
  Value out;
  out.kind = Kind::kDict;
  out.object = &create<DictObject>();
  return out;
}

Value Heap::text(Text text) {
  charge_string(text.size_bytes());
  return string_value(std::move(text));
}

void Heap::append(ListObject& list, Value item) {
  charge_items(list.items.size() + 1);
  charge_heap(sizeof(Value));
  list.items.push_back(std::move(item));
}

void Heap::set(DictObject& dict, const Value& key, Value value) {
  if (!is_hashable(*this, key))
    throw JinjaError(fmt::format("unhashable type: '{}'", type_name(key)));
  charge_items(dict.entries.size() + 1);
  // An index holds a copy of every text.
  charge_heap(2 * sizeof(Value) + (key.is(Kind::kString) ? key.text->size_bytes() : 0));
  dict.set(*this, key, std::move(value));
}

}  // namespace foresail::jinja
