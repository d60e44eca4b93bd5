// Literals, names, subscripts, calls, filters and tests.
#include <fmt/core.h>

#include "text/jinja_expression_parser.h"

namespace foresail::jinja {

ExprPtr ExpressionParser::parse_primary(bool with_namespace) {
  const Token& token = current();
  if (token.kind == TokenKind::kName) {
    const std::string name = expect_name();
    ExprPtr node = make(ExprKind::kConstant, token.line);
    if (name == "true" || name == "True" || name == "false" || name == "False") {
      node->constant = bool_value(name == "true" || name == "True");
    } else if (name == "none" || name == "None") {
      node->constant = none_value();
    } else if (with_namespace && skip_op(".")) {
      ExprPtr base = make(ExprKind::kName, token.line);
      base->name = name;
      node = make(ExprKind::kAttribute, token.line, std::move(base));
      node->name = expect_name();
    } else {
      node->kind = ExprKind::kName;
      node->name = name;
    }
    return node;
  }
  if (token.kind == TokenKind::kString) {
    std::string text;
    while (current().kind == TokenKind::kString) text += next().text;
    ExprPtr node = make(ExprKind::kConstant, token.line);
    node->constant = string_value(text);
    return node;
  }
  if (token.kind == TokenKind::kNumber) {
    ExprPtr node = make(ExprKind::kConstant, token.line);
    node->constant = next().number;
    return node;
  }
  if (is_op("(")) {
    next();
    ExprPtr node = parse_tuple(TupleMode::kFull, {}, true);
    expect_op(")");
    return node;
  }
  if (is_op("[")) return parse_list();
  if (is_op("{")) return parse_dict();
  fail(fmt::format("unexpected {}", describe_current()));
}

ExprPtr ExpressionParser::parse_tuple(TupleMode mode, std::string_view end_name,
                                      bool in_parentheses) {
  const Nesting nesting(*this);
  const int line = current().line;
  std::vector<ExprPtr> items;
  bool is_tuple = false;
  for (;;) {
    if (!items.empty()) expect_op(",");
    const TokenKind kind = current().kind;
    if (kind == TokenKind::kPrintEnd || kind == TokenKind::kBlockEnd || is_op(")") ||
        (!end_name.empty() && is_name(end_name))) {
      break;
    }
    items.push_back(mode == TupleMode::kTarget ? parse_primary(true)
                                               : parse_expression(mode == TupleMode::kFull));
    if (!is_op(",")) break;
    is_tuple = true;
  }
  if (!is_tuple) {
    if (!items.empty()) return std::move(items[0]);
    if (!in_parentheses) fail(fmt::format("Expected an expression, got {}", describe_current()));
  }
  ExprPtr node = make(ExprKind::kTuple, line);
  for (ExprPtr& item : items) {
    grow(*node, item);
    node->children.push_back(std::move(item));
  }
  return node;
}

ExprPtr ExpressionParser::parse_target(bool with_namespace, std::string_view end_name) {
  ExprPtr target = parse_tuple(TupleMode::kTarget, end_name);
  const auto check = [&](const Expr& node, const auto& self) -> void {
    if (node.kind == ExprKind::kTuple) {
      for (const ExprPtr& child : node.children) self(*child, self);
    } else if (node.kind != ExprKind::kName &&
               !(with_namespace && node.kind == ExprKind::kAttribute)) {
      fail("can't assign to this expression", node.line);
    }
  };
  check(*target, check);
  return target;
}

ExprPtr ExpressionParser::parse_list() {
  ExprPtr node = make(ExprKind::kList, next().line);
  while (!is_op("]")) {
    if (!node->children.empty()) expect_op(",");
    if (is_op("]")) break;
    ExprPtr item = parse_expression();
    grow(*node, item);
    node->children.push_back(std::move(item));
  }
  next();
  return node;
}

ExprPtr ExpressionParser::parse_dict() {
  ExprPtr node = make(ExprKind::kDict, next().line);
  while (!is_op("}")) {
    if (!node->children.empty()) expect_op(",");
    if (is_op("}")) break;
    for (int part = 0; part < 2; ++part) {
      if (part == 1) expect_op(":");
      ExprPtr item = parse_expression();
      grow(*node, item);
      node->children.push_back(std::move(item));
    }
  }
  next();
  return node;
}

ExprPtr ExpressionParser::parse_postfix(ExprPtr node) {
  for (;;) {
    if (is_op(".") || is_op("[")) {
      node = parse_subscript(std::move(node));
    } else if (is_op("(")) {
      node = parse_call(std::move(node));
    } else {
      return node;
    }
  }
}

ExprPtr ExpressionParser::parse_subscript(ExprPtr node) {
  const Token& open = next();
  if (open.text == ".") {
    if (current().kind == TokenKind::kName) {
      ExprPtr out = make(ExprKind::kAttribute, open.line, std::move(node));
      out->name = next().text;
      return out;
    }
    if (current().kind != TokenKind::kNumber || !current().number.is(Kind::kInt)) {
      fail("expected name or number");
    }
    ExprPtr index = make(ExprKind::kConstant, open.line);
    index->constant = next().number;
    return make(ExprKind::kItem, open.line, std::move(node), std::move(index));
  }
  std::vector<ExprPtr> indices;
  while (!is_op("]")) {
    if (!indices.empty()) expect_op(",");
    indices.push_back(parse_subscribed());
  }
  next();
  if (indices.size() == 1) {
    return make(ExprKind::kItem, open.line, std::move(node), std::move(indices[0]));
  }
  ExprPtr tuple = make(ExprKind::kTuple, open.line);
  for (ExprPtr& index : indices) {
    grow(*tuple, index);
    tuple->children.push_back(std::move(index));
  }
  return make(ExprKind::kItem, open.line, std::move(node), std::move(tuple));
}

ExprPtr ExpressionParser::parse_subscribed() {
  const int line = current().line;
  ExprPtr parts[3];
  if (!is_op(":")) {
    parts[0] = parse_expression();
    if (!is_op(":")) return std::move(parts[0]);
  }
  next();
  const auto at_end = [&] { return is_op("]") || is_op(","); };
  if (!is_op(":") && !at_end()) parts[1] = parse_expression();
  if (skip_op(":") && !at_end()) parts[2] = parse_expression();
  ExprPtr node = make(ExprKind::kSlice, line);
  for (ExprPtr& part : parts) {
    grow(*node, part);
    node->children.push_back(std::move(part));
  }
  return node;
}

CallArguments ExpressionParser::parse_arguments() {
  const int line = current().line;
  const auto ensure = [&](bool ok) {
    if (!ok) fail("invalid syntax for function call expression", line);
  };
  CallArguments out;
  expect_op("(");
  for (bool first = true; !is_op(")"); first = false) {
    if (!first) {
      expect_op(",");
      if (is_op(")")) break;
    }
    if (skip_op("*")) {
      ensure(!out.star && !out.star_star);
      out.star = parse_expression();
    } else if (skip_op("**")) {
      ensure(!out.star_star);
      out.star_star = parse_expression();
    } else if (current().kind == TokenKind::kName && look().kind == TokenKind::kOperator &&
               look().text == "=") {
      ensure(!out.star_star);
      std::string name = next().text;
      next();
      out.keywords.emplace_back(std::move(name), parse_expression());
    } else {
      ensure(!out.star && !out.star_star && out.keywords.empty());
      out.positional.push_back(parse_expression());
    }
  }
  next();
  return out;
}

ExprPtr ExpressionParser::parse_call(ExprPtr node) {
  ExprPtr out = make(ExprKind::kCall, current().line, std::move(node));
  out->arguments = parse_arguments();
  grow(*out, out->arguments);
  return out;
}

std::string ExpressionParser::parse_dotted_name() {
  std::string name = expect_name();
  while (skip_op(".")) name += "." + expect_name();
  return name;
}

ExprPtr ExpressionParser::parse_filters(ExprPtr node, bool inline_start) {
  while (is_op("|") || inline_start) {
    if (!inline_start) next();
    inline_start = false;
    const int line = current().line;
    auto out = std::make_unique<Expr>();
    out->kind = ExprKind::kFilter;
    out->line = line;
    out->name = parse_dotted_name();
    if (is_op("(")) out->arguments = parse_arguments();
    grow(*out, node);
    grow(*out, out->arguments);
    out->children.push_back(std::move(node));  // null: the filtered body of a block
    node = std::move(out);
  }
  return node;
}

ExprPtr ExpressionParser::parse_test(ExprPtr node) {
  const int line = next().line;
  const bool negated = skip_name("not");
  ExprPtr out = make(ExprKind::kTest, line, std::move(node));
  out->name = parse_dotted_name();
  const TokenKind kind = current().kind;
  if (is_op("(")) {
    out->arguments = parse_arguments();
  } else if (((kind == TokenKind::kName && !is_name("else") && !is_name("or") && !is_name("and")) ||
              kind == TokenKind::kString || kind == TokenKind::kNumber || is_op("[") ||
              is_op("{"))) {
    if (is_name("is")) fail("You cannot chain multiple tests with is");
    const Nesting nesting(*this);
    out->arguments.positional.push_back(parse_postfix(parse_primary(false)));
  }
  grow(*out, out->arguments);
  return negated ? make(ExprKind::kNot, line, std::move(out)) : std::move(out);
}

}  // namespace foresail::jinja
