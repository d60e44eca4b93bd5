// Values of the template language, with Python's rules for truth, equality and order.
// Scalars and strings are held by value; containers and closures belong to the Heap of one render,
// so a cyclic list costs nothing to free and a deep one cannot overflow the stack when destroyed.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja_limits.h"
#include "text/jinja_text.h"

namespace foresail::jinja {

using Integer = __int128;  // wide enough for every JSON integer; overflow is an error

enum class Kind : uint8_t {
  kUndefined,
  kNone,
  kBool,
  kInt,
  kFloat,
  kString,
  kList,
  kTuple,
  kRange,
  kGenerator,
  kView,  // ListObject
  kDict,
  kNamespace,  // DictObject
  kMethod,
  kFunction,
  kMacro,
  kLoop,
};

struct Object {
  virtual ~Object() = default;
};
struct ListObject;
struct DictObject;
class Heap;  // whose steps comparisons and searches cost

struct Value {
  Kind kind = Kind::kUndefined;
  bool tainted = false;  // a number, bool or None out of the conversation
  union {
    Integer integer = 0;  // kInt, kBool, kFunction (its id)
    double real;
    Object* object;
  };
  std::shared_ptr<const Text> text;  // kString; kUndefined: why, for the error

  bool is(Kind wanted) const { return kind == wanted; }
  bool is_number() const {
    return kind == Kind::kBool || kind == Kind::kInt || kind == Kind::kFloat;
  }
  bool is_sequence_object() const { return kind >= Kind::kList && kind <= Kind::kView; }
  bool is_integral() const { return kind == Kind::kInt || kind == Kind::kBool; }
  ListObject& list() const;
  DictObject& dict() const;
  const std::string& bytes() const { return text->bytes(); }
  double as_double() const { return is(Kind::kFloat) ? real : static_cast<double>(integer); }
};

struct ListObject : Object {
  std::vector<Value> items;
  size_t cursor = 0;                      // generators: items before it are consumed
  Integer start = 0, stop = 0, step = 1;  // ranges, for printing
  const char* view_name = "";             // "dict_items", ...
};

// Insertion-ordered; keys compare as in Python (1, 1.0 and True are one key).
struct DictObject : Object {
  std::vector<std::pair<Value, Value>> entries;
  // Of string keys, built past a few entries. No hashes: clients could choose keys that collide.
  std::map<std::string, size_t, std::less<>> index;

  const Value* find(Heap& heap, std::string_view key) const;
  const Value* find(Heap& heap, const Value& key) const;  // unhashable keys are not found
  void set(Heap& heap, const Value& key, Value value);
  bool erase(Heap& heap, const Value& key);
};

struct MethodObject : Object {
  Value self;
  std::string name;
};

Value none_value();
Value bool_value(bool value);
Value int_value(Integer value);
Value float_value(double value);
Value string_value(Text text);
Value string_value(std::string_view template_text);
Value undefined_value(std::string why);

bool is_truthy(const Value& value);
bool is_hashable(Heap& heap, const Value& value, int depth = 0);
bool values_equal(Heap& heap, const Value& a, const Value& b, int depth = 0);
// a < b; throws for kinds that Python does not order.
bool value_less(Heap& heap, const Value& a, const Value& b, const char* op = "<", int depth = 0);
const char* type_name(const Value& value);  // "str", "int", ... as Python names them
// "'x' is undefined" and the like, thrown when an undefined value is used.
[[noreturn]] void throw_undefined(const Value& value);

}  // namespace foresail::jinja
