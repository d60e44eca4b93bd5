#include "server/log.h"

#include <fmt/chrono.h>
#include <fmt/core.h>

#include <chrono>
#include <cstdio>

#include "base/json.h"

namespace foresail {

void Log::write(std::string_view event, const OrderedJson& fields) const {
  if (format_ == LogFormat::kOff) return;
  const auto now = std::chrono::system_clock::now();
  const auto ms =
      std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count();
  const std::string time =
      fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:03}Z",
                  fmt::gmtime(std::chrono::system_clock::to_time_t(now)), ms % 1000);
  std::string line;
  if (format_ == LogFormat::kJson) {
    OrderedJson object = object_of({{"time", time}, {"event", event}});
    object.update(fields);
    line = ascii_json_text(object);
  } else {
    line = fmt::format("{} {}", time, event);
    for (const auto& [name, value] : fields.items())
      line += fmt::format(" {}={}", name, ascii_json_text(value));
  }
  line += '\n';
  std::fwrite(line.data(), 1, line.size(), stderr);
}

}  // namespace foresail
