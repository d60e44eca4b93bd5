#include "apps/output_path.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/error.h"

namespace foresail {

void require_writable(const std::string& path, const std::string& input) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored))
    throw_error(ErrorCode::kUsage, "cannot write {}: it is a folder", path);
  if (!input.empty() && std::filesystem::equivalent(path, input, ignored))
    throw_error(ErrorCode::kUsage, "cannot write {}: it is the input, choose another file", path);
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  const std::string place = std::filesystem::exists(path, ignored) ? path
                            : parent.empty()                       ? "."
                                                                   : parent.string();
  if (::access(place.c_str(), W_OK) != 0)
    throw_error(ErrorCode::kUsage, "cannot write {}: {}", path, std::strerror(errno));
}

}  // namespace foresail
