// One request and the one way to answer it: whole, or as a stream of pieces.
// Owner: whoever answers. Thread rule: post() from any thread, all else on the connection's strand,
// where the application is called and where posted functions run.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "server/http/message.h"

namespace foresail {

class Exchange {
 public:
  virtual ~Exchange() = default;

  virtual const HttpRequest& request() const = 0;

  // Either send(), once; or start_stream(), any number of write(), finish(). After the end, and
  // after the client is gone, calls do nothing.
  virtual void send(HttpResponse response) = 0;
  // The body of `head` is not looked at.
  virtual void start_stream(HttpResponse head) = 0;
  // Goes out at once. A client that leaves more unsent than the limit is dropped.
  virtual void write(std::string_view piece) = 0;
  virtual void finish() = 0;

  // `gone` runs once when the client leaves before the end.
  virtual void on_gone(std::function<void()> gone) = 0;
  virtual void post(std::function<void()> function) = 0;
  // Runs `function` later, unless the exchange has ended. One timer: a second call replaces it.
  virtual void after(std::chrono::milliseconds delay, std::function<void()> function) = 0;
  virtual bool answered() const = 0;  // or begun to
  // To be asked before work of a tenth of a second or more, of which one thread stays free. False:
  // the exchange is left unanswered, and served again from its beginning when that may be done.
  virtual bool take_turn() = 0;
  // How long it has waited for that.
  virtual std::chrono::steady_clock::duration waited() const = 0;
};

// What the HTTP side calls, all on strands, at several connections at once.
class HttpApplication {
 public:
  virtual ~HttpApplication() = default;
  // Answers now or later; the body is there until this returns.
  virtual void serve(std::shared_ptr<Exchange> exchange) = 0;
  // The body of a refusal that never became a request.
  virtual HttpResponse fault(int status, std::string_view code, const std::string& message) = 0;
  // An answer begins to go out.
  virtual void answered(const HttpRequest& request, const HttpResponse& response) = 0;
  // Answers say "Connection: close" and idle connections end.
  virtual bool closing() const = 0;
};

}  // namespace foresail
