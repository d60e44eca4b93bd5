// Executes a parsed template. One per render, on one thread; the tree may be shared.
#pragma once

#include <ctime>
#include <optional>
#include <string_view>

#include "text/jinja_arguments.h"
#include "text/jinja_ast.h"
#include "text/jinja_heap.h"

namespace foresail::jinja {

struct MacroObject : Object {
  const MacroDefinition* definition = nullptr;
  Scope* scope = nullptr;  // where it was defined
};

struct LoopObject : Object {
  const Stmt* statement = nullptr;
  Scope* scope = nullptr;  // around the loop
  ListObject* items = nullptr;
  size_t index0 = 0;
  int depth0 = 0;
  std::optional<std::vector<Value>> last_changed;
};

class Interpreter {
 public:
  Interpreter(const Limits& limits, std::optional<std::time_t> now) : heap_(limits), now_(now) {}

  // The root scope's parent holds the context. Throws JinjaError with the line.
  Text render(const Body& body, Scope& context);

  Heap& heap() { return heap_; }
  std::time_t now() const { return now_ ? *now_ : std::time(nullptr); }

  Value call(const Value& callee, const Arguments& arguments);
  Value filter(std::string_view name, const Value& input, const Arguments& arguments);
  bool test(std::string_view name, const Value& input, const Arguments& arguments);

 private:
  enum class Flow { kNormal, kBreak, kContinue };

  // Counts nested evaluations while alive.
  class Depth {
   public:
    explicit Depth(Interpreter& interpreter);
    ~Depth() { --interpreter_.depth_; }
    Depth(const Depth&) = delete;

   private:
    Interpreter& interpreter_;
  };

  Flow run(const Body& body, Scope& scope);
  Flow run(const Stmt& statement, Scope& scope);
  Flow run_if(const Stmt& statement, Scope& scope);
  Flow run_for(const Stmt& statement, Scope& scope, const Value& iterable, int depth0);
  Flow run_with(const Stmt& statement, Scope& scope);
  void run_set_block(const Stmt& statement, Scope& scope);
  void run_call_block(const Stmt& statement, Scope& scope);
  Value filtered(const Expr* filters, Text body, Scope& scope);
  Text captured(const Body& body, Scope& scope);
  ListObject& loop_items(const Stmt& statement, Scope& scope, const Value& iterable);
  void assign(const Expr& target, const Value& value, Scope& scope);
  void emit(const Value& value);
  Value define_macro(const MacroDefinition& definition, Scope& scope);
  Value call_macro(const MacroObject& macro, const Arguments& arguments);
  void bind_macro(const MacroDefinition& definition, const Arguments& arguments, Scope& scope);
  Value call_loop(LoopObject& loop, const Arguments& arguments);

  Value evaluate(const Expr& expr, Scope& scope);
  Value evaluate_operator(const Expr& expr, Scope& scope);
  Value lookup(const std::string& name, Scope& scope);
  Value literal(const Expr& expr, Scope& scope);
  Value item(const Expr& expr, Scope& scope);
  Value call_expression(const Expr& expr, Scope& scope);
  Value filter_expression(const Expr& expr, Scope& scope);
  Value compare(const Expr& expr, Scope& scope);
  Value concat(const Expr& expr, Scope& scope);
  Arguments arguments(const CallArguments& source, Scope& scope);

  Heap heap_;
  std::optional<std::time_t> now_;
  Text* out_ = nullptr;
  int depth_ = 0;
  int line_ = 0;
};

// value.name and value[key]; missing ones are undefined values, undefined owners throw.
Value get_attribute(Heap& heap, const Value& value, std::string_view name);
Value get_item(Heap& heap, const Value& value, const Value& key);
Value loop_attribute(Heap& heap, const Value& loop, std::string_view name);

// Bound methods of str, list, tuple, dict and loop.
bool has_method(const Value& self, std::string_view name);
Value call_method(Interpreter& interpreter, const MethodObject& method, const Arguments& arguments);
Value call_string_method(Heap& heap, const Text& self, std::string_view name,
                         const Arguments& arguments);

// Global functions: range, dict, namespace, raise_exception, strftime_now.
std::optional<Value> find_global(std::string_view name);
Value call_global(Interpreter& interpreter, Integer id, const Arguments& arguments);

}  // namespace foresail::jinja
