#include "base/json_tree.h"
#include "server/api/common_fields.h"
#include "server/api/json_text.h"
#include "server/api/rendered_chat.h"
#include "server/generation.h"
#include "server/routes.h"

namespace foresail {
namespace {

using Parse = ApiResult<GenerationSpec> (*)(const OrderedJson&, const ServedModel&,
                                            const MayCompile&);
using Project = std::unique_ptr<Projection> (*)(const GenerationSpec&, const ServedModel&);

// They do no harm, and clients send some for other servers; but one may be a slip of a key.
void tell_ignored_fields(Serving& serving, const HttpRequest& request,
                         const std::vector<std::string>& names) {
  for (const std::string& name : names)
    if (serving.ignored_fields.is_new(name))
      serving.log.write("ignored_field",
                        object_of({{"id", request.id}, {"path", request.path}, {"name", name}}));
}

void add_generation_route(Router& router, RouteContext context, const char* path, Parse parse,
                          Project project) {
  router.add({"POST", path, Access::kUser, When::kServing,
              [context, parse, project](const std::shared_ptr<Exchange>& exchange) {
                Serving& serving = *context.serving;
                const auto body = read_json(*exchange, serving.model.limits);
                if (!body) return;
                bool waits = false;
                ApiResult<GenerationSpec> spec = parse(body->root(), serving.model, [&] {
                  waits = !exchange->take_turn();
                  return !waits;
                });
                if (waits) return;
                if (!spec) {
                  serving.metrics.count_rejection(spec.error().code.empty() ? "invalid"
                                                                            : spec.error().code);
                  return exchange->send(to_response(spec.error()));
                }
                tell_ignored_fields(serving, exchange->request(), spec->ignored_fields);
                // Others may have asked for it too, and be compiling or trying it now.
                if (!serving.engine.knows(spec->options.grammar) && !exchange->take_turn()) return;
                auto projection = project(*spec, serving.model);
                std::make_shared<Generation>(serving, exchange, std::move(*spec),
                                             std::move(projection))
                    ->start();
              }});
}

// The body of a question to the tokenizer; otherwise the refusal has been sent.
std::optional<JsonTree> read_question(Exchange& exchange, const ServedModel& model) {
  auto body = read_json(exchange, model.limits);
  if (!body) return std::nullopt;
  std::optional<ApiError> error = check_object(body->root());
  if (!error && model.tokenizer == nullptr)
    error = api_error(400, "no_tokenizer", "this model has no tokenizer");
  if (!error) return body;
  exchange.send(to_response(*error));
  return std::nullopt;
}

void tokenize(const RouteContext& context, Exchange& exchange) {
  const ServedModel& model = context.serving->model;
  const auto body = read_question(exchange, model);
  if (!body) return;
  const auto refuse = [&](const ApiError& error) { exchange.send(to_response(error)); };
  std::vector<int32_t> ids;
  JsonObject fields(body->root());
  if (fields.has("messages")) {
    const auto chat = render_chat(body->root(), model);
    if (!chat) return refuse(chat.error());
    ids = chat->ids;
  } else {
    std::string prompt;
    bool add_special = true;
    fields.boolean("add_special_tokens", add_special);
    if (!fields.has("prompt")) fields.refuse("prompt", "is missing");
    fields.text("prompt", SIZE_MAX, prompt);
    refuse_unserved(fields);
    if (fields.fault()) return refuse(api_error(*fields.fault()));
    ids = model.tokenizer->encode(prompt, {.add_bos = add_special});
  }
  std::string out = "{\"count\":" + std::to_string(ids.size()) +
                    ",\"max_model_len\":" + std::to_string(model.max_total_len) + ",\"tokens\":";
  append_json_ids(out, ids);
  exchange.send({.body = out + "}"});
}

void detokenize(const RouteContext& context, Exchange& exchange) {
  const ServedModel& model = context.serving->model;
  const auto body = read_question(exchange, model);
  if (!body) return;
  JsonObject fields(body->root());
  std::vector<int32_t> ids;
  if (!fields.has("tokens")) fields.refuse("tokens", "is missing");
  fields.token_ids("tokens", SIZE_MAX, ids);
  for (const int32_t id : ids)
    if (static_cast<size_t>(id) >= model.tokenizer->vocab_size())
      fields.refuse("tokens", "holds " + std::to_string(id) + ", which the tokenizer lacks");
  if (fields.fault()) return exchange.send(to_response(api_error(*fields.fault())));
  send_json(exchange, object_of({{"prompt", model.tokenizer->decode(ids, false)}}));
}

void render(const RouteContext& context, Exchange& exchange) {
  const auto body = read_json(exchange, context.serving->model.limits);
  if (!body) return;
  const auto chat = render_chat(body->root(), context.serving->model);
  if (!chat) return exchange.send(to_response(chat.error()));
  send_json(exchange, object_of({{"prompt", chat->text},
                                 {"prompt_token_ids", chat->ids},
                                 {"count", chat->ids.size()}}));
}

void flush(const RouteContext& context, Exchange& exchange) {
  Serving& serving = *context.serving;
  if (serving.open.streams() > 0 || !serving.engine.flush_cache())
    return exchange.send(to_response(
        api_error(400, "busy", "The cache is not flushed while requests run or wait.")));
  send_json(exchange, object_of({{"success", true}, {"message", "Cache flushed."}}));
}

void abort(const RouteContext& context, Exchange& exchange) {
  const auto body = read_json(exchange, context.serving->model.limits);
  if (!body) return;
  if (!body->root().is_object())
    return exchange.send(to_response(api_error(400, "", "the body must be a JSON object")));
  JsonObject fields(body->root());
  std::string rid;
  bool all = false;
  fields.text("rid", kMaxNameBytes, rid);
  fields.boolean("abort_all", all);
  if (rid.empty() && !all) fields.refuse("rid", "or 'abort_all' must say what to abort");
  if (fields.fault()) return exchange.send(to_response(api_error(*fields.fault())));
  const int count = context.serving->open.abort(all ? std::string() : rid);
  send_json(exchange, object_of({{"success", true}, {"aborted", count}}));
}

}  // namespace

void add_text_routes(Router& router, RouteContext context) {
  for (const char* path : {"/tokenize", "/v1/tokenize"})
    router.add({"POST", path, Access::kUser, When::kServing,
                [context](const auto& exchange) { tokenize(context, *exchange); }});
  for (const char* path : {"/detokenize", "/v1/detokenize"})
    router.add({"POST", path, Access::kUser, When::kServing,
                [context](const auto& exchange) { detokenize(context, *exchange); }});
  router.add({"POST", "/v1/chat/completions/render", Access::kUser, When::kServing,
              [context](const auto& exchange) { render(context, *exchange); }});
}

void add_model_routes(Router& router, RouteContext context) {
  add_generation_route(router, context, "/v1/completions", parse_completion, completion_projection);
  add_generation_route(router, context, "/v1/chat/completions", parse_chat, chat_projection);
  add_generation_route(router, context, "/generate", parse_generate, generate_projection);
}

void add_admin_routes(Router& router, RouteContext context) {
  for (const char* path : {"/flush_cache", "/reset_prefix_cache"})
    router.add({"POST", path, Access::kAdmin, When::kLoaded,
                [context](const auto& exchange) { flush(context, *exchange); }});
  router.add({"POST", "/abort_request", Access::kAdmin, When::kLoaded,
              [context](const auto& exchange) { abort(context, *exchange); }});
}

}  // namespace foresail
