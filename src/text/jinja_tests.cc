// The tests behind `is` (declared in jinja_filters.h and jinja_interpreter.h).
#include <fmt/core.h>

#include <unordered_map>

#include "text/jinja_filters.h"
#include "text/jinja_operators.h"
#include "text/jinja_print.h"

namespace foresail::jinja {
namespace {

using Test = bool (*)(Interpreter&, const Value& input, const Arguments&);

const Value& operand(const Arguments& arguments) {
  const Bound args("test", arguments, {"other"});
  return args.required(0);
}

bool odd_or_even(Interpreter& in, const Value& input, bool odd) {
  const Value rest = binary(in.heap(), ExprKind::kMod, input, int_value(2));
  return values_equal(in.heap(), rest, int_value(odd ? 1 : 0));
}

bool same_object(Heap& heap, const Value& a, const Value& b) {
  if (a.kind != b.kind) return false;
  if (a.is(Kind::kString) || a.is_number() || a.is(Kind::kNone) || a.is(Kind::kUndefined))
    return values_equal(heap, a, b);
  return a.object == b.object;
}

bool is_iterable(const Value& value) {
  return value.is_sequence_object() || value.is(Kind::kUndefined) || value.is(Kind::kString) ||
         value.is(Kind::kDict) || value.is(Kind::kLoop);
}
bool is_sequence(const Value& value) {
  return value.is(Kind::kList) || value.is(Kind::kTuple) || value.is(Kind::kRange) ||
         value.is(Kind::kString) || value.is(Kind::kDict) || value.is(Kind::kUndefined);
}
bool has_case(Interpreter& in, const Value& value, const char* method) {
  return is_truthy(call_string_method(in.heap(), text_of(in.heap(), value), method, {}));
}

#define FORESAIL_JINJA_TEST(expression)                                  \
  [](Interpreter&, const Value& v, const Arguments& arguments) -> bool { \
    const Bound none("test", arguments, {});                             \
    return (expression);                                                 \
  }
#define FORESAIL_JINJA_COMPARE(expression)                                  \
  [](Interpreter& in, const Value& v, const Arguments& arguments) -> bool { \
    const Value& other = operand(arguments);                                \
    return (expression);                                                    \
  }

const std::unordered_map<std::string_view, Test>& tests() {
  static const Test kEqual = FORESAIL_JINJA_COMPARE(values_equal(in.heap(), v, other));
  static const Test kNotEqual = FORESAIL_JINJA_COMPARE(!values_equal(in.heap(), v, other));
  static const Test kLess = FORESAIL_JINJA_COMPARE(value_less(in.heap(), v, other));
  static const Test kGreater = FORESAIL_JINJA_COMPARE(value_less(in.heap(), other, v, ">"));
  static const Test kLessEqual = FORESAIL_JINJA_COMPARE(value_less(in.heap(), v, other, "<=") ||
                                                        values_equal(in.heap(), v, other));
  static const Test kGreaterEqual = FORESAIL_JINJA_COMPARE(value_less(in.heap(), other, v, ">=") ||
                                                           values_equal(in.heap(), v, other));
  static const std::
      unordered_map<std::string_view, Test>
          kTests = {{"defined", FORESAIL_JINJA_TEST(!v.is(Kind::kUndefined))},
                    {"undefined", FORESAIL_JINJA_TEST(v.is(Kind::kUndefined))},
                    {"none", FORESAIL_JINJA_TEST(v.is(Kind::kNone))},
                    {"boolean", FORESAIL_JINJA_TEST(v.is(Kind::kBool))},
                    {"true", FORESAIL_JINJA_TEST(v.is(Kind::kBool) && v.integer == 1)},
                    {"false", FORESAIL_JINJA_TEST(v.is(Kind::kBool) && v.integer == 0)},
                    {"integer", FORESAIL_JINJA_TEST(v.is(Kind::kInt))},
                    {"float", FORESAIL_JINJA_TEST(v.is(Kind::kFloat))},
                    {"number", FORESAIL_JINJA_TEST(v.is_number())},
                    {"string", FORESAIL_JINJA_TEST(v.is(Kind::kString))},
                    {"mapping", FORESAIL_JINJA_TEST(v.is(Kind::kDict))},
                    {"sequence", FORESAIL_JINJA_TEST(is_sequence(v))},
                    {"iterable", FORESAIL_JINJA_TEST(is_iterable(v))},
                    {"callable",
                     FORESAIL_JINJA_TEST(v.kind >= Kind::kMethod || v.is(Kind::kUndefined))},
                    {"escaped", FORESAIL_JINJA_TEST(v.is(Kind::kString) && v.text->markup)},
                    {"filter", FORESAIL_JINJA_TEST(v.is(Kind::kString) && is_filter(v.bytes()))},
                    {"test", FORESAIL_JINJA_TEST(v.is(Kind::kString) && is_test(v.bytes()))},
                    {"odd",
                     [](Interpreter& in, const Value& v,
                        const Arguments&) { return odd_or_even(in, v, true); }},
                    {"even", [](
                                 Interpreter& in, const Value& v,
                                 const Arguments&) { return odd_or_even(in, v, false); }},
                    {"lower", [](Interpreter& in, const Value& v,
                                 const Arguments&) { return has_case(in, v, "islower"); }},
                    {"upper", [](Interpreter& in, const Value& v,
                                 const Arguments&) { return has_case(in, v, "isupper"); }},
                    {"divisibleby",
                     [](Interpreter& in, const Value& v, const Arguments& arguments) {
                       return values_equal(in.heap(),
                                           binary(in.heap(), ExprKind::kMod, v, operand(arguments)),
                                           int_value(0));
                     }},
                    {"in",
                     [](Interpreter& in, const Value& v,
                        const Arguments&
                            arguments) { return contains(in.heap(), operand(arguments), v); }},
                    {"sameas", FORESAIL_JINJA_COMPARE(same_object(in.heap(), v, other))},
                    {"==", kEqual},
                    {"eq", kEqual},
                    {"equalto", kEqual},
                    {"!=", kNotEqual},
                    {"ne", kNotEqual},
                    {"<", kLess},
                    {"lt", kLess},
                    {"lessthan", kLess},
                    {">", kGreater},
                    {"gt", kGreater},
                    {"greaterthan", kGreater},
                    {"<=", kLessEqual},
                    {"le", kLessEqual},
                    {">=", kGreaterEqual},
                    {"ge", kGreaterEqual}};
  return kTests;
}

#undef FORESAIL_JINJA_TEST
#undef FORESAIL_JINJA_COMPARE

}  // namespace

bool is_test(std::string_view name) {
  return tests().contains(name);
}

bool Interpreter::test(std::string_view name, const Value& input, const Arguments& arguments) {
  const Depth depth(*this);
  heap_.step();
  const auto it = tests().find(name);
  if (it == tests().end()) throw JinjaError(fmt::format("No test named '{}'.", name));
  return it->second(*this, input, arguments);
}

}  // namespace foresail::jinja
