#include "apps/watchdog.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "apps/service_manager.h"

namespace foresail {
namespace {

constexpr size_t kMaxNames = 16;

}  // namespace

Watchdog::Watchdog(const Server& server, std::chrono::milliseconds timeout)
    : server_(server), timeout_(timeout), thread_([this] { watch(); }) {}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Watchdog::watch() {
  constexpr std::chrono::milliseconds kLongest{1000};
  const auto interval = timeout_.count() == 0
                            ? kLongest
                            : std::clamp(timeout_ / 8, std::chrono::milliseconds(1), kLongest);
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, interval, [&] { return over_; })) {
    const std::chrono::milliseconds stalled = server_.stalled_for();
    if (timeout_.count() == 0 || stalled <= timeout_) {
      notify_service_manager("WATCHDOG=1");
      continue;
    }
    std::vector<std::string> names = server_.open_requests();
    const size_t count = names.size();
    names.resize(std::min(count, kMaxNames));
    fmt::print(stderr,
               "error: the engine has been in one step for {:.1f} s (--watchdog-timeout {}): {} "
               "requests under way{}{}\n",
               std::chrono::duration<double>(stalled).count(),
               std::chrono::duration_cast<std::chrono::seconds>(timeout_).count(), count,
               count == 0 ? "" : ": ", fmt::join(names, ", "));
    // Not exit(): what it would wait for is what hangs.
    std::_Exit(kStalledStatus);
  }
}

}  // namespace foresail
