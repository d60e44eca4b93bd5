#include <ctime>

#include "base/json.h"
#include "engine/memory_plan.h"
#include "server/api/json_text.h"
#include "server/generation.h"
#include "server/metrics_text.h"
#include "server/routes.h"
#include "server/version.h"

namespace foresail {
namespace {

using Handler = std::function<void(const std::shared_ptr<Exchange>&)>;

HttpResponse not_ready(const ServerState& state) {
  return to_response(state.draining
                         ? unavailable("shutting_down", "The server is shutting down.")
                         : unavailable("model_loading", "The model is still being loaded.", 2));
}

OrderedJson model_entry(const ServedModel& model, const std::string& name) {
  return object_of({{"id", name},
                    {"object", "model"},
                    {"created", model.created},
                    {"owned_by", "foresail"},
                    {"root", name},
                    {"max_model_len", model.max_total_len}});
}

OrderedJson speculation(const Metrics& metrics) {
  const int64_t passes = metrics.draft_passes, drafted = metrics.drafted;
  const int64_t accepted = metrics.accepted;
  if (drafted == 0) return nullptr;
  return object_of({{"accept_length", accept_length(accepted, passes)},
                    {"accept_rate", static_cast<double>(accepted) / static_cast<double>(drafted)}});
}

int64_t used_tokens(const EngineStats& stats, int page_size) {
  return stats.pages_owned * page_size;
}

const char* algorithm_name(SpeculativeAlgorithm algorithm) {
  switch (algorithm) {
    case SpeculativeAlgorithm::kMtp:
      return "MTP";
    case SpeculativeAlgorithm::kEagle:
      return "EAGLE";
    case SpeculativeAlgorithm::kEagle3:
      return "EAGLE3";
    case SpeculativeAlgorithm::kStandalone:
      return "STANDALONE";
    case SpeculativeAlgorithm::kNgram:
      return "NGRAM";
    case SpeculativeAlgorithm::kNone:
      break;
  }
  return "NONE";
}

OrderedJson server_info(const RouteContext& context, bool admin) {
  const Serving& serving = *context.serving;
  const EngineOptions& engine = context.options.engine;
  const EngineStats stats = serving.engine.stats();
  const bool speculates = engine.speculative.algorithm != SpeculativeAlgorithm::kNone;
  OrderedJson state = OrderedJson::object();
  const OrderedJson spec = speculation(serving.metrics);
  if (!spec.is_null()) state["avg_spec_accept_length"] = spec["accept_length"];
  state["num_running_reqs"] = stats.running;
  state["num_queue_reqs"] = stats.waiting;
  OrderedJson info =
      object_of({{"version", kVersion},
                 {"served_model_name", serving.model.names.front()},
                 {"max_model_len", serving.model.max_total_len},
                 {"max_total_num_tokens", stats.pages_total * engine.page_size},
                 {"max_running_requests", engine.max_running_requests},
                 {"max_queued_requests", context.options.max_queued_requests},
                 {"page_size", engine.page_size},
                 {"device", engine.device},
                 {"dtype", engine.dtype},
                 {"kv_cache_dtype", kv_cache_dtype(engine)},
                 {"speculative_algorithm", algorithm_name(engine.speculative.algorithm)},
                 {"speculative_num_steps", engine.speculative.steps},
                 {"speculative_adaptive", speculates && engine.speculative.adaptive},
                 {"internal_states", OrderedJson::array({state})}});
  if (admin) info["model_path"] = engine.model_path;
  return info;
}

OrderedJson loads(const RouteContext& context) {
  const Serving& serving = *context.serving;
  const EngineStats stats = serving.engine.stats();
  const int page_size = context.options.engine.page_size;
  const int64_t total = stats.pages_total * page_size;
  const int64_t used = used_tokens(stats, page_size);
  const OrderedJson load = object_of(
      {{"dp_rank", 0},
       {"num_running_reqs", stats.running},
       {"num_waiting_reqs", stats.waiting},
       {"num_used_tokens", used},
       {"max_total_num_tokens", total},
       {"token_usage", total == 0 ? 0.0 : static_cast<double>(used) / static_cast<double>(total)},
       {"spec", speculation(serving.metrics)}});
  return object_of({{"timestamp", std::time(nullptr)},
                    {"dp_rank_count", 1},
                    {"loads", OrderedJson::array({load})}});
}

const char* holder_name(int16_t holder) {
  switch (holder) {
    case kFreePage:
      return "free";
    case kDepartingPage:
      return "in_flight";
    case kCachedPage:
      return "cached";
    case kSharedPage:
      return "shared";
    default:
      return "used";
  }
}

// Pages in the order of their ids, neighbours with one holder together: {"state","pages","slot"}.
OrderedJson kv_pages(const RouteContext& context) {
  const std::vector<int16_t> holders = context.serving->engine.page_holders();
  OrderedJson runs = OrderedJson::array();
  for (size_t begin = 0, end = 0; begin < holders.size(); begin = end) {
    while (end < holders.size() && holders[end] == holders[begin]) ++end;
    runs.push_back(object_of({{"state", holder_name(holders[begin])}, {"pages", end - begin}}));
    if (holders[begin] >= 0) runs.back()["slot"] = holders[begin];
  }
  return object_of({{"page_size", context.options.engine.page_size},
                    {"total", holders.size()},
                    {"runs", std::move(runs)}});
}

void send_model(const RouteContext& context, Exchange& exchange) {
  const ServedModel& model = context.serving->model;
  const std::string name = exchange.request().path.substr(std::string("/v1/models/").size());
  if (model.has_name(name)) return send_json(exchange, model_entry(model, name));
  ApiError error =
      api_error(404, "model_not_found", "The model `" + name + "` does not exist here");
  error.type = "invalid_request_error";
  error.param = "model";
  exchange.send(to_response(error));
}

}  // namespace

void add_health_routes(Router& router, RouteContext context) {
  const Handler health = [context](const auto& exchange) {
    if (!context.state.loaded || context.state.draining)
      return exchange->send(not_ready(context.state));
    exchange->send({.body = R"({"status":"ok"})"});
  };
  for (const char* path : {"/health", "/ready", "/ping", "/v1/health"})
    router.add({"GET", path, Access::kOpen, When::kAlways, health});
  router.add({"GET", "/livez", Access::kOpen, When::kAlways,
              [](const auto& exchange) { exchange->send({.body = R"({"status":"ok"})"}); }});
  // Runs one token, so that a reply means that the model runs.
  router.add(
      {"GET", "/health_generate", Access::kUser, When::kServing, [context](const auto& exchange) {
         Serving& serving = *context.serving;
         GenerationSpec spec;
         spec.options.is_probe = true;
         spec.prompts = {serving.model.shortest_prompt()};
         spec.max_tokens = {1};
         auto projection = generate_projection(spec, serving.model);
         std::make_shared<Generation>(serving, exchange, std::move(spec), std::move(projection))
             ->start();
       }});
}

void add_info_routes(Router& router, RouteContext context) {
  router.add({"GET", "/version", Access::kUser, When::kAlways, [](const auto& exchange) {
                send_json(*exchange, object_of({{"version", kVersion}}));
              }});
  router.add({"GET", "/v1/models", Access::kUser, When::kLoaded, [context](const auto& exchange) {
                OrderedJson list = OrderedJson::array();
                for (const std::string& name : context.serving->model.names)
                  list.push_back(model_entry(context.serving->model, name));
                send_json(*exchange, object_of({{"object", "list"}, {"data", list}}));
              }});
  router.add({"GET", "/v1/models/*", Access::kUser, When::kLoaded,
              [context](const auto& exchange) { send_model(context, *exchange); }});
  for (const char* path : {"/server_info", "/get_server_info"})
    router.add({"GET", path, Access::kUser, When::kLoaded, [context](const auto& exchange) {
                  send_json(*exchange,
                            server_info(context, context.auth.is_admin(exchange->request())));
                }});
  for (const char* path : {"/model_info", "/get_model_info"})
    router.add({"GET", path, Access::kUser, When::kLoaded, [context](const auto& exchange) {
                  const ServedModel& model = context.serving->model;
                  // Where it lies, as in /server_info, is told to an admin only, and only where it
                  // is a name too.
                  const bool tells_path =
                      !model.path.empty() && context.auth.is_admin(exchange->request());
                  send_json(
                      *exchange,
                      object_of({{"model_path", tells_path ? model.path : model.names.front()},
                                 {"is_generation", true},
                                 {"max_model_len", model.max_total_len},
                                 {"vocab_size", model.vocab_size}}));
                }});
  router.add({"GET", "/v1/loads", Access::kUser, When::kLoaded,
              [context](const auto& exchange) { send_json(*exchange, loads(context)); }});
  router.add({"GET", "/v1/kv_pages", Access::kUser, When::kLoaded,
              [context](const auto& exchange) { send_json(*exchange, kv_pages(context)); }});
  router.add({"GET", "/metrics", Access::kUser, When::kLoaded, [context](const auto& exchange) {
                const Serving& serving = *context.serving;
                exchange->send(
                    {.body = metrics_text({.metrics = serving.metrics,
                                           .http = *context.http,
                                           .engine = serving.engine.stats(),
                                           .model_name = serving.model.names.front(),
                                           .version = kVersion,
                                           .vllm_aliases = context.options.vllm_metrics}),
                     .content_type = "text/plain; version=0.0.4; charset=utf-8"});
              }});
}

void send_json(Exchange& exchange, const OrderedJson& value) {
  exchange.send({.body = json_text(value)});
}

std::optional<JsonTree> read_json(Exchange& exchange, const ApiLimits& limits) {
  const HttpRequest& request = exchange.request();
  std::string type(request.field("content-type"));
  type.resize(std::min(type.find(';'), type.size()));
  while (!type.empty() && type.back() == ' ') type.pop_back();
  for (char& c : type) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c | 0x20 : c);
  if (!type.empty() && type != "application/json") {
    exchange.send(to_response(api_error(415, "unsupported_media_type",
                                        "send the body as Content-Type: application/json")));
    return std::nullopt;
  }
  const std::string_view coding = request.field("content-encoding");
  if (!coding.empty() && coding != "identity") {
    exchange.send(to_response(
        api_error(415, "unsupported_media_type", "send the body without a Content-Encoding")));
    return std::nullopt;
  }
  auto json = parse_ordered_json(request.body, {.max_depth = limits.max_json_depth});
  if (json) return JsonTree(std::move(*json));
  exchange.send(to_response(api_error(json.error())));
  return std::nullopt;
}

}  // namespace foresail
