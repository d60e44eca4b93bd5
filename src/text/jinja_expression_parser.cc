#include "text/jinja_expression_parser.h"

#include <fmt/core.h>

#include <algorithm>

namespace foresail::jinja {

ExpressionParser::Nesting::Nesting(ExpressionParser& parser) : parser_(parser) {
  if (parser_.depth_ >= parser_.limits_.max_parse_depth) {
    parser_.fail(
        fmt::format("limit max_parse_depth ({}) exceeded", parser_.limits_.max_parse_depth));
  }
  ++parser_.depth_;
}

const Token& ExpressionParser::next() {
  const Token& token = tokens_[position_];
  if (token.kind != TokenKind::kEnd) ++position_;
  return token;
}
bool ExpressionParser::skip_op(std::string_view op) {
  if (!is_op(op)) return false;
  next();
  return true;
}
bool ExpressionParser::skip_name(std::string_view name) {
  if (!is_name(name)) return false;
  next();
  return true;
}
void ExpressionParser::expect_op(std::string_view op) {
  if (!skip_op(op)) fail(fmt::format("expected token '{}', got {}", op, describe_current()));
}
std::string ExpressionParser::expect_name() {
  if (current().kind != TokenKind::kName) {
    fail(fmt::format("expected a name, got {}", describe_current()));
  }
  const std::string& name = next().text;
  if (name[0] >= '0' && name[0] <= '9') fail("Invalid character in identifier");
  return name;
}
bool ExpressionParser::names_between(size_t first, std::string_view name) const {
  return std::any_of(
      tokens_.begin() + static_cast<long>(first), tokens_.begin() + static_cast<long>(position_),
      [&](const Token& token) { return token.kind == TokenKind::kName && token.text == name; });
}
void ExpressionParser::fail(const std::string& message, int line) const {
  throw JinjaError(message, line != 0 ? line : current().line);
}
std::string ExpressionParser::describe_current() const {
  switch (current().kind) {
    case TokenKind::kBlockEnd:
      return "end of statement block";
    case TokenKind::kPrintEnd:
      return "end of print statement";
    case TokenKind::kEnd:
      return "end of template";
    case TokenKind::kString:
      return "a string";
    default:
      return fmt::format("'{}'", current().text.substr(0, 60));
  }
}

void ExpressionParser::grow(Expr& parent, const ExprPtr& child) {
  if (!child) return;
  parent.height = std::max(parent.height, child->height + 1);
  if (parent.height > limits_.max_tree_depth) {
    fail(fmt::format("limit max_tree_depth ({}) exceeded", limits_.max_tree_depth));
  }
}
void ExpressionParser::grow(Expr& parent, const CallArguments& arguments) {
  for (const ExprPtr& child : arguments.positional) grow(parent, child);
  for (const auto& [name, child] : arguments.keywords) grow(parent, child);
  grow(parent, arguments.star);
  grow(parent, arguments.star_star);
}
ExprPtr ExpressionParser::make(ExprKind kind, int line, ExprPtr a, ExprPtr b) {
  auto node = std::make_unique<Expr>();
  node->kind = kind;
  node->line = line;
  grow(*node, a);
  grow(*node, b);
  if (a) node->children.push_back(std::move(a));
  if (b) node->children.push_back(std::move(b));
  return node;
}

ExprPtr ExpressionParser::parse_expression(bool with_conditional) {
  const Nesting nesting(*this);
  ExprPtr value = parse_or();
  while (with_conditional && is_name("if")) {
    const int line = next().line;
    ExprPtr test = parse_or();
    ExprPtr otherwise = skip_name("else") ? parse_expression() : nullptr;
    ExprPtr node = make(ExprKind::kConditional, line, std::move(test), std::move(value));
    grow(*node, otherwise);
    node->children.push_back(std::move(otherwise));
    value = std::move(node);
  }
  return value;
}

ExprPtr ExpressionParser::parse_or() {
  ExprPtr left = parse_and();
  while (is_name("or")) {
    const int line = next().line;
    ExprPtr right = parse_and();
    left = make(ExprKind::kOr, line, std::move(left), std::move(right));
  }
  return left;
}
ExprPtr ExpressionParser::parse_and() {
  ExprPtr left = parse_not();
  while (is_name("and")) {
    const int line = next().line;
    ExprPtr right = parse_not();
    left = make(ExprKind::kAnd, line, std::move(left), std::move(right));
  }
  return left;
}
ExprPtr ExpressionParser::parse_not() {
  if (!is_name("not")) return parse_compare();
  const Nesting nesting(*this);
  const int line = next().line;
  return make(ExprKind::kNot, line, parse_not());
}

ExprPtr ExpressionParser::parse_compare() {
  const int line = current().line;
  ExprPtr first = parse_sum();
  ExprPtr node;
  for (;;) {
    constexpr std::pair<std::string_view, CompareOp> kOps[] = {
        {"==", CompareOp::kEq}, {"!=", CompareOp::kNe}, {"<", CompareOp::kLt},
        {"<=", CompareOp::kLe}, {">", CompareOp::kGt},  {">=", CompareOp::kGe}};
    const auto* op = std::find_if(std::begin(kOps), std::end(kOps),
                                  [&](const auto& candidate) { return is_op(candidate.first); });
    CompareOp compare = CompareOp::kIn;
    if (op != std::end(kOps)) {
      compare = op->second;
    } else if (is_name("not") && look().kind == TokenKind::kName && look().text == "in") {
      next();
      compare = CompareOp::kNotIn;
    } else if (!is_name("in")) {
      return node ? std::move(node) : std::move(first);
    }
    next();
    if (!node) node = make(ExprKind::kCompare, line, std::move(first));
    ExprPtr right = parse_sum();
    grow(*node, right);
    node->children.push_back(std::move(right));
    node->compare.push_back(compare);
  }
}

ExprPtr ExpressionParser::parse_sum() {
  ExprPtr left = parse_concat();
  while (is_op("+") || is_op("-")) {
    const Token& op = next();
    const ExprKind kind = op.text == "+" ? ExprKind::kAdd : ExprKind::kSub;
    ExprPtr right = parse_concat();
    left = make(kind, op.line, std::move(left), std::move(right));
  }
  return left;
}
ExprPtr ExpressionParser::parse_concat() {
  ExprPtr first = parse_product();
  if (!is_op("~")) return first;
  ExprPtr node = make(ExprKind::kConcat, current().line, std::move(first));
  while (skip_op("~")) {
    ExprPtr right = parse_product();
    grow(*node, right);
    node->children.push_back(std::move(right));
  }
  return node;
}
ExprPtr ExpressionParser::parse_product() {
  ExprPtr left = parse_power();
  while (is_op("*") || is_op("/") || is_op("//") || is_op("%")) {
    const Token& op = next();
    const ExprKind kind = op.text == "*"    ? ExprKind::kMul
                          : op.text == "/"  ? ExprKind::kDiv
                          : op.text == "//" ? ExprKind::kFloorDiv
                                            : ExprKind::kMod;
    ExprPtr right = parse_power();
    left = make(kind, op.line, std::move(left), std::move(right));
  }
  return left;
}
ExprPtr ExpressionParser::parse_power() {
  ExprPtr left = parse_unary();
  while (is_op("**")) {
    const int line = next().line;
    ExprPtr right = parse_unary();
    left = make(ExprKind::kPow, line, std::move(left), std::move(right));
  }
  return left;
}
ExprPtr ExpressionParser::parse_unary(bool with_filters) {
  ExprPtr node;
  if (is_op("-") || is_op("+")) {
    const Nesting nesting(*this);
    const Token& op = next();
    const ExprKind kind = op.text == "-" ? ExprKind::kNegate : ExprKind::kPlus;
    node = make(kind, op.line, parse_unary(false));
  } else {
    node = parse_primary(false);
  }
  node = parse_postfix(std::move(node));
  while (with_filters) {
    if (is_op("|")) {
      node = parse_filters(std::move(node));
    } else if (is_name("is")) {
      node = parse_test(std::move(node));
    } else if (is_op("(")) {
      node = parse_call(std::move(node));
    } else {
      break;
    }
  }
  return node;
}

}  // namespace foresail::jinja
