#include "text/jinja_interpreter.h"

#include <fmt/core.h>

#include "text/jinja_operators.h"
#include "text/jinja_print.h"

namespace foresail::jinja {

Interpreter::Depth::Depth(Interpreter& interpreter) : interpreter_(interpreter) {
  const int limit = interpreter_.heap_.limits().max_call_depth;
  if (interpreter_.depth_ >= limit) {
    throw JinjaError(fmt::format("limit max_call_depth ({}) exceeded", limit));
  }
  ++interpreter_.depth_;
}

Text Interpreter::render(const Body& body, Scope& context) {
  Text out;
  out_ = &out;
  try {
    run(body, heap_.create_scope(&context));
  } catch (const JinjaError& error) {
    throw JinjaError(error.what(), error.line != 0 ? error.line : line_);
  }
  return out;
}

void Interpreter::emit(const Value& value) {
  if (value.is(Kind::kString)) {
    heap_.step(static_cast<int64_t>(value.text->size_bytes() / 32));
    out_->append(*value.text);
  } else if (!value.is(Kind::kUndefined)) {
    out_->append(repr_of(heap_, value));
  }
  if (out_->size_bytes() > heap_.limits().max_output_bytes) {
    throw JinjaError(
        fmt::format("limit max_output_bytes ({}) exceeded", heap_.limits().max_output_bytes));
  }
}

Interpreter::Flow Interpreter::run(const Body& body, Scope& scope) {
  for (const auto& statement : body) {
    const Flow flow = run(*statement, scope);
    if (flow != Flow::kNormal) return flow;
  }
  return Flow::kNormal;
}

Interpreter::Flow Interpreter::run(const Stmt& statement, Scope& scope) {
  const Depth depth(*this);
  heap_.step();
  line_ = statement.line;
  switch (statement.kind) {
    case StmtKind::kText:
      out_->append(statement.text, false);
      heap_.charge_string(statement.text.size());
      if (out_->size_bytes() > heap_.limits().max_output_bytes) emit(Value());
      break;
    case StmtKind::kPrint:
      emit(evaluate(*statement.value, scope));
      break;
    case StmtKind::kIf:
      return run_if(statement, scope);
    case StmtKind::kFor:
      return run_for(statement, scope, evaluate(*statement.value, scope), 0);
    case StmtKind::kSet:
      assign(*statement.target, evaluate(*statement.value, scope), scope);
      break;
    case StmtKind::kSetBlock:
      run_set_block(statement, scope);
      break;
    case StmtKind::kMacro:
      scope.set(statement.macro->name, define_macro(*statement.macro, scope));
      break;
    case StmtKind::kCallBlock:
      run_call_block(statement, scope);
      break;
    case StmtKind::kFilterBlock: {
      Text body = captured(statement.body, scope);
      emit(filtered(statement.filter.get(), std::move(body), scope));
      break;
    }
    case StmtKind::kWith:
      return run_with(statement, scope);
    case StmtKind::kScope: {
      Scope& inner = heap_.create_scope(&scope);
      const Flow flow = run(statement.body, inner);
      heap_.release_scope(inner);
      return flow;
    }
    case StmtKind::kBreak:
      return Flow::kBreak;
    case StmtKind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNormal;
}

Interpreter::Flow Interpreter::run_if(const Stmt& statement, Scope& scope) {
  for (const Branch& branch : statement.branches) {
    if (!branch.test || is_truthy(evaluate(*branch.test, scope))) return run(branch.body, scope);
  }
  return Flow::kNormal;
}

Interpreter::Flow Interpreter::run_with(const Stmt& statement, Scope& scope) {
  Scope& inner = heap_.create_scope(&scope);
  for (const auto& [target, value] : statement.bindings)
    assign(*target, evaluate(*value, scope), inner);
  const Flow flow = run(statement.body, inner);
  heap_.release_scope(inner);
  return flow;
}

Text Interpreter::captured(const Body& body, Scope& scope) {
  Text text;
  Text* outer = std::exchange(out_, &text);
  Scope& inner = heap_.create_scope(&scope);
  run(body, inner);
  heap_.release_scope(inner);
  out_ = outer;
  return text;
}

Value Interpreter::filtered(const Expr* filters, Text body, Scope& scope) {
  if (filters == nullptr) return heap_.text(std::move(body));
  const Depth depth(*this);
  const Value input = filtered(filters->children[0].get(), std::move(body), scope);
  return filter(filters->name, input, arguments(filters->arguments, scope));
}

void Interpreter::run_set_block(const Stmt& statement, Scope& scope) {
  Text body = captured(statement.body, scope);
  assign(*statement.target, filtered(statement.filter.get(), std::move(body), scope), scope);
}

void Interpreter::run_call_block(const Stmt& statement, Scope& scope) {
  const Expr& call_node = *statement.value;
  const Value callee = evaluate(*call_node.children[0], scope);
  Arguments args = arguments(call_node.arguments, scope);
  args.named.emplace_back("caller", define_macro(*statement.macro, scope));
  emit(call(callee, args));
}

void Interpreter::assign(const Expr& target, const Value& value, Scope& scope) {
  if (target.kind == ExprKind::kName) return scope.set(target.name, value);
  if (target.kind == ExprKind::kAttribute) {
    const Value owner = lookup(target.children[0]->name, scope);
    if (!owner.is(Kind::kNamespace))
      throw JinjaError("cannot assign attribute on non-namespace object");
    if (target.name[0] == '_') {
      throw JinjaError("Chat templates cannot store underscore-prefixed attributes on a namespace");
    }
    return heap_.set(owner.dict(), string_value(target.name), value);
  }
  if (!value.is_sequence_object() && !value.is(Kind::kString) && !value.is(Kind::kDict) &&
      !value.is(Kind::kUndefined)) {
    throw JinjaError(fmt::format("cannot unpack non-iterable {} object", type_name(value)));
  }
  const std::vector<Value> items = iterate(heap_, value).items;
  const size_t wanted = target.children.size();
  if (items.size() > wanted)
    throw JinjaError(fmt::format("too many values to unpack (expected {})", wanted));
  if (items.size() < wanted) {
    throw JinjaError(
        fmt::format("not enough values to unpack (expected {}, got {})", wanted, items.size()));
  }
  for (size_t i = 0; i < wanted; ++i) assign(*target.children[i], items[i], scope);
}

}  // namespace foresail::jinja
