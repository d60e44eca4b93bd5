#include "checkpoint/printable_name.h"

#include <fmt/core.h>

#include "base/utf8.h"

namespace foresail {

std::string printable_name(std::string_view name) {
  constexpr size_t kLongest = 120;
  std::string out;
  for (const char c : name.substr(0, kLongest)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7F) {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      out.push_back(c);
    }
  }
  out = replace_invalid_utf8(out);
  if (name.size() > kLongest) out += fmt::format("... ({} bytes)", name.size());
  return out;
}

}  // namespace foresail
