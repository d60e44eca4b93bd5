#include "apps/standard_error.h"

#include <csignal>
#include <cstdio>
#include <ctime>

namespace foresail {

// SIGPIPE is of the thread that writes, and blocked for it meanwhile; a pipe at stdout still ends
// the process as it should.
void write_to_stderr(std::string_view text) {
  sigset_t pipe_signal, before, pending;
  sigemptyset(&pipe_signal);
  sigaddset(&pipe_signal, SIGPIPE);
  sigpending(&pending);
  const bool was_pending = sigismember(&pending, SIGPIPE) == 1;
  pthread_sigmask(SIG_BLOCK, &pipe_signal, &before);
  std::fwrite(text.data(), 1, text.size(), stderr);
  if (!was_pending) {
    const timespec no_wait{};
    while (sigtimedwait(&pipe_signal, nullptr, &no_wait) == SIGPIPE) {
    }
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

}  // namespace foresail
