#include "apps/watchdog.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>

#include "apps/program.h"
#include "apps/service_manager.h"
#include "base/json.h"

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
  using std::chrono::milliseconds;
  using Clock = std::chrono::steady_clock;
  auto last_look = Clock::now();
  milliseconds watched{0};  // of the step that the engine is in
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, interval, [&] { return over_; })) {
    const milliseconds stalled = server_.stalled_for();
    const auto elapsed = std::chrono::duration_cast<milliseconds>(Clock::now() - last_look);
    last_look += elapsed;
    // A process that was paused (SIGSTOP, a frozen container) did not hang: the engine slept with
    // this thread, whose looks are then further apart.
    if (stalled < elapsed) watched = milliseconds(0);
    watched = std::min(stalled, watched + std::min(elapsed, 2 * interval));
    if (timeout_.count() == 0 || watched <= timeout_) {
      notify_service_manager("WATCHDOG=1");
      continue;
    }
    std::vector<std::string> names = server_.open_requests();
    const size_t count = names.size();
    names.resize(std::min(count, kMaxNames));
    for (std::string& name : names) name = ascii_json_text(name);  // clients choose them
    print_line("error",
               fmt::format("the engine has been in one step for {:.1f} s (--watchdog-timeout {}): "
                           "{} requests under way{}{}",
                           std::chrono::duration<double>(stalled).count(),
                           std::chrono::duration_cast<std::chrono::seconds>(timeout_).count(),
                           count, count == 0 ? "" : ": ", fmt::join(names, ", ")));
    // Not exit(): what it would wait for is what hangs.
    std::_Exit(kStalledStatus);
  }
}

}  // namespace foresail
