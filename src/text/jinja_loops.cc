// Loops, macros and the calls that run template code (declared in jinja_interpreter.h).
#include <fmt/core.h>

#include "text/jinja_interpreter.h"
#include "text/jinja_operators.h"

namespace foresail::jinja {

namespace {

// From now on this scope and those around it outlive their block.
void capture(Scope& scope) {
  for (Scope* s = &scope; s != nullptr && !s->captured; s = s->parent) s->captured = true;
}

}  // namespace

ListObject& Interpreter::loop_items(const Stmt& statement, Scope& scope, const Value& iterable) {
  ListObject& all = iterate(heap_, iterable);
  if (!statement.filter) return all;
  Scope& inner = heap_.create_scope(&scope);
  std::vector<Value> kept;
  for (size_t i = 0; i < all.items.size(); ++i) {
    heap_.step();
    const Value candidate = all.items[i];
    assign(*statement.target, candidate, inner);
    if (is_truthy(evaluate(*statement.filter, inner))) kept.push_back(candidate);
  }
  heap_.release_scope(inner);
  return heap_.list(std::move(kept)).list();
}

Interpreter::Flow Interpreter::run_for(const Stmt& statement, Scope& scope, const Value& iterable,
                                       int depth0) {
  LoopObject& loop = heap_.create<LoopObject>();
  loop.statement = &statement;
  if (statement.recursive) capture(scope);
  loop.scope = &scope;
  loop.items = &loop_items(statement, scope, iterable);
  loop.depth0 = depth0;
  Value loop_value;
  loop_value.kind = Kind::kLoop;
  loop_value.object = &loop;
  size_t& i = loop.index0;
  for (i = 0; i < loop.items->items.size(); ++i) {
    heap_.step();
    Scope& inner = heap_.create_scope(&scope);
    inner.set("loop", loop_value);
    const Value current = loop.items->items[i];
    assign(*statement.target, current, inner);
    const Flow flow = run(statement.body, inner);
    heap_.release_scope(inner);
    if (flow == Flow::kBreak) return Flow::kNormal;
  }
  if (i > 0 || statement.otherwise.empty()) return Flow::kNormal;
  Scope& inner = heap_.create_scope(&scope);
  const Flow flow = run(statement.otherwise, inner);
  heap_.release_scope(inner);
  return flow;
}

Value Interpreter::call_loop(LoopObject& loop, const Arguments& arguments) {
  if (!loop.statement->recursive) {
    throw JinjaError("The loop must have the 'recursive' marker to be called recursively.");
  }
  const Bound bound("loop", arguments, {"iterable"});
  Text text;
  Text* outer = std::exchange(out_, &text);
  run_for(*loop.statement, *loop.scope, bound.required(0), loop.depth0 + 1);
  out_ = outer;
  return heap_.text(std::move(text));
}

Value Interpreter::define_macro(const MacroDefinition& definition, Scope& scope) {
  capture(scope);
  MacroObject& macro = heap_.create<MacroObject>();
  macro.definition = &definition;
  macro.scope = &scope;
  Value out;
  out.kind = Kind::kMacro;
  out.object = &macro;
  return out;
}

void Interpreter::bind_macro(const MacroDefinition& definition, const Arguments& arguments,
                             Scope& scope) {
  const std::string& name = definition.name;
  std::vector<bool> used(arguments.named.size(), false);
  for (size_t i = 0; i < definition.parameters.size(); ++i) {
    const Parameter& parameter = definition.parameters[i];
    if (i < arguments.positional.size()) {
      scope.set(parameter.name, arguments.positional[i]);
      continue;
    }
    size_t k = 0;
    while (k < used.size() && arguments.named[k].first != parameter.name) ++k;
    if (k < used.size()) {
      used[k] = true;
      scope.set(parameter.name, arguments.named[k].second);
    } else if (parameter.default_value) {
      scope.set(parameter.name, evaluate(*parameter.default_value, scope));
    } else {
      scope.set(parameter.name,
                undefined_value(fmt::format("parameter '{}' was not provided", parameter.name)));
    }
  }
  const Value extra = heap_.dict();
  Value caller = undefined_value("No caller defined");
  for (size_t k = 0; k < used.size(); ++k) {
    if (used[k]) continue;
    const auto& [key, value] = arguments.named[k];
    if (key == "caller" && definition.takes_caller) {
      caller = value;
    } else if (definition.takes_kwargs) {
      heap_.set(extra.dict(), string_value(key), value);
    } else {
      throw JinjaError(fmt::format("macro '{}' takes no keyword argument '{}'", name, key));
    }
  }
  const size_t count = definition.parameters.size();
  if (arguments.positional.size() > count && !definition.takes_varargs) {
    throw JinjaError(fmt::format("macro '{}' takes not more than {} argument(s)", name, count));
  }
  if (definition.takes_caller && scope.find_here("caller") == nullptr) scope.set("caller", caller);
  if (definition.takes_kwargs && scope.find_here("kwargs") == nullptr) scope.set("kwargs", extra);
  if (definition.takes_varargs && scope.find_here("varargs") == nullptr) {
    const auto first = arguments.positional.begin() +
                       static_cast<long>(std::min(count, arguments.positional.size()));
    scope.set("varargs", heap_.list({first, arguments.positional.end()}, Kind::kTuple));
  }
}

Value Interpreter::call_macro(const MacroObject& macro, const Arguments& arguments) {
  const Depth depth(*this);
  Scope& scope = heap_.create_scope(macro.scope);
  bind_macro(*macro.definition, arguments, scope);
  Text text;
  Text* outer = std::exchange(out_, &text);
  run(macro.definition->body, scope);
  out_ = outer;
  heap_.release_scope(scope);
  return heap_.text(std::move(text));
}

Value Interpreter::call(const Value& callee, const Arguments& arguments) {
  switch (callee.kind) {
    case Kind::kUndefined:
      throw_undefined(callee);
    case Kind::kMacro:
      return call_macro(*static_cast<MacroObject*>(callee.object), arguments);
    case Kind::kMethod:
      return call_method(*this, *static_cast<MethodObject*>(callee.object), arguments);
    case Kind::kFunction:
      return call_global(*this, callee.integer, arguments);
    case Kind::kLoop:
      return call_loop(*static_cast<LoopObject*>(callee.object), arguments);
    default:
      throw JinjaError(fmt::format("'{}' object is not callable", type_name(callee)));
  }
}

}  // namespace foresail::jinja
