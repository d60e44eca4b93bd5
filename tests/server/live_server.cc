#include "server/live_server.h"

#include <thread>

#include "foresail/engine.h"

namespace foresail {
namespace {

void add_missing(OrderedJson& fields, const OrderedJson& defaults) {
  for (const auto& [name, value] : defaults.items())
    if (!fields.contains(name)) fields[name] = value;
}

}  // namespace

ServeOptions tales_options() {
  ServeOptions options;
  options.engine.model_path = std::string(FORESAIL_SOURCE_DIR) + "/models/tales";
  options.engine.threads = 1;
  options.engine.context_length = 1024;
  options.engine.max_running_requests = 8;
  options.engine.speculative.algorithm = SpeculativeAlgorithm::kMtp;
  options.engine.speculative.steps = 3;
  options.address.port = 0;
  options.log_format = LogFormat::kOff;
  return options;
}

Server& shared_server() {
  static Server* const server = [] {
    ServeOptions options = tales_options();
    options.engine.speculative.adaptive = false;  // drafts are there to count, whatever they cost
    auto* fresh = new Server(options);
    fresh->load();
    return fresh;
  }();
  return *server;
}

bool eventually(const std::function<bool()>& holds, double seconds) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (!holds()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

double metric(int port, const std::string& name, const std::string& label) {
  const std::string text = TestClient(port).get("/metrics").body;
  for (size_t at = 0; (at = text.find("\n" + name + "{", at)) != std::string::npos; ++at) {
    const std::string line = text.substr(at + 1, text.find('\n', at + 1) - at - 1);
    if (line.find(label) != std::string::npos) return std::stod(line.substr(line.rfind(' ')));
  }
  return -1;
}

double owned_pages(int port) {
  return metric(port, "foresail:kv_pages", "state=\"used\"");
}

std::string plain_text(Request request) {
  static Engine* const engine = [] {
    EngineOptions options = tales_options().engine;
    options.speculative.algorithm = SpeculativeAlgorithm::kNone;
    return new Engine(options);
  }();
  SubmitResult result = engine->submit(std::move(request));
  if (!result) return "refused: " + result.error().message;
  std::string text;
  for (const Event& event : *result) text += event.text;
  return text;
}

TestResponse LiveServer::complete(OrderedJson fields) {
  add_missing(fields, {{"prompt", "Once upon a time"}, {"temperature", 0}, {"max_tokens", 12}});
  return post("/v1/completions", fields);
}

std::string LiveServer::text(const OrderedJson& fields) {
  const TestResponse response = complete(fields);
  EXPECT_EQ(response.status, 200) << response.body;
  return response.status == 200 ? response.json()["choices"][0]["text"].get<std::string>() : "";
}

TestResponse LiveServer::chat(OrderedJson fields) {
  add_missing(fields, {{"messages", {{{"role", "user"}, {"content", "Tell me a tale"}}}},
                       {"temperature", 0},
                       {"max_tokens", 12}});
  return post("/v1/chat/completions", fields);
}

void LiveServer::expect_refused(const TestResponse& response, const std::string& param,
                                const std::string& message, int status) {
  EXPECT_EQ(response.status, status) << response.body;
  const OrderedJson json = response.json();
  ASSERT_TRUE(json.is_object() && json.contains("error")) << response.body;
  const OrderedJson& error = json["error"];
  for (const char* key : {"message", "type", "param", "code"}) EXPECT_TRUE(error.contains(key));
  EXPECT_EQ(error["param"], param.empty() ? OrderedJson() : OrderedJson(param)) << response.body;
  EXPECT_THAT(error["message"].get<std::string>(), testing::HasSubstr(message));
  EXPECT_TRUE(error["code"].is_string() || error["code"].is_null());
}

}  // namespace foresail
