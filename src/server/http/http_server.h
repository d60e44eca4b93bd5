// Listens, accepts, and runs every connection on a few threads.
// Owner: Server. Thread rule: public members from one thread, never from an HTTP thread.
#pragma once

#include <memory>
#include <string>

#include "server/http/exchange.h"
#include "server/http/http_limits.h"

namespace foresail {

struct ListenAddress {
  std::string host = "127.0.0.1";  // empty: every address
  int port = 8000;                 // 0: any that is free
  std::string unix_path;           // not empty: this file instead, which ends with the server
};

// Only this machine reaches it over TCP. Names are not looked up, "localhost" aside.
bool is_loopback(const ListenAddress& address);

class HttpServer {
 public:
  // `application` outlives the server. Throws Error{kUsage} when the address cannot be bound.
  HttpServer(ListenAddress address, int thread_count, HttpLimits limits,
             HttpApplication& application);
  ~HttpServer();

  int port() const;  // the one that was given, or that was free for 0; 0 for a file
  const HttpCounters& counters() const;
  // Whether a request of LongRequests is being served, or waits for that.
  bool has_long_requests() const;
  // Ends idle connections; those with a request under way end after their answer.
  void close_idle();
  // Waits until none is left; what is left after the timeout is dropped.
  void wait_closed(std::chrono::milliseconds timeout);
  // No request is served any more, but what is posted to one still finds its place.
  void stop();

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace foresail
