// Expressions (declared in jinja_interpreter.h).
#include <fmt/core.h>

#include "text/jinja_interpreter.h"
#include "text/jinja_operators.h"
#include "text/jinja_print.h"

namespace foresail::jinja {

Value Interpreter::evaluate(const Expr& expr, Scope& scope) {
  const Depth depth(*this);
  heap_.step();
  line_ = expr.line;
  switch (expr.kind) {
    case ExprKind::kConstant:
      return expr.constant;
    case ExprKind::kName:
      return lookup(expr.name, scope);
    case ExprKind::kAttribute: {
      const Value owner = evaluate(*expr.children[0], scope);
      line_ = expr.line;
      return get_attribute(heap_, owner, expr.name);
    }
    case ExprKind::kItem:
      return item(expr, scope);
    case ExprKind::kCall:
      return call_expression(expr, scope);
    case ExprKind::kFilter:
      return filter_expression(expr, scope);
    case ExprKind::kCompare:
      return compare(expr, scope);
    case ExprKind::kConcat:
      return concat(expr, scope);
    case ExprKind::kList:
    case ExprKind::kTuple:
    case ExprKind::kDict:
      return literal(expr, scope);
    default:
      return evaluate_operator(expr, scope);
  }
}

Value Interpreter::evaluate_operator(const Expr& expr, Scope& scope) {
  const auto child = [&](size_t i) { return evaluate(*expr.children[i], scope); };
  switch (expr.kind) {
    case ExprKind::kSlice:
      throw JinjaError("a slice is not a value");
    case ExprKind::kTest: {
      const Value input = child(0);
      return bool_value(test(expr.name, input, arguments(expr.arguments, scope)));
    }
    case ExprKind::kConditional:
      if (is_truthy(child(0))) return child(1);
      if (expr.children[2]) return child(2);
      return undefined_value(
          fmt::format("the inline if-expression on line {} evaluated to false and no "
                      "else section was defined.",
                      expr.line));
    case ExprKind::kOr:
    case ExprKind::kAnd: {
      Value left = child(0);
      return is_truthy(left) == (expr.kind == ExprKind::kOr) ? left : child(1);
    }
    case ExprKind::kNot:
      return bool_value(!is_truthy(child(0)));
    case ExprKind::kNegate:
      return negate(child(0));
    case ExprKind::kPlus: {
      const Value value = child(0);
      return negate(negate(value));
    }
    default: {
      const Value left = child(0);
      const Value right = child(1);
      line_ = expr.line;
      return binary(heap_, expr.kind, left, right);
    }
  }
}

Value Interpreter::lookup(const std::string& name, Scope& scope) {
  for (Scope* s = &scope; s != nullptr; s = s->parent) {
    heap_.step(static_cast<int64_t>(s->names.size() / 16));
    if (const Value* value = s->find_here(name)) return *value;
  }
  if (auto global = find_global(name)) return *global;
  return undefined_value(fmt::format("'{}' is undefined", name));
}

Value Interpreter::literal(const Expr& expr, Scope& scope) {
  if (expr.kind == ExprKind::kDict) {
    const Value out = heap_.dict();
    for (size_t i = 0; i < expr.children.size(); i += 2) {
      const Value key = evaluate(*expr.children[i], scope);
      heap_.set(out.dict(), key, evaluate(*expr.children[i + 1], scope));
    }
    return out;
  }
  std::vector<Value> items;
  items.reserve(expr.children.size());
  for (const ExprPtr& child : expr.children) items.push_back(evaluate(*child, scope));
  return heap_.list(std::move(items), expr.kind == ExprKind::kList ? Kind::kList : Kind::kTuple);
}

Value Interpreter::item(const Expr& expr, Scope& scope) {
  const Value owner = evaluate(*expr.children[0], scope);
  const Expr& index = *expr.children[1];
  if (index.kind != ExprKind::kSlice) {
    const Value key = evaluate(index, scope);
    line_ = expr.line;
    return get_item(heap_, owner, key);
  }
  SliceBounds bounds;
  std::optional<Integer>* parts[] = {&bounds.start, &bounds.stop, &bounds.step};
  for (size_t i = 0; i < 3; ++i) {
    if (!index.children[i]) continue;
    const Value bound = evaluate(*index.children[i], scope);
    if (bound.is(Kind::kNone)) continue;
    if (!bound.is_integral()) throw JinjaError("slice indices must be integers or None");
    *parts[i] = bound.integer;
  }
  line_ = expr.line;
  if (owner.is(Kind::kUndefined)) throw_undefined(owner);
  if (owner.is(Kind::kString) || owner.is(Kind::kList) || owner.is(Kind::kTuple) ||
      owner.is(Kind::kRange)) {
    return slice(heap_, owner, bounds);
  }
  throw JinjaError(fmt::format("'{}' object cannot be sliced", type_name(owner)));
}

Arguments Interpreter::arguments(const CallArguments& source, Scope& scope) {
  Arguments out;
  for (const ExprPtr& expr : source.positional) out.positional.push_back(evaluate(*expr, scope));
  for (const auto& [name, expr] : source.keywords) {
    if (out.find(name) != nullptr)
      throw JinjaError(fmt::format("keyword argument repeated: {}", name));
    out.named.emplace_back(name, evaluate(*expr, scope));
  }
  if (source.star) {
    const std::vector<Value>& extra = iterate(heap_, evaluate(*source.star, scope)).items;
    out.positional.insert(out.positional.end(), extra.begin(), extra.end());
  }
  if (source.star_star) {
    const Value extra = evaluate(*source.star_star, scope);
    if (!extra.is(Kind::kDict)) throw JinjaError("argument after ** must be a mapping");
    for (const auto& [key, value] : extra.dict().entries) {
      if (!key.is(Kind::kString)) throw JinjaError("keywords must be strings");
      if (out.find(key.bytes()) != nullptr) {
        throw JinjaError(fmt::format("got multiple values for keyword argument '{}'", key.bytes()));
      }
      heap_.step(static_cast<int64_t>(out.named.size()) / 8 + 1);
      out.named.emplace_back(key.bytes(), value);
    }
  }
  return out;
}

Value Interpreter::call_expression(const Expr& expr, Scope& scope) {
  const Value callee = evaluate(*expr.children[0], scope);
  const Arguments args = arguments(expr.arguments, scope);
  line_ = expr.line;
  return call(callee, args);
}

Value Interpreter::filter_expression(const Expr& expr, Scope& scope) {
  const Value input = evaluate(*expr.children[0], scope);
  const Arguments args = arguments(expr.arguments, scope);
  line_ = expr.line;
  return filter(expr.name, input, args);
}

Value Interpreter::compare(const Expr& expr, Scope& scope) {
  Value left = evaluate(*expr.children[0], scope);
  for (size_t i = 0; i < expr.compare.size(); ++i) {
    Value right = evaluate(*expr.children[i + 1], scope);
    line_ = expr.line;
    bool holds = false;
    switch (expr.compare[i]) {
      case CompareOp::kEq:
        holds = values_equal(heap_, left, right);
        break;
      case CompareOp::kNe:
        holds = !values_equal(heap_, left, right);
        break;
      case CompareOp::kLt:
        holds = value_less(heap_, left, right, "<");
        break;
      case CompareOp::kGt:
        holds = value_less(heap_, right, left, ">");
        break;
      case CompareOp::kLe:
        holds = value_less(heap_, left, right, "<=") || values_equal(heap_, left, right);
        break;
      case CompareOp::kGe:
        holds = value_less(heap_, right, left, ">=") || values_equal(heap_, left, right);
        break;
      case CompareOp::kIn:
        holds = contains(heap_, right, left);
        break;
      case CompareOp::kNotIn:
        holds = !contains(heap_, right, left);
        break;
    }
    if (!holds) return bool_value(false);
    left = std::move(right);
  }
  return bool_value(true);
}

Value Interpreter::concat(const Expr& expr, Scope& scope) {
  Text out;
  for (const ExprPtr& child : expr.children) append_text(heap_, out, evaluate(*child, scope));
  return heap_.text(std::move(out));
}

}  // namespace foresail::jinja
