// The paths of the server, one function per group. Handlers look at `serving` when they run: it is
// filled before any route that needs the model is let through.
#pragma once

#include <memory>

#include "base/json_tree.h"
#include "server/auth.h"
#include "server/http/http_limits.h"
#include "server/http/router.h"
#include "server/server.h"
#include "server/serving.h"

namespace foresail {

struct ServerState {
  std::atomic<bool> loaded{false};
  std::atomic<bool> draining{false};
};

struct RouteContext {
  const ServeOptions& options;
  const Auth& auth;
  const ServerState& state;
  const std::unique_ptr<Serving>& serving;
  const HttpCounters* const& http;
};

void add_health_routes(Router& router, RouteContext context);
void add_page_routes(Router& router);                         // the page at /
void add_info_routes(Router& router, RouteContext context);   // models, versions, loads, metrics
void add_text_routes(Router& router, RouteContext context);   // tokenize, detokenize, render
void add_model_routes(Router& router, RouteContext context);  // completions, chat, generate
void add_admin_routes(Router& router, RouteContext context);  // flush, abort

// The body as JSON; otherwise the refusal has been sent.
std::optional<JsonTree> read_json(Exchange& exchange, const ApiLimits& limits);
void send_json(Exchange& exchange, const OrderedJson& value);

}  // namespace foresail
