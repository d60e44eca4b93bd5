// What a template may cost, and the one error type inside the interpreter (never leaves src/text).
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace foresail::jinja {

struct Limits {
  size_t max_source_bytes = 1u << 20;
  size_t max_output_bytes = 64u << 20;
  size_t max_string_bytes = 64u << 20;
  size_t max_heap_bytes = 512u << 20;  // lists, dicts, scopes of one render
  size_t max_items = 1'000'000;        // in one list, tuple or dict
  int64_t max_range = 100'000;         // as jinja2's sandbox
  int64_t max_steps =
      20'000'000;  // nodes evaluated, loop turns, 32 bytes copied or compared, 4 looked at
  int max_parse_depth = 100;  // nested brackets and blocks
  int max_tree_depth = 400;   // height of one expression, so a + b + c + ... too
  int max_call_depth = 1000;  // nested evaluations, macros included
  int max_value_depth = 100;  // nested lists and dicts when printed or compared
};

class JinjaError : public std::runtime_error {
 public:
  explicit JinjaError(const std::string& message, int line_number = 0)
      : std::runtime_error(message), line(line_number) {}
  int line;  // 0 until known
};

}  // namespace foresail::jinja
