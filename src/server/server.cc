#include "server/server.h"

#include <fmt/core.h>

#include <ctime>
#include <filesystem>
#include <new>

#include "base/error.h"
#include "base/json.h"
#include "base/utf8.h"
#include "checkpoint/model_config.h"
#include "checkpoint/printable_name.h"
#include "engine/sampling_defaults.h"
#include "server/generation.h"
#include "server/http/http_server.h"
#include "server/routes.h"
#include "text/tool_probe.h"

namespace foresail {
namespace {

constexpr std::chrono::milliseconds kCloseTimeout{2000};

// Names are asked for in JSON, and shown in one line of a terminal and in labels of metrics.
bool is_usable_name(const std::string& name) {
  return !name.empty() && name.size() <= kMaxNameBytes && for_terminal(name) == name &&
         name.find_first_of("\n\t") == std::string::npos;
}

std::string default_name(const std::string& model_path) {
  const std::string folder = std::filesystem::weakly_canonical(model_path).filename().string();
  return is_usable_name(folder) ? folder : printable_name(folder);
}

// Null, and said so, where there is none that can be used: many base models have none.
std::unique_ptr<ChatTemplate> find_chat_template(const std::string& model_path, const Log& log) {
  auto found = ChatTemplate::find(model_path);
  if (found) return std::make_unique<ChatTemplate>(*std::move(found));
  log.write("no_chat", object_of({{"reason", found.error().message}}));
  return nullptr;
}

// The first pass goes where none has been yet, in memory and in code: no client is to wait for it.
void run_once(EngineThread& engine, const ServedModel& model) {
  Request request{.input_ids = model.shortest_prompt(), .max_tokens = 2, .ignore_eos = true};
  request.is_probe = true;
  std::vector<SubmitResult> results = engine.submit({std::move(request)});
  if (!results[0]) return;  // the context is shorter than that
  while (results[0]->next()) {
  }
  engine.flush_cache();
}

}  // namespace

class Server::Parts final : public HttpApplication {
 public:
  explicit Parts(ServeOptions the_options);
  ~Parts() override;

  void load();
  int64_t drain(std::chrono::milliseconds timeout);

  void serve(std::shared_ptr<Exchange> exchange) override;
  HttpResponse fault(int status, std::string_view code, const std::string& message) override;
  void answered(const HttpRequest& request, const HttpResponse& response) override;
  bool closing() const override { return state.draining; }

  ServeOptions options;
  ServerState state;
  Auth auth;
  Log log;
  Metrics metrics;
  Router router;
  ServedModel model;
  OpenRequests open;
  std::unique_ptr<EngineThread> engine;
  std::unique_ptr<Serving> serving;
  const HttpCounters* http_counters = nullptr;
  std::unique_ptr<HttpServer> http;
  std::atomic<bool> hurries = false;

 private:
  bool let_through(const Route& route, Exchange& exchange);
};

Server::Parts::Parts(ServeOptions the_options)
    : options(std::move(the_options)),
      auth(options.api_keys, options.admin_api_key,
           {.only_names_of_this_machine = is_loopback(options.address),
            .allowed_hosts = options.allowed_hosts}),
      log(options.log_format),
      open(int64_t{options.engine.max_running_requests} + options.max_queued_requests) {
  for (const std::string& name : options.names)
    if (!is_usable_name(name))
      throw_error(ErrorCode::kUsage,
                  "--served-model-name {}: a name has 1 to {} bytes of UTF-8 without control "
                  "characters",
                  printable_name(name), kMaxNameBytes);
  const RouteContext context{options, auth, state, serving, http_counters};
  add_health_routes(router, context);
  if (options.page) add_page_routes(router);
  add_info_routes(router, context);
  add_text_routes(router, context);
  add_model_routes(router, context);
  add_admin_routes(router, context);
  http = std::make_unique<HttpServer>(options.address, options.http_threads, options.http, *this);
  http_counters = &http->counters();
}

// Connections first, while the engine can still tell their requests that they have ended; then
// their threads, one of which may be reading a long prompt yet; the engine next, while its last
// events find strands to go to.
Server::Parts::~Parts() {
  state.draining = true;
  open.abort("");
  http->close_idle();
  http->wait_closed(kCloseTimeout);
  http->stop();
  engine.reset();
  http.reset();
}

void Server::Parts::load() {
  const EngineOptions& wanted = options.engine;
  engine = std::make_unique<EngineThread>(wanted);
  model.names = options.names;
  if (model.names.empty()) {
    model.names = {default_name(wanted.model_path)};
    model.path = wanted.model_path;
  }
  model.lax_names = options.lax_names;
  model.tokenizer = engine->tokenizer();
  if (model.tokenizer != nullptr) model.chat_template = find_chat_template(wanted.model_path, log);
  if (model.tokenizer != nullptr) {
    const auto source =
        model.chat_template ? model.chat_template->source(true) : Result<std::string>("");
    model.syntax = ChatSyntax::choose(options.reasoning_parser, options.tool_call_parser,
                                      source.value_or(""), *model.tokenizer);
    // Where "auto" finds the format, the template speaks of calls.
    if (options.tool_call_parser != "auto" && model.syntax.tools != nullptr &&
        model.chat_template != nullptr && leaves_out_tools(*model.chat_template))
      log.write("tools_not_shown",
                object_of({{"reason",
                            "--tool-call-parser is given, but the chat template leaves tools out: "
                            "the model does not see those of a request"}}));
  }
  model.both_reasoning_fields = options.both_reasoning_fields;
  model.incremental_generate = options.incremental_generate;
  model.vocab_size = read_model_config(wanted.model_path).vocab_size;
  model.max_total_len = engine->max_total_len();
  if (options.model_sampling_defaults) model.defaults = read_sampling_defaults(wanted.model_path);
  model.limits = options.api;
  model.created = std::time(nullptr);
  serving.reset(new Serving{*engine, model, metrics, log, open, options.ping_interval,
                            options.queue_timeout, options.request_timeout, state.draining});
  run_once(*engine, model);
  state.loaded = true;
}

int64_t Server::Parts::drain(std::chrono::milliseconds timeout) {
  state.draining = true;
  const auto end = std::chrono::steady_clock::now() + timeout;
  if (engine) engine->drain(timeout);
  const auto wait_until = [](auto deadline, const auto& done) {
    while (!done() && std::chrono::steady_clock::now() < deadline)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
  };
  // The last events are on their way to the connections.
  wait_until(std::chrono::steady_clock::now() + kCloseTimeout, [&] { return open.empty(); });
  // A long prompt that is being read is answered, and so is who waits for its thread.
  wait_until(end, [&] { return hurries || !http->has_long_requests(); });
  http->close_idle();
  http->wait_closed(kCloseTimeout);
  return metrics.cut_by_shutdown;
}

bool Server::Parts::let_through(const Route& route, Exchange& exchange) {
  if (const auto error = auth.refuse(exchange.request(), route.access)) {
    metrics.count_rejection(error->code == "foreign_page" ? error->code : "unauthorised");
    exchange.send(to_response(*error));
    return false;
  }
  if (route.when == When::kServing && state.draining) {
    metrics.count_rejection("shutting_down");
    exchange.send(to_response(unavailable("shutting_down", "The server is shutting down.")));
    return false;
  }
  // Before any work on it: those behind it have waited as long.
  if (options.queue_timeout.count() > 0 && exchange.waited() >= options.queue_timeout) {
    metrics.count_rejection("queue_timeout");
    exchange.send(to_response(
        unavailable("queue_timeout", "The request waited too long for its turn: try again.")));
    return false;
  }
  if (route.when != When::kAlways && !state.loaded) {
    metrics.count_rejection("model_loading");
    exchange.send(to_response(unavailable("model_loading", "The model is still being loaded.", 2)));
    return false;
  }
  return true;
}

void Server::Parts::serve(std::shared_ptr<Exchange> exchange) {
  const HttpRequest& request = exchange->request();
  const Router::Match match = router.find(request.method, request.path);
  if (match.allow.empty())
    return exchange->send(to_response(
        api_error(404, "", fmt::format("There is no path {}", request.path.substr(0, 200)))));
  if (request.method == "OPTIONS")
    return exchange->send({.status = 204, .fields = {{"Allow", match.allow}}});
  if (match.route == nullptr) {
    HttpResponse response = to_response(api_error(
        405, "method_not_allowed", fmt::format("{} answers to {}", request.path, match.allow)));
    response.fields.emplace_back("Allow", match.allow);
    return exchange->send(std::move(response));
  }
  if (!let_through(*match.route, *exchange)) return;
  try {
    match.route->handle(exchange);
  } catch (const std::bad_alloc&) {
    exchange->send(
        to_response(unavailable("out_of_memory", "Not enough memory for this request.")));
  } catch (const std::exception& error) {
    log.write("internal_error", object_of({{"id", request.id}, {"what", error.what()}}));
    exchange->send(to_response(api_error(500, "internal_error", "An internal error occurred.")));
  }
}

HttpResponse Server::Parts::fault(int status, std::string_view code, const std::string& message) {
  return to_response(api_error(status, std::string(code), message));
}

void Server::Parts::answered(const HttpRequest& request, const HttpResponse& response) {
  metrics.count_response(router.label(request.path), response.status);
  if (response.status < 400) return;
  OrderedJson fields = object_of({{"id", request.id},
                                  {"method", request.method},
                                  {"path", request.path.substr(0, 200)},
                                  {"status", response.status}});
  if (!response.param.empty()) fields["param"] = response.param;
  if (!response.code.empty()) fields["code"] = response.code;
  log.write("refused", fields);
}

Server::Server(ServeOptions options) : parts_(std::make_unique<Parts>(std::move(options))) {}
Server::~Server() = default;

void Server::load() {
  parts_->load();
}
int Server::port() const {
  return parts_->http->port();
}
const ServedModel& Server::model() const {
  return parts_->model;
}
int64_t Server::drain(std::chrono::milliseconds timeout) {
  return parts_->drain(timeout);
}
void Server::hurry() {
  parts_->hurries = true;
  parts_->open.abort("");
}

std::chrono::milliseconds Server::stalled_for() const {
  return parts_->engine->busy_for();
}
std::vector<std::string> Server::open_requests() const {
  return parts_->open.names();
}

std::string Server::url() const {
  const auto& [host, unused, unix_path] = parts_->options.address;
  if (!unix_path.empty()) return "unix:" + unix_path;
  const bool v6 = host.find(':') != std::string::npos;
  return fmt::format("http://{}{}{}:{}", v6 ? "[" : "", host, v6 ? "]" : "", port());
}

}  // namespace foresail
