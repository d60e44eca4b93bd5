// Ends the process when its engine does not come back: a supervisor can start it again, while a
// server that hangs keeps its clients waiting for ever.
// Owner: the serve command. Thread rule: one thread of its own.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "server/server.h"

namespace foresail {

constexpr int kStalledStatus = 5;  // beside those of ErrorCode: nothing was thrown

class Watchdog {
 public:
  // `server` is loaded and outlives this. Ends the process with exit status 5, and a line that says
  // so, when the engine has been in one step for longer than `timeout`; 0: never. Time in which the
  // whole process was paused does not count. Until then tells
  // the service manager every second or oftener that all is well.
  Watchdog(const Server& server, std::chrono::milliseconds timeout);
  ~Watchdog();

 private:
  void watch();

  const Server& server_;
  std::chrono::milliseconds timeout_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool over_ = false;
  std::thread thread_;
};

}  // namespace foresail
