// A JSON value from a client, however large, that is let go of without asking for memory: the
// library's own destructor takes as much again as an array is long, where nothing may fail.
// A value on one thread.
#pragma once

#include <utility>

#include "base/json.h"

namespace foresail {

// Leaves nothing in it that has parts. As deep a recursion as the value is deep.
template <typename Value>
void take_apart(Value& value) noexcept {
  if (value.is_array()) {
    auto& list = value.template get_ref<typename Value::array_t&>();
    for (Value& item : list) take_apart(item);
    list.clear();
  } else if (value.is_object()) {
    auto& object = value.template get_ref<typename Value::object_t&>();
    for (auto& member : object) take_apart(member.second);
    object.clear();
  }
}

class JsonTree {
 public:
  explicit JsonTree(OrderedJson root) : root_(std::move(root)) {}
  JsonTree(JsonTree&&) = default;
  JsonTree& operator=(JsonTree&&) = delete;
  ~JsonTree() { take_apart(root_); }

  OrderedJson& root() { return root_; }
  const OrderedJson& root() const { return root_; }

 private:
  OrderedJson root_;
};

}  // namespace foresail
