// Tokens to syntax tree. Depth is bounded, so hostile source gives an error, never a stack
// overflow.
#pragma once

#include <string_view>

#include "text/jinja_ast.h"

namespace foresail::jinja {

// Throws JinjaError with the line.
Body parse_template(std::string_view source, const Limits& limits);

}  // namespace foresail::jinja
