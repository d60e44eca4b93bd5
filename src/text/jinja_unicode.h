// Character properties and case mapping as Python's str methods use them.
#pragma once

#include <string>
#include <string_view>

namespace foresail::jinja {

bool is_space(char32_t code_point);       // str.isspace
bool is_printable(char32_t code_point);   // str.isprintable, decides escapes in repr
bool is_alphabetic(char32_t code_point);  // str.isalpha
bool is_line_break(char32_t code_point);  // str.splitlines

enum class Case { kUpper, kLower, kTitle };
// Appends the full case mapping of one character (one to three characters).
void append_case(std::string& out, char32_t code_point, Case wanted);

}  // namespace foresail::jinja
