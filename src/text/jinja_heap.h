// Owner of every container and scope of one render, and keeper of its budget. One per render.
#pragma once

#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja_value.h"

namespace foresail::jinja {

// Names of one block. Lookups walk the parents; assignments stay here.
struct Scope : Object {
  Scope* parent = nullptr;
  std::vector<std::pair<std::string_view, Value>> names;
  bool captured = false;  // a macro closes over it, so it may not be reused

  Value* find_here(std::string_view name);
  void set(std::string_view name, Value value);
};

class Heap {
 public:
  explicit Heap(const Limits& limits) : limits_(limits) {}

  const Limits& limits() const { return limits_; }
  void step(int64_t count = 1);
  void charge_string(size_t bytes);  // about to make a string of this size
  void charge_scan(size_t bytes);    // about to look at every character of so much
  void charge_comparisons(size_t count, size_t bytes);  // of texts that may be so long
  void charge_items(size_t total);                      // a list is about to hold `total` items

  template <typename T>
  T& create() {
    charge_heap(sizeof(T) + 32);
    auto owned = std::make_unique<T>();
    T& out = *owned;
    objects_.push_back(std::move(owned));
    return out;
  }
  Scope& create_scope(Scope* parent);
  void release_scope(Scope& scope);  // for reuse, unless a macro captured it

  Value list(std::vector<Value> items, Kind kind = Kind::kList);
  Value dict();
  Value text(Text text);
  void append(ListObject& list, Value item);
  void set(DictObject& dict, const Value& key, Value value);  // refuses unhashable keys

 private:
  void charge_heap(size_t bytes);

  const Limits limits_;
  int64_t steps_ = 0;
  size_t heap_bytes_ = 0;
  std::vector<std::unique_ptr<Object>> objects_;
  std::vector<Scope*> free_scopes_;
};

}  // namespace foresail::jinja
