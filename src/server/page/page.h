// The page that the server shows at /: one file that is part of the program.
// Immutable; any thread.
#pragma once

#include <string>
#include <string_view>

namespace foresail {

std::string_view page_html();
// The Content-Security-Policy for it: its own script and style by their hashes, requests to its own
// server, and nothing else, so that no text of a model can ever become a program.
std::string page_policy();

}  // namespace foresail
