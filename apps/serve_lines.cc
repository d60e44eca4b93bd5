#include "apps/serve_lines.h"

#include <fmt/core.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <mutex>

#include "apps/program.h"
#include "apps/standard_error.h"
#include "base/json.h"

namespace foresail {
namespace {

const Log kJsonLog(LogFormat::kJson);

void print_object(std::string_view kind, std::string_view message) {
  kJsonLog.write(kind, object_of({{"message", std::string(message)}}));
}

class ObjectSink final : public spdlog::sinks::base_sink<std::mutex> {
  void sink_it_(const spdlog::details::log_msg& message) override {
    const auto level = spdlog::level::to_string_view(message.level);
    print_object({level.data(), level.size()}, {message.payload.data(), message.payload.size()});
  }
  void flush_() override {}
};

}  // namespace

ServeLines::ServeLines(bool json) : json_(json) {
  if (!json) return;
  print_lines_with(print_object);
  spdlog::default_logger()->sinks() = {std::make_shared<ObjectSink>()};
}

void ServeLines::say(std::string_view event, const OrderedJson& fields,
                     std::string_view text) const {
  if (json_)
    kJsonLog.write(event, fields);
  else
    tell("{}\n", text);
}

void ServeLines::limits(const ServeOptions& serve) const {
  const HttpLimits& http = serve.http;
  const int running = serve.engine.max_running_requests;
  say("limits",
      object_of({{"body_bytes", http.max_body_bytes},
                 {"header_bytes", http.max_header_bytes},
                 {"header_fields", http.max_header_fields},
                 {"unsent_bytes", http.max_unsent_bytes},
                 {"connections", http.max_connections},
                 {"running_requests", running},
                 {"queued_requests", serve.max_queued_requests},
                 {"n", serve.api.max_choices}}),
      fmt::format("limits: body {} bytes, header {} bytes and {} fields, unsent {} bytes, {} "
                  "connections, {} running and {} queued requests, n {}",
                  http.max_body_bytes, http.max_header_bytes, http.max_header_fields,
                  http.max_unsent_bytes, http.max_connections, running, serve.max_queued_requests,
                  serve.api.max_choices));
}

void ServeLines::ready(const std::string& line) {
  if (write(STDOUT_FILENO, line.data(), line.size()) < 0) return;
}

void ServeLines::listening(const std::string& url, const std::string& model_path) const {
  say("listening", object_of({{"url", url}, {"model_path", model_path}}),
      fmt::format("listening on {}, loading {}", url, model_path));
}

void ServeLines::stopping(int timeout_s) const {
  say("stopping", object_of({{"timeout_s", timeout_s}}),
      fmt::format("stopping: new requests get 503, running ones have {} s (again to end now)",
                  timeout_s));
}

void ServeLines::stopped(int64_t cut_requests, const std::string& cut_by) const {
  say("stopped", object_of({{"cut_requests", cut_requests}, {"cut_by", cut_by}}),
      fmt::format(
          "stopped: {} cut off by {}",
          cut_requests == 1 ? "1 request was" : fmt::format("{} requests were", cut_requests),
          cut_by));
}

}  // namespace foresail
