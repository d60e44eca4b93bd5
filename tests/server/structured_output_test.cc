// Structured output, tools and reasoning over HTTP. Checklist 47 to 49, 59, 64 to 74; K11/31.
#include <regex>
#include <thread>

#include <fmt/core.h>

#include "base/json.h"
#include "schemas/schema_samples.h"
#include "schemas/schema_validator.h"
#include "server/live_server.h"

namespace foresail {
namespace {

using StructuredOutput = LiveServer;

OrderedJson json_schema(const OrderedJson& schema) {
  return {{"type", "json_schema"},
          {"json_schema", {{"name", "answer"}, {"strict", true}, {"schema", schema}}}};
}

OrderedJson schema_sample() {
  return OrderedJson::parse(
      R"({"type":"object","properties":{"name":{"type":"string","maxLength":12},
          "age":{"type":"integer","minimum":0,"maximum":120},"kind":{"enum":["cat","dog"]}},
          "required":["name","age","kind"],"additionalProperties":false})");
}

std::string content_of(const TestResponse& response) {
  EXPECT_EQ(response.status, 200) << response.body;
  return response.json()["choices"][0]["message"]["content"].get<std::string>();
}

TEST_F(StructuredOutput, ResponseFormat) {
  const OrderedJson schema = schema_sample();
  const TestResponse response =
      chat({{"response_format", json_schema(schema)}, {"max_tokens", 100}});
  const OrderedJson value = OrderedJson::parse(content_of(response));
  EXPECT_TRUE(SchemaValidator(schema).valid(value)) << value;
  EXPECT_EQ(response.json()["choices"][0]["finish_reason"], "stop");
  // As a stream, and without speculation.
  std::string streamed;
  for (const OrderedJson& chunk :
       chat({{"response_format", json_schema(schema)}, {"max_tokens", 100}, {"stream", true}})
           .chunks())
    streamed += chunk["choices"][0]["delta"].value("content", "");
  EXPECT_EQ(streamed, content_of(response));

  for (const int max_tokens : {4, 300}) {
    const TestResponse any =
        chat({{"response_format", {{"type", "json_object"}}}, {"max_tokens", max_tokens}});
    const bool cut = any.json()["choices"][0]["finish_reason"] == "length";
    EXPECT_TRUE(cut || OrderedJson::parse(content_of(any)).is_object()) << any.body;
  }
  EXPECT_EQ(chat({{"response_format", {{"type", "text"}}}}).status, 200);
}

TEST_F(StructuredOutput, EveryApiAndSpelling) {
  const auto expect_match = [&](const OrderedJson& fields, const std::string& regex) {
    const std::string text = this->text(fields);
    EXPECT_TRUE(std::regex_match(text, std::regex(regex))) << text;
  };
  expect_match({{"regex", "[0-9]{3}-[a-f]{2}"}}, "[0-9]{3}-[a-f]{2}");
  expect_match({{"guided_regex", "(ab|cd){2}"}}, "(ab|cd){2}");
  expect_match({{"guided_choice", {"yes", "yes and no"}}}, "yes( and no)?");
  expect_match({{"structured_outputs", {{"choice", {"red", "green"}}}}}, "red|green");
  expect_match({{"json_schema", R"({"const":[1,"a"]})"}}, "\\[1,\"a\"\\]");
  expect_match({{"guided_json", {{"type", "boolean"}}}}, "true|false");
  expect_match({{"response_format", json_schema({{"type", "null"}})}}, "null");
  const auto generated = [&](const OrderedJson& sampling) {
    const TestResponse response =
        post("/generate", {{"text", "Once"}, {"sampling_params", sampling}});
    EXPECT_EQ(response.status, 200) << response.body;
    return response.json();
  };
  EXPECT_EQ(generated({{"json_schema", R"({"const":"x"})"}, {"temperature", 0}})["text"], "\"x\"");
  const OrderedJson answer = generated({{"regex", "a{5}"}, {"temperature", 0}});
  EXPECT_EQ(answer["text"], "aaaaa");
  EXPECT_EQ(answer["meta_info"]["finish_reason"]["type"], "stop");
  // A stop string cuts as ever.
  EXPECT_EQ(text({{"regex", "a{5}"}, {"stop", "aaa"}}), "");
  // Sampled, several choices: each keeps to it.
  const TestResponse several =
      complete({{"regex", "[a-z]{1,9}\\."}, {"n", 3}, {"temperature", 1}, {"max_tokens", 30}});
  const OrderedJson sampled = several.json();
  for (const OrderedJson& choice : sampled["choices"])
    EXPECT_TRUE(std::regex_match(choice["text"].get<std::string>(), std::regex("[a-z]{1,9}\\.")));
}

TEST_F(StructuredOutput, Refused) {
  const auto refused = [&](const OrderedJson& fields, const char* param, const char* message) {
    expect_refused(chat(fields), param, message);
  };
  refused({{"response_format", json_schema({{"not", OrderedJson::object()}})}}, "response_format",
          "the keyword \"not\"");
  refused({{"response_format", {{"type", "xml"}}}}, "response_format", "json_object");
  refused({{"response_format", {{"type", "json_schema"}}}}, "response_format", "json_schema");
  refused({{"regex", "foo**"}}, "regex", "quantifier");
  refused({{"regex", 1}}, "regex", "string");
  refused({{"regex", "a"}, {"response_format", {{"type", "json_object"}}}}, "regex", "exclude");
  refused({{"json_schema", "{"}}, "json_schema", "is no JSON");
  refused({{"guided_choice", OrderedJson::array()}}, "guided_choice", "list");
  refused({{"ebnf", "root ::= \"a\""}}, "ebnf", "not supported");
  const auto refused_group = [&](const OrderedJson& parts, const char* part, const char* message) {
    refused({{"structured_outputs", parts}}, (std::string("structured_outputs.") + part).c_str(),
            message);
  };
  refused_group({{"grammar", "x"}}, "grammar", "'structured_outputs.grammar' is not supported");
  refused_group({{"regex", 1}}, "regex", "'structured_outputs.regex' must be a string");
  refused_group({{"regex", "foo**"}}, "regex", "quantifier");
  refused_group({{"regex", "a"}, {"choice", {"b"}}}, "choice",
                "'structured_outputs.choice' and 'structured_outputs.regex' exclude each other");
  refused({{"structured_outputs", {{"regex", "a"}}}, {"guided_regex", "a"}},
          "structured_outputs.regex",
          "'structured_outputs.regex' and 'guided_regex' exclude each other");
  refused({{"structured_outputs", 1}}, "structured_outputs", "an object");
  refused({{"regex", "a"}, {"min_tokens", 3}}, "min_tokens", "structured output");
  refused({{"regex", std::string(60'000, '(')}}, "regex", "nested deeper");
  refused({{"regex", "a{1,1000000}"}}, "regex", "too large");
  refused({{"tools", {{{"type", "function"}, {"function", {{"name", "f"}}}}}}}, "tools",
          "--tool-call-parser");
  refused({{"tool_choice", "required"}}, "tool_choice", "tools");
  expect_refused(post("/generate", {{"text", "a"}, {"sampling_params", {{"regex", "("}}}}),
                 "sampling_params.regex", "')'");
  expect_refused(post("/generate", {{"text", "a"},
                                    {"sampling_params", {{"regex", "a"}, {"json_schema", "{}"}}}}),
                 "sampling_params.regex",
                 "'sampling_params.regex' and 'sampling_params.json_schema' exclude each other");
}

// A server that reads calls and reasoning; the markers are no tokens of this model, so text.
Server& chat_server() {
  static Server* const server = [] {
    ServeOptions options = tales_options();
    options.tool_call_parser = "deepseek_v3";
    options.reasoning_parser = "deepseek_r1";
    options.both_reasoning_fields = true;
    auto* fresh = new Server(options);
    fresh->load();
    return fresh;
  }();
  return *server;
}

const OrderedJson kTools = OrderedJson::parse(R"([
  {"type":"function","function":{"name":"get_weather","parameters":{"type":"object",
    "properties":{"city":{"type":"string","maxLength":8},"days":{"type":"integer","minimum":1,
    "maximum":9}},"required":["city"],"additionalProperties":false}}},
  {"type":"function","function":{"name":"stop","parameters":{"type":"object","properties":{}}}}])");

OrderedJson tool_fields(const OrderedJson& choice) {
  return {{"messages", {{{"role", "user"}, {"content", "The weather?"}}}},
          {"temperature", 0},
          {"max_tokens", 400},
          {"tools", kTools},
          {"tool_choice", choice},
          {"parallel_tool_calls", false}};
}

TEST_F(StructuredOutput, ToolCalls) {
  ServeOptions options = tales_options();
  options.tool_call_parser = "deepseek_v3";
  Server server(options);
  server.load();
  const auto ask = [&](const OrderedJson& fields) {
    return TestClient(server.port()).post("/v1/chat/completions", fields);
  };
  const OrderedJson named = {{"type", "function"}, {"function", {{"name", "get_weather"}}}};
  for (const OrderedJson& choice : {OrderedJson("required"), named}) {
    const TestResponse response = ask(tool_fields(choice));
    ASSERT_EQ(response.status, 200) << response.body;
    const OrderedJson answer = response.json()["choices"][0];
    EXPECT_EQ(answer["finish_reason"], "tool_calls");
    EXPECT_TRUE(answer["message"]["content"].is_null()) << response.body;
    ASSERT_EQ(answer["message"]["tool_calls"].size(), 1u);
    const OrderedJson call = answer["message"]["tool_calls"][0];
    EXPECT_EQ(call["type"], "function");
    EXPECT_FALSE(call["id"].get<std::string>().empty());
    const bool weather = call["function"]["name"] == "get_weather";
    EXPECT_TRUE(weather || choice == "required");
    const OrderedJson arguments =
        OrderedJson::parse(call["function"]["arguments"].get<std::string>());
    EXPECT_TRUE(SchemaValidator(kTools[weather ? 0 : 1]["function"]["parameters"]).valid(arguments))
        << arguments;

    OrderedJson fields = tool_fields(choice);
    fields["stream"] = true;
    std::string name, joined, finish;
    int ids = 0;
    for (const OrderedJson& chunk : ask(fields).chunks()) {
      const OrderedJson& piece = chunk["choices"][0];
      if (!piece["finish_reason"].is_null()) finish = piece["finish_reason"];
      for (const OrderedJson& delta : piece["delta"].value("tool_calls", OrderedJson::array())) {
        EXPECT_EQ(delta["index"], 0);
        ids += delta.contains("id") ? 1 : 0;
        name += delta["function"].value("name", "");
        joined += delta["function"]["arguments"];
      }
    }
    EXPECT_EQ(ids, 1);
    EXPECT_EQ(name, call["function"]["name"].get<std::string>());
    EXPECT_EQ(joined, call["function"]["arguments"].get<std::string>());
    EXPECT_EQ(finish, "tool_calls");
  }
  // Cut inside the arguments.
  OrderedJson cut = tool_fields("required");
  cut["max_tokens"] = 60;
  const OrderedJson answer = ask(cut).json()["choices"][0];
  if (answer["message"].contains("tool_calls")) {
    EXPECT_EQ(answer["finish_reason"], "length") << answer;
  }
  // Free to call or not; this model does not.
  for (const char* choice : {"auto", "none"}) {
    const OrderedJson free = ask(tool_fields(choice)).json()["choices"][0];
    EXPECT_NE(free["finish_reason"], "tool_calls");
    EXPECT_FALSE(free["message"].contains("tool_calls"));
  }
  OrderedJson unknown = tool_fields({{"function", {{"name", "other"}}}});
  expect_refused(ask(unknown), "tool_choice", "other");
  OrderedJson twice = tool_fields("auto");
  twice["tools"].push_back(kTools[0]);
  expect_refused(ask(twice), "tools", "name of another");
  OrderedJson bad = tool_fields("required");
  bad["tools"][0]["function"]["parameters"]["patternProperties"] = {{"a", true}};
  expect_refused(ask(bad), "tools", "patternProperties");
}

struct ToldCalls {
  OrderedJson calls = OrderedJson::array();  // as a whole answer has them, but for their ids
  std::string content, finish;

  explicit ToldCalls(const OrderedJson& choice) : finish(choice["finish_reason"]) {
    const OrderedJson& message = choice["message"];
    if (!message["content"].is_null()) content = message["content"];
    for (const OrderedJson& call : message.value("tool_calls", OrderedJson::array()))
      calls.push_back(call["function"]);
  }
  explicit ToldCalls(const std::vector<OrderedJson>& chunks) {
    for (const OrderedJson& chunk : chunks) {
      const OrderedJson& choice = chunk["choices"][0];
      if (!choice["finish_reason"].is_null()) finish = choice["finish_reason"];
      content += choice["delta"].value("content", "");
      for (const OrderedJson& call : choice["delta"].value("tool_calls", OrderedJson::array())) {
        if (call.contains("id")) {
          calls.push_back(call["function"]);
          continue;
        }
        OrderedJson& arguments = calls[call["index"].get<size_t>()]["arguments"];
        arguments = arguments.get<std::string>() + call["function"]["arguments"].get<std::string>();
      }
    }
  }
};

// The markers are text here: cut anywhere, a call is told as far as it came, whole and as a stream;
// no half of a marker is content, and a call that is not whole is no reason to end.
TEST_F(StructuredOutput, ACallThatIsCut) {
  for (const std::string& parser : tool_syntax_names()) {
    ServeOptions options = tales_options();
    options.tool_call_parser = parser;
    Server server(options);
    server.load();
    const auto post = [&](const OrderedJson& fields) {
      return TestClient(server.port()).post("/v1/chat/completions", fields);
    };
    OrderedJson fields =
        tool_fields({{"type", "function"}, {"function", {{"name", "get_weather"}}}});
    fields["return_token_ids"] = true;
    fields["stream"] = true;
    const std::vector<OrderedJson> chunks = post(fields).chunks();
    const ToldCalls whole(chunks);
    ASSERT_EQ(whole.finish, "tool_calls") << parser;
    const std::string arguments = whole.calls[0]["arguments"];
    size_t tokens = 0, begin = 0, end = 0;  // those that the call was told with
    for (const OrderedJson& chunk : chunks) {
      const OrderedJson& choice = chunk["choices"][0];
      tokens += choice.value("token_ids", OrderedJson::array()).size();
      if (!choice["delta"].contains("tool_calls")) continue;
      if (begin == 0) begin = tokens;
      end = tokens;
    }
    size_t cut_calls = 0;
    for (size_t most = begin - 8; most < end + 4; ++most) {
      fields["max_tokens"] = most;
      fields["stream"] = false;
      const ToldCalls cut(post(fields).json()["choices"][0]);
      fields["stream"] = true;
      const ToldCalls streamed(post(fields).chunks());
      EXPECT_EQ(cut.finish, "length") << parser << most;
      EXPECT_EQ(cut.content, "") << parser << most;
      EXPECT_EQ(streamed.finish, cut.finish) << parser << most;
      EXPECT_EQ(streamed.content, cut.content) << parser << most;
      EXPECT_EQ(streamed.calls, cut.calls) << parser << most;
      if (cut.calls.empty()) {
        EXPECT_LT(most, begin) << parser;
        continue;
      }
      EXPECT_EQ(cut.calls[0]["name"], whole.calls[0]["name"]);
      const std::string part = cut.calls[0]["arguments"];
      EXPECT_TRUE(arguments.starts_with(part)) << part;
      EXPECT_TRUE(most < end || part == arguments) << part;
      cut_calls += part != arguments ? 1 : 0;
    }
    EXPECT_GT(cut_calls, 5u) << parser;

    fields["max_tokens"] = 400;
    ASSERT_GT(arguments.size(), 2u);
    fields["stop"] = arguments.substr(1, arguments.size() - 2);
    for (const bool stream : {false, true}) {
      fields["stream"] = stream;
      const TestResponse response = post(fields);
      const OrderedJson stopped =
          stream ? response.chunks().back()["choices"][0] : response.json()["choices"][0];
      EXPECT_EQ(stopped["finish_reason"], "stop") << stopped;
      EXPECT_EQ(stopped["matched_stop"], fields["stop"]);
    }
  }
}

TEST_F(StructuredOutput, GrammarsThatAreTooComplexAreTheClientsError) {
  // Too much for its first state, for its first token, and later on.
  const std::string start_of_all = "((a?){400}){200}";
  std::string first, later = "x{30}(";
  for (int i = 0; i < 20; ++i) {
    const std::string one = fmt::format(".{{0,{}}}a.{{{}}}c|", 300 + i, 400 + i);
    first += one;
    later += one;
  }
  later += "d)";
  const double before = metric(port(), "foresail:requests_rejected_total", "grammar_too_complex");
  // The first one again: a refusal is remembered.
  for (const std::string& regex : {start_of_all, start_of_all, first + "d", later}) {
    const auto start = std::chrono::steady_clock::now();
    const TestResponse refused = complete({{"regex", regex}, {"max_tokens", 300}});
    expect_refused(refused, "", "too complex to be followed (more than");
    EXPECT_EQ(refused.json()["error"]["code"].is_null(), regex != later) << refused.body;
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
  }
  EXPECT_EQ(metric(port(), "foresail:requests_rejected_total", "grammar_too_complex"),
            std::max(before, 0.0) + 1);
  const TestResponse streamed = complete({{"regex", later}, {"max_tokens", 300}, {"stream", true}});
  EXPECT_THAT(streamed.events().back(), testing::HasSubstr("grammar_too_complex"));
}

TEST_F(StructuredOutput, Reasoning) {
  const auto ask = [&](OrderedJson fields) {
    fields["messages"] = {{{"role", "user"}, {"content", "Think"}}};
    fields["temperature"] = 0;
    fields["max_tokens"] = 12;
    return TestClient(chat_server().port()).post("/v1/chat/completions", fields);
  };
  const OrderedJson answer = ask(OrderedJson::object()).json();
  const OrderedJson message = answer["choices"][0]["message"];
  EXPECT_FALSE(message["reasoning_content"].get<std::string>().empty()) << answer;
  EXPECT_EQ(message["reasoning"], message["reasoning_content"]);
  EXPECT_EQ(message["content"], "");
  EXPECT_EQ(answer["usage"]["completion_tokens_details"]["reasoning_tokens"], 12);
  std::string streamed;
  for (const OrderedJson& chunk : ask({{"stream", true}}).chunks())
    streamed += chunk["choices"][0]["delta"].value("reasoning_content", "");
  EXPECT_EQ(streamed, message["reasoning_content"].get<std::string>());
  const OrderedJson whole = ask({{"separate_reasoning", false}}).json()["choices"][0]["message"];
  EXPECT_FALSE(whole.contains("reasoning_content"));
  EXPECT_FALSE(whole["content"].get<std::string>().empty());
  const OrderedJson hidden = ask({{"include_reasoning", false}}).json()["choices"][0]["message"];
  EXPECT_FALSE(hidden.contains("reasoning_content"));
  EXPECT_EQ(hidden["content"], "");
}

// A character whose bytes are several tokens is whole in the event that tells it.
TEST_F(StructuredOutput, Row50CharactersSplitOverTokensAreToldWhole) {
  const std::string emoji = "\xF0\x9F\x8E\x89", wanted = emoji + "\xC3\xA9" + emoji;
  ASSERT_GT(post("/tokenize", {{"prompt", emoji}}).json()["count"], 1);
  for (const bool speculates : {true, false}) {
    OrderedJson fields = {{"regex", wanted}, {"stream", true}, {"max_tokens", 40}};
    if (!speculates) fields["speculative_num_steps"] = 0;
    std::string text;
    for (const OrderedJson& chunk : complete(fields).chunks()) {
      const auto piece = chunk["choices"][0]["text"].get<std::string>();
      EXPECT_EQ(piece.find("\xEF\xBF\xBD"), std::string::npos) << piece;
      text += piece;
    }
    EXPECT_EQ(text, wanted);
  }
}

TEST_F(StructuredOutput, Row74ACutIsALengthAndNoFault) {
  for (const bool stream : {false, true}) {
    const TestResponse response = complete(
        {{"response_format", json_schema(schema_sample())}, {"max_tokens", 3}, {"stream", stream}});
    EXPECT_EQ(response.status, 200) << response.body;
    const OrderedJson last = stream ? response.chunks().back() : response.json();
    EXPECT_EQ(last["choices"][0]["finish_reason"], "length");
  }
}

// Speculating or not, free or under a grammar, drawn or greedy: what runs beside changes nothing.
TEST_F(StructuredOutput, Row82AMixedBatchEqualsEachAlone) {
  std::vector<OrderedJson> requests;
  for (int i = 0; i < 8; ++i) {
    OrderedJson fields = {{"prompt", "The captain said " + std::to_string(i)},
                          {"max_tokens", 60},
                          {"temperature", i % 2},
                          {"seed", i},
                          {"return_token_ids", true}};
    if (i % 4 == 1) fields["regex"] = "[a-z ]{20,60}\\.";
    if (i % 4 == 2) fields["speculative_num_steps"] = 0;
    if (i % 4 == 3) fields["frequency_penalty"] = 0.7;
    if (i == 5) fields["response_format"] = json_schema(schema_sample()), fields.erase("regex");
    if (i == 6) fields["logprobs"] = 2;
    requests.push_back(std::move(fields));
  }
  const auto ids = [&](const OrderedJson& fields) {
    const TestResponse response = TestClient(port()).post("/v1/completions", fields);
    EXPECT_EQ(response.status, 200) << response.body;
    return response.json()["choices"].dump();
  };
  std::vector<std::string> alone, together(requests.size());
  for (const OrderedJson& fields : requests) alone.push_back(ids(fields));
  std::vector<std::thread> threads;
  for (size_t i = 0; i < requests.size(); ++i)
    threads.emplace_back([&, i] { together[i] = ids(requests[i]); });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(together, alone);
}

TEST_F(StructuredOutput, TimeLimits) {
  ServeOptions options = tales_options();
  options.engine.max_running_requests = 1;
  options.engine.context_length = 2048;
  options.queue_timeout = std::chrono::milliseconds(1500);
  options.request_timeout = std::chrono::milliseconds(4000);
  Server server(options);
  server.load();
  const auto post = [&](const OrderedJson& fields) {
    return TestClient(server.port()).post("/v1/completions", fields);
  };
  TestClient first(server.port());
  const OrderedJson endless = {
      {"prompt", "a"}, {"max_tokens", 2000}, {"ignore_eos", true}, {"n", 8}, {"stream", true}};
  first.send(request_text("POST", "/v1/completions", json_text(endless),
                          "Content-Type: application/json\r\n"));
  first.read_until("data: ");
  expect_refused(post({{"prompt", "b"}, {"max_tokens", 1}}), "", "too long in the queue", 503);
  EXPECT_NE(first.read_until("request_timeout").find("request_timeout"), std::string::npos);
  EXPECT_TRUE(
      eventually([&] { return metric(server.port(), "foresail:num_requests_running") == 0; }));
  EXPECT_EQ(post({{"prompt", "b"}, {"max_tokens", 1}}).status, 200);
  // A whole answer is refused likewise.
  OrderedJson whole = endless;
  whole["stream"] = false;
  const TestResponse late = post(whole);
  expect_refused(late, "", "took longer than this server allows", 504);
  EXPECT_EQ(late.json()["error"]["code"], "request_timeout");
  EXPECT_EQ(metric(server.port(), "foresail:requests_rejected_total", "request_timeout"), 2);
}

TEST_F(StructuredOutput, FlushingFreesThePages) {
  std::string words;
  for (int i = 0; i < 60; ++i) words += " the old captain";
  Server server(tales_options());
  server.load();
  TestClient(server.port()).post("/v1/completions", {{"prompt", words}, {"max_tokens", 1}});
  const auto cached = [&] { return metric(server.port(), "foresail:kv_pages", "cached"); };
  EXPECT_TRUE(eventually([&] { return cached() > 0; }));
  EXPECT_EQ(TestClient(server.port()).request("POST", "/flush_cache").status, 200);
  EXPECT_TRUE(eventually([&] { return cached() == 0; }));
}

}  // namespace
}  // namespace foresail
