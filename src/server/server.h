// The server: listens at once, answers 503 until the model is loaded, drains before it ends.
// Owner: the serve command or a test. Thread rule: one caller, except hurry().
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "foresail/options.h"
#include "server/http/http_limits.h"
#include "server/http/http_server.h"
#include "server/log.h"
#include "server/served_model.h"

namespace foresail {

struct ServeOptions {
  EngineOptions engine;
  ListenAddress address;
  int http_threads = 2;
  HttpLimits http;
  ApiLimits api;
  int max_queued_requests = 512;
  std::vector<std::string> names;  // empty: the model folder's
  bool lax_names = false;
  bool model_sampling_defaults = true;  // from generation_config.json; else OpenAI's
  std::vector<std::string> api_keys;
  std::string admin_api_key;
  std::vector<std::string> allowed_hosts;  // see ForeignPages
  std::chrono::milliseconds ping_interval{30'000};
  LogFormat log_format = LogFormat::kText;
  bool vllm_metrics = true;
  bool page = true;  // at /
  std::string reasoning_parser = "auto", tool_call_parser = "auto";
  bool both_reasoning_fields = false;
  bool incremental_generate = false;                // see ServedModel
  std::chrono::milliseconds queue_timeout{60'000};  // 0: none
  std::chrono::milliseconds request_timeout{0};     // 0: none
};

class Server {
 public:
  // Listens. Throws Error{kUsage} when it cannot.
  explicit Server(ServeOptions options);
  // Without a drain before, what still runs is aborted.
  ~Server();

  // Loads the model; serves from then on. Throws Error.
  void load();
  int port() const;
  // "http://127.0.0.1:8000", "unix:/run/foresail.sock"
  std::string url() const;
  const ServedModel& model() const;
  // Refuses new requests, waits for those that run, aborts what is left after the timeout, closes
  // every connection. How many requests it aborted.
  int64_t drain(std::chrono::milliseconds timeout);
  // From any thread: aborts what a drain is still waiting for.
  void hurry();
  // From any thread, once the model is loaded: how long the engine has been in one step, and the
  // names of the requests under way.
  std::chrono::milliseconds stalled_for() const;
  std::vector<std::string> open_requests() const;

 private:
  class Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace foresail
