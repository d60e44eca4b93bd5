#include "apps/stop_key.h"

namespace foresail {
namespace {

volatile sig_atomic_t taken = 0;

}  // namespace

StopKey::StopKey(std::initializer_list<int> signals) {
  taken = 0;
  struct sigaction action {};
  action.sa_handler = [](int signal) { taken = signal; };
  action.sa_flags = SA_RESETHAND | SA_RESTART;
  for (const int signal : signals) {
    struct sigaction before {};
    sigaction(signal, &action, &before);
    before_.emplace_back(signal, before);
    // A job in the background of a script does not hear of its terminal's key.
    if (before.sa_handler == SIG_IGN) sigaction(signal, &before, nullptr);
  }
}

StopKey::~StopKey() {
  for (const auto& [signal, before] : before_) sigaction(signal, &before, nullptr);
}

int StopKey::signal() const {
  return taken;
}

}  // namespace foresail
