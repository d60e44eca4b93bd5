// The expression half of the parser; the statement half (jinja_parser.cc) derives from it.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja_ast.h"
#include "text/jinja_lexer.h"

namespace foresail::jinja {

class ExpressionParser {
 public:
  ExpressionParser(std::vector<Token> tokens, const Limits& limits)
      : tokens_(std::move(tokens)), limits_(limits) {}

 protected:
  enum class TupleMode { kFull, kNoConditional, kTarget };

  const Token& current() const { return tokens_[position_]; }
  const Token& look() const { return tokens_[std::min(position_ + 1, tokens_.size() - 1)]; }
  const Token& next();  // returns the current token and steps on
  bool is_op(std::string_view op) const { return is_token(TokenKind::kOperator, op); }
  bool is_name(std::string_view name) const { return is_token(TokenKind::kName, name); }
  bool skip_op(std::string_view op);
  bool skip_name(std::string_view name);
  void expect_op(std::string_view op);
  std::string expect_name();
  [[noreturn]] void fail(const std::string& message, int line = 0) const;
  std::string describe_current() const;
  size_t token_index() const { return position_; }
  bool names_between(size_t first, std::string_view name) const;  // a token from `first` to here

  ExprPtr parse_expression(bool with_conditional = true);
  // `a, b` without brackets; a single expression stays itself. end_name ends it (for x in ...).
  ExprPtr parse_tuple(TupleMode mode, std::string_view end_name = {}, bool in_parentheses = false);
  ExprPtr parse_target(bool with_namespace, std::string_view end_name = {});
  // The filters after `|`; with `inline_start` the first has no bar. Null when there is none.
  ExprPtr parse_filters(ExprPtr node, bool inline_start = false);
  ExprPtr make(ExprKind kind, int line, ExprPtr a = nullptr, ExprPtr b = nullptr);

  // Counts nested brackets and blocks while alive.
  class Nesting {
   public:
    explicit Nesting(ExpressionParser& parser);
    ~Nesting() { --parser_.depth_; }
    Nesting(const Nesting&) = delete;

   private:
    ExpressionParser& parser_;
  };

 private:
  bool is_token(TokenKind kind, std::string_view text) const {
    return current().kind == kind && current().text == text;
  }
  ExprPtr parse_or();
  ExprPtr parse_and();
  ExprPtr parse_not();
  ExprPtr parse_compare();
  ExprPtr parse_sum();
  ExprPtr parse_concat();
  ExprPtr parse_product();
  ExprPtr parse_power();
  ExprPtr parse_unary(bool with_filters = true);
  ExprPtr parse_primary(bool with_namespace);
  ExprPtr parse_list();
  ExprPtr parse_dict();
  ExprPtr parse_postfix(ExprPtr node);
  ExprPtr parse_subscript(ExprPtr node);
  ExprPtr parse_subscribed();
  ExprPtr parse_call(ExprPtr node);
  ExprPtr parse_test(ExprPtr node);
  CallArguments parse_arguments();
  std::string parse_dotted_name();
  void grow(Expr& parent, const ExprPtr& child);
  void grow(Expr& parent, const CallArguments& arguments);

  std::vector<Token> tokens_;
  const Limits limits_;
  size_t position_ = 0;
  int depth_ = 0;
};

}  // namespace foresail::jinja
