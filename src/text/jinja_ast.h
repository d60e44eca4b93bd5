// The parsed template. Immutable after parsing, so one tree serves many renders at once.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "text/jinja_value.h"

namespace foresail::jinja {

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

enum class ExprKind : uint8_t {
  kConstant,
  kName,
  kList,
  kTuple,
  kDict,
  kAttribute,
  kItem,
  kSlice,
  kCall,
  kFilter,
  kTest,
  kConditional,
  kOr,
  kAnd,
  kNot,
  kCompare,
  kAdd,
  kSub,
  kMul,
  kDiv,
  kFloorDiv,
  kMod,
  kPow,
  kConcat,
  kNegate,
  kPlus,
};
enum class CompareOp : uint8_t { kEq, kNe, kLt, kLe, kGt, kGe, kIn, kNotIn };

// What stands between the brackets of a call, a filter or a test.
struct CallArguments {
  std::vector<ExprPtr> positional;
  std::vector<std::pair<std::string, ExprPtr>> keywords;
  ExprPtr star, star_star;
};

struct Expr {
  ExprKind kind;
  int line = 0;
  int height = 1;    // of the tree below, bounded by the parser
  std::string name;  // names, attributes, filters, tests, the namespace of a target
  Value constant;
  // Operands in source order. kSlice: start, stop, step (null when left out). kConditional: test,
  // then, else (null when left out). kDict: key, value, key, value, ...
  std::vector<ExprPtr> children;
  std::vector<CompareOp> compare;  // kCompare: one per child after the first
  CallArguments arguments;
};

enum class StmtKind : uint8_t {
  kText,
  kPrint,
  kIf,
  kFor,
  kSet,
  kSetBlock,
  kMacro,
  kCallBlock,
  kFilterBlock,
  kWith,
  kScope,
  kBreak,
  kContinue,
};

struct Stmt;
using Body = std::vector<std::unique_ptr<Stmt>>;

struct Parameter {
  std::string name;
  ExprPtr default_value;  // null when required
};

struct MacroDefinition {
  std::string name;
  std::vector<Parameter> parameters;
  Body body;
  bool takes_varargs = false, takes_kwargs = false, takes_caller = false;
};

struct Branch {
  ExprPtr test;  // null: else
  Body body;
};

struct Stmt {
  StmtKind kind;
  int line = 0;
  std::string text;              // kText
  ExprPtr target;                // kSet, kSetBlock, kFor: a name, a tuple, or namespace.attribute
  ExprPtr value;                 // printed, assigned, iterated, called
  ExprPtr filter;                // kFor: the `if`; kSetBlock, kFilterBlock: filters over the body
  bool recursive = false;        // kFor
  Body body, otherwise;          // otherwise: the else of a for
  std::vector<Branch> branches;  // kIf
  std::vector<std::pair<ExprPtr, ExprPtr>> bindings;  // kWith
  std::unique_ptr<MacroDefinition> macro;             // kMacro, kCallBlock
};

}  // namespace foresail::jinja
