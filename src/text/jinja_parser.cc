#include "text/jinja_parser.h"

#include <fmt/format.h>

#include <algorithm>

#include "text/jinja_expression_parser.h"

namespace foresail::jinja {
namespace {

using Names = std::vector<std::string_view>;

class Parser : public ExpressionParser {
 public:
  using ExpressionParser::ExpressionParser;

  Body parse() {
    Body body = parse_body({});
    return body;
  }

 private:
  std::unique_ptr<Stmt> statement(StmtKind kind, int line) {
    auto out = std::make_unique<Stmt>();
    out->kind = kind;
    out->line = line;
    return out;
  }

  void expect_block_end() {
    if (current().kind != TokenKind::kBlockEnd) {
      fail(fmt::format("expected end of statement block, got {}", describe_current()));
    }
    next();
  }

  // Statements up to a tag named in `ends`; stops at that name, its tag still open.
  Body parse_body(const Names& ends) {
    const Nesting nesting(*this);
    Body body;
    for (;;) {
      const Token& token = current();
      if (token.kind == TokenKind::kEnd) {
        if (ends.empty()) return body;
        fail(fmt::format("Unexpected end of template, expected '{}'", fmt::join(ends, "' or '")));
      }
      next();
      if (token.kind == TokenKind::kText) {
        body.push_back(statement(StmtKind::kText, token.line));
        body.back()->text = token.text;
      } else if (token.kind == TokenKind::kPrintBegin) {
        body.push_back(statement(StmtKind::kPrint, token.line));
        body.back()->value = parse_tuple(TupleMode::kFull);
        if (current().kind != TokenKind::kPrintEnd) {
          fail(fmt::format("expected end of print statement, got {}", describe_current()));
        }
        next();
      } else {
        if (std::any_of(ends.begin(), ends.end(), [&](auto end) { return is_name(end); }))
          return body;
        parse_statement(body);
        expect_block_end();
      }
    }
  }
  Body parse_tagged_body(std::string_view end) {
    skip_op(":");
    expect_block_end();
    Body body = parse_body({end});
    next();
    return body;
  }

  void parse_statement(Body& out) {
    if (current().kind != TokenKind::kName) fail("tag name expected");
    const std::string tag = current().text;
    const int line = next().line;
    if (tag == "if") return out.push_back(parse_if(line));
    if (tag == "for") return out.push_back(parse_for(line));
    if (tag == "set") return out.push_back(parse_set(line));
    if (tag == "macro") return out.push_back(parse_macro(line));
    if (tag == "call") return out.push_back(parse_call_block(line));
    if (tag == "with") return out.push_back(parse_with(line));
    if (tag == "print") return parse_print(out, line);
    if (tag == "break" || tag == "continue") {
      if (loop_depth_ == 0) fail(fmt::format("'{}' outside loop", tag), line);
      out.push_back(statement(tag == "break" ? StmtKind::kBreak : StmtKind::kContinue, line));
      return;
    }
    if (tag == "generation") {
      out.push_back(statement(StmtKind::kScope, line));
      out.back()->body = parse_tagged_body("endgeneration");
      return;
    }
    if (tag == "filter") {
      out.push_back(statement(StmtKind::kFilterBlock, line));
      out.back()->filter = parse_filters(nullptr, true);
      out.back()->body = parse_tagged_body("endfilter");
      return;
    }
    for (std::string_view known : {"extends", "include", "import", "from", "block", "autoescape"}) {
      if (tag == known)
        fail(fmt::format("the '{}' tag is not supported in chat templates", tag), line);
    }
    fail(fmt::format("Encountered unknown tag '{}'", tag), line);
  }

  std::unique_ptr<Stmt> parse_if(int line) {
    auto out = statement(StmtKind::kIf, line);
    for (;;) {
      Branch branch;
      branch.test = parse_tuple(TupleMode::kNoConditional);
      skip_op(":");
      expect_block_end();
      branch.body = parse_body({"elif", "else", "endif"});
      out->branches.push_back(std::move(branch));
      const std::string tag = next().text;
      if (tag == "elif") continue;
      if (tag == "else") out->branches.push_back({nullptr, parse_tagged_body("endif")});
      return out;
    }
  }

  std::unique_ptr<Stmt> parse_for(int line) {
    auto out = statement(StmtKind::kFor, line);
    out->target = parse_target(false, "in");
    if (!skip_name("in")) fail(fmt::format("expected 'in', got {}", describe_current()));
    out->value = parse_tuple(TupleMode::kNoConditional, "recursive");
    if (skip_name("if")) out->filter = parse_expression();
    out->recursive = skip_name("recursive");
    skip_op(":");
    expect_block_end();
    forbid_loop_name(*out->target);
    ++loop_depth_;
    out->body = parse_body({"endfor", "else"});
    --loop_depth_;
    if (next().text == "else") out->otherwise = parse_tagged_body("endfor");
    return out;
  }
  void forbid_loop_name(const Expr& target) const {
    if (target.kind == ExprKind::kName && target.name == "loop") {
      fail("Can't assign to special loop variable in for-loop", target.line);
    }
    for (const ExprPtr& child : target.children) forbid_loop_name(*child);
  }

  std::unique_ptr<Stmt> parse_set(int line) {
    auto out = statement(StmtKind::kSet, line);
    out->target = parse_target(true);
    if (loop_depth_ > 0 && out->target->kind != ExprKind::kAttribute)
      forbid_loop_name(*out->target);
    if (skip_op("=")) {
      out->value = parse_tuple(TupleMode::kFull);
      return out;
    }
    out->kind = StmtKind::kSetBlock;
    out->filter = parse_filters(nullptr);
    out->body = parse_tagged_body("endset");
    return out;
  }

  std::unique_ptr<Stmt> parse_with(int line) {
    auto out = statement(StmtKind::kWith, line);
    while (current().kind != TokenKind::kBlockEnd) {
      if (!out->bindings.empty()) expect_op(",");
      ExprPtr target = parse_target(false, "=");
      expect_op("=");
      out->bindings.emplace_back(std::move(target), parse_expression());
    }
    out->body = parse_tagged_body("endwith");
    return out;
  }

  void parse_print(Body& out, int line) {
    for (bool first = true; current().kind != TokenKind::kBlockEnd; first = false) {
      if (!first) expect_op(",");
      out.push_back(statement(StmtKind::kPrint, line));
      out.back()->value = parse_expression();
    }
  }

  void parse_signature(MacroDefinition& macro) {
    expect_op("(");
    while (!is_op(")")) {
      if (!macro.parameters.empty()) expect_op(",");
      Parameter parameter;
      parameter.name = expect_name();
      if (skip_op("=")) {
        parameter.default_value = parse_expression();
      } else if (!macro.parameters.empty() && macro.parameters.back().default_value) {
        fail("non-default argument follows default argument");
      }
      macro.parameters.push_back(std::move(parameter));
    }
    next();
  }

  void parse_macro_body(MacroDefinition& macro, std::string_view end) {
    const int outer_depth = std::exchange(loop_depth_, 0);
    const size_t first = token_index();
    macro.body = parse_tagged_body(end);
    loop_depth_ = outer_depth;
    // A macro takes extra arguments exactly when its body names the variable that holds them.
    macro.takes_varargs = names_between(first, "varargs");
    macro.takes_kwargs = names_between(first, "kwargs");
    macro.takes_caller = names_between(first, "caller");
  }

  std::unique_ptr<Stmt> parse_macro(int line) {
    auto out = statement(StmtKind::kMacro, line);
    out->macro = std::make_unique<MacroDefinition>();
    out->macro->name = expect_name();
    parse_signature(*out->macro);
    parse_macro_body(*out->macro, "endmacro");
    return out;
  }

  std::unique_ptr<Stmt> parse_call_block(int line) {
    auto out = statement(StmtKind::kCallBlock, line);
    out->macro = std::make_unique<MacroDefinition>();
    out->macro->name = "caller";
    if (is_op("(")) parse_signature(*out->macro);
    out->value = parse_expression();
    if (out->value->kind != ExprKind::kCall) fail("expected call", line);
    parse_macro_body(*out->macro, "endcall");
    return out;
  }

  int loop_depth_ = 0;
};

}  // namespace

Body parse_template(std::string_view source, const Limits& limits) {
  if (source.size() > limits.max_source_bytes) {
    throw JinjaError(fmt::format("limit max_source_bytes ({}) exceeded", limits.max_source_bytes));
  }
  return Parser(tokenize(source), limits).parse();
}

}  // namespace foresail::jinja
