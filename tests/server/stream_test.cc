// Rows 51 to 63 and 75 to 80 of the conformance checklist: event streams, and speculation seen
// through them.
#include "server/live_server.h"

namespace foresail {
namespace {

using EventStream = LiveServer;

TEST_F(EventStream, Row51To57ChatStream) {
  const OrderedJson whole = chat({{"max_tokens", 24}}).json();
  const TestResponse response =
      chat({{"max_tokens", 24}, {"stream", true}, {"stream_options", {{"include_usage", true}}}});
  EXPECT_EQ(response.fields.at("content-type"), "text/event-stream");
  EXPECT_EQ(response.fields.at("cache-control"), "no-cache");
  EXPECT_EQ(response.fields.at("x-accel-buffering"), "no");
  EXPECT_TRUE(response.body.ends_with("data: [DONE]\n\n"));
  const std::vector<OrderedJson> chunks = response.chunks();
  EXPECT_EQ(chunks[0]["choices"][0]["delta"],
            (OrderedJson{{"role", "assistant"}, {"content", ""}}));
  std::string text;
  int finishes = 0;
  for (size_t i = 0; i + 1 < chunks.size(); ++i) {
    EXPECT_EQ(chunks[i]["object"], "chat.completion.chunk");
    EXPECT_EQ(chunks[i]["id"], chunks[0]["id"]);
    EXPECT_TRUE(chunks[i].contains("usage") && chunks[i]["usage"].is_null());
    const OrderedJson& choice = chunks[i]["choices"][0];
    text += choice["delta"].value("content", "");
    if (choice["finish_reason"].is_null()) continue;
    ++finishes;
    EXPECT_EQ(choice["finish_reason"], "length");
    EXPECT_TRUE(choice["delta"].empty());
  }
  EXPECT_EQ(finishes, 1);
  EXPECT_EQ(text, whole["choices"][0]["message"]["content"].get<std::string>());
  EXPECT_EQ(chunks.back()["choices"], OrderedJson::array());
  OrderedJson usage = chunks.back()["usage"];
  EXPECT_EQ(usage["completion_tokens"], whole["usage"]["completion_tokens"]);
  EXPECT_EQ(usage["prompt_tokens"], whole["usage"]["prompt_tokens"]);
  EXPECT_EQ(usage["total_tokens"], whole["usage"]["total_tokens"]);
  EXPECT_TRUE(usage["prompt_tokens_details"]["cached_tokens"].is_number_integer());
}

TEST_F(EventStream, Row54And55UsageOnlyWhenAskedFor) {
  for (const OrderedJson& options :
       {OrderedJson(), OrderedJson::object(), OrderedJson{{"include_usage", false}}}) {
    const TestResponse response = complete({{"stream", true}, {"stream_options", options}});
    ASSERT_EQ(response.status, 200) << response.body;
    for (const OrderedJson& chunk : response.chunks()) {
      EXPECT_FALSE(chunk.contains("usage")) << chunk;
      EXPECT_EQ(chunk["choices"].size(), 1u);
    }
  }
}

TEST_F(EventStream, Row56ContinuousUsage) {
  const TestResponse response =
      complete({{"stream", true},
                {"stream_options", {{"include_usage", true}, {"continuous_usage_stats", true}}}});
  int64_t latest = 0;
  for (const OrderedJson& chunk : response.chunks()) {
    const int64_t tokens = chunk["usage"]["completion_tokens"];
    EXPECT_GE(tokens, latest);
    latest = tokens;
  }
  EXPECT_EQ(latest, 12);
}

TEST_F(EventStream, Row52And58ManyChoices) {
  const OrderedJson fields = {{"n", 3}, {"temperature", 1.0}, {"seed", 11}, {"max_tokens", 16}};
  const OrderedJson whole = complete(fields).json();
  OrderedJson streamed_fields = fields;
  streamed_fields["stream"] = true;
  std::vector<std::string> texts(3);
  for (const OrderedJson& chunk : complete(streamed_fields).chunks())
    texts[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"].get<std::string>();
  for (int i = 0; i < 3; ++i) EXPECT_EQ(texts[i], whole["choices"][i]["text"].get<std::string>());
}

TEST_F(EventStream, Row60LogprobsOfAllChunksAreThoseOfTheWhole) {
  const OrderedJson whole = chat({{"logprobs", true}, {"top_logprobs", 3}}).json()["choices"][0];
  ASSERT_EQ(whole["logprobs"]["content"].size(), 12u) << whole;
  std::string text;
  for (const OrderedJson& entry : whole["logprobs"]["content"]) {
    EXPECT_EQ(entry["top_logprobs"].size(), 3u);
    EXPECT_EQ(entry["top_logprobs"][0]["logprob"], entry["logprob"]);
    std::string bytes;
    for (const OrderedJson& byte : entry["bytes"]) bytes += static_cast<char>(byte.get<int>());
    EXPECT_EQ(bytes, entry["token"].get<std::string>());
    text += bytes;
  }
  EXPECT_EQ(text, whole["message"]["content"].get<std::string>());
  OrderedJson joined = OrderedJson::array();
  const TestResponse stream = chat({{"logprobs", true}, {"top_logprobs", 3}, {"stream", true}});
  for (const OrderedJson& chunk : stream.chunks()) {
    const OrderedJson& logprobs = chunk["choices"][0]["logprobs"];
    if (logprobs.is_null()) continue;
    for (const OrderedJson& entry : logprobs["content"]) joined.push_back(entry);
  }
  EXPECT_EQ(joined, whole["logprobs"]["content"]);
}

TEST_F(EventStream, Row61StreamOptionsNeedAStream) {
  expect_refused(complete({{"stream_options", {{"include_usage", true}}}}), "stream_options",
                 "'stream' is true");
  expect_refused(complete({{"stream", true}, {"stream_options", {{"include_usage", 1}}}}),
                 "stream_options.include_usage",
                 "'stream_options.include_usage' must be true or false, not ");
}

TEST_F(EventStream, EveryEventIsSentAtOnce) {
  TestClient client(port());
  client.send(request_text("POST", "/v1/completions",
                           R"({"prompt":"a","stream":true,"max_tokens":900,"ignore_eos":true})"));
  EXPECT_NE(client.read_until("\"text\":").find("\"text\":"), std::string::npos);
  // The load is counted after the step whose event this was.
  EXPECT_TRUE(
      eventually([&] { return get("/v1/loads").json()["loads"][0]["num_running_reqs"] == 1; }));
}

TEST(StreamServer, Row62And63PingsWhileQueuedAndErrorsAfterTheHead) {
  ServeOptions options = tales_options();
  options.engine.max_running_requests = 1;
  options.ping_interval = std::chrono::milliseconds(20);
  Server server(options);
  server.load();
  TestClient first(server.port()), second(server.port());
  const std::string body = R"({"prompt":"a","stream":true,"max_tokens":900,"ignore_eos":true)";
  first.send(request_text("POST", "/v1/completions", body + R"(,"rid":"one"})"));
  first.read_until("\"text\"");
  second.send(request_text("POST", "/v1/completions", body + R"(,"rid":"two"})"));
  EXPECT_NE(second.read_until(": ping\n\n").find(": ping\n\n"), std::string::npos);
  EXPECT_EQ(
      TestClient(server.port()).post("/abort_request", {{"rid", "cmpl-two"}}).json()["aborted"], 1);
  const TestResponse cut = second.read();
  ASSERT_FALSE(cut.events().empty()) << cut.body;
  EXPECT_TRUE(cut.ended);
  const OrderedJson last = OrderedJson::parse(cut.events().back());
  EXPECT_EQ(last["error"]["code"], "request_aborted");
  TestClient(server.port()).post("/abort_request", {{"abort_all", true}});
  EXPECT_THAT(first.read().events().back(), testing::HasSubstr("request_aborted"));
}

TEST(StreamServer, Row62PingsWhileAPromptIsRead) {
  ServeOptions options = tales_options();
  options.engine.chunked_prefill_size = 16;  // a long prefill of a small model
  options.ping_interval = std::chrono::milliseconds(3);
  Server server(options);
  server.load();
  TestClient client(server.port());
  const auto start = std::chrono::steady_clock::now();
  client.send(request_text(
      "POST", "/v1/completions",
      R"({"stream":true,"max_tokens":1,"prompt":")" + std::string(900, 'x') + R"("})"));
  const std::string before = client.read_until("data: ");
  const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - start;
  int pings = 0;
  for (size_t at = 0; (at = before.find(": ping\n\n", at)) != std::string::npos; ++at) ++pings;
  EXPECT_GE(pings, 1);
  EXPECT_LE(pings, waited.count() / 0.003);
}

TEST_F(EventStream, Row75SpeculationChangesNoToken) {
  for (const char* prompt : {"Once upon a time", "The old captain", "A small fox", "In winter"}) {
    Request request{.prompt = prompt, .max_tokens = 40};
    request.sampling.temperature = 0;
    EXPECT_EQ(text({{"prompt", prompt}, {"max_tokens", 40}}), plain_text(request));
    request.sampling = {.temperature = 0.9f, .top_p = 0.9f, .seed = 42};
    EXPECT_EQ(text({{"prompt", prompt},
                    {"max_tokens", 40},
                    {"temperature", 0.9},
                    {"top_p", 0.9},
                    {"seed", 42}}),
              plain_text(request));
  }
}

TEST_F(EventStream, Row78And80SpeculationIsCounted) {
  const double before = metric(port(), "vllm:spec_decode_num_accepted_tokens_total");
  const OrderedJson json = complete({{"max_tokens", 48}, {"return_meta_info", true}}).json();
  const OrderedJson& meta = json["choices"][0]["meta_info"];
  const int64_t passes = meta["spec_verify_ct"], accepted = meta["spec_num_correct_drafts"];
  // The first token comes from the prompt; the cut at max_tokens may drop what was accepted.
  EXPECT_LE(48, 1 + passes + accepted) << meta;
  EXPECT_GE(48 + 3, 1 + passes + accepted) << meta;
  int64_t histogram_passes = 0, histogram_accepted = 0;
  for (size_t k = 0; k < meta["spec_accept_histogram"].size(); ++k) {
    histogram_passes += meta["spec_accept_histogram"][k].get<int64_t>();
    histogram_accepted += static_cast<int64_t>(k) * meta["spec_accept_histogram"][k].get<int64_t>();
  }
  // Passes at depth 0 verify no draft, and acceptance is none of theirs.
  EXPECT_GT(histogram_passes, 0);
  EXPECT_LE(histogram_passes, passes);
  EXPECT_NEAR(meta["spec_accept_length"].get<double>(),
              1.0 + static_cast<double>(accepted) / static_cast<double>(histogram_passes), 1e-9);
  EXPECT_EQ(histogram_accepted, accepted);
  const double after = metric(port(), "vllm:spec_decode_num_accepted_tokens_total");
  EXPECT_EQ(after - std::max(before, 0.0), static_cast<double>(accepted));
  double per_position = 0;
  for (int i = 0; i < 3; ++i)
    per_position += metric(port(), "foresail:spec_decode_num_accepted_tokens_per_pos_total",
                           "position=\"" + std::to_string(i) + "\"");
  EXPECT_EQ(per_position, after);
  // The block table is all that the default backend reads.
  EXPECT_GT(metric(port(), "foresail:attention_plans_total"), 0);
  EXPECT_EQ(metric(port(), "foresail:attention_fallback_total", "segmented"), 0);
  EXPECT_EQ(metric(port(), "foresail:metadata_builds_total", "kind=\"key_index\""), 0);
  EXPECT_EQ(metric(port(), "foresail:metadata_builds_total", "kind=\"ragged_plan\""), 0);
  EXPECT_FALSE(complete({}).json()["choices"][0].contains("meta_info"));
}

TEST_F(EventStream, DraftInfoTellsHowEveryTokenCame) {
  const OrderedJson fields = {
      {"max_tokens", 40}, {"return_draft_info", true}, {"return_meta_info", true}};
  OrderedJson streamed_fields = fields;
  streamed_fields["stream"] = true;
  for (const bool is_chat : {true, false}) {
    const auto ask = [&](const OrderedJson& wanted) {
      return is_chat ? chat(wanted) : complete(wanted);
    };
    const OrderedJson choice = ask(fields).json()["choices"][0];
    const std::string text = is_chat ? choice["message"]["content"] : choice["text"];
    const OrderedJson& tokens = choice["draft_info"];
    EXPECT_EQ(tokens.size(), 40u);
    std::string joined;
    int64_t accepted = 0, rejected = 0;
    int place = 0;
    for (const OrderedJson& token : tokens) {
      joined += token["text"].get<std::string>();
      const int draft = token.value("draft", 0);
      EXPECT_TRUE(draft == 0 || draft == place + 1) << tokens;
      place = draft;
      accepted += draft > 0 ? 1 : 0;
      // Only where the target spoke instead.
      EXPECT_TRUE(!token.contains("rejected") || draft == 0) << token;
      rejected += static_cast<int64_t>(token.value("rejected", OrderedJson::array()).size());
    }
    EXPECT_EQ(joined, text);
    const OrderedJson& meta = choice["meta_info"];
    const int64_t proposed = meta["spec_num_proposed_drafts"];
    const int64_t correct = meta["spec_num_correct_drafts"];
    EXPECT_GT(rejected, 0);
    // What the cut at max_tokens took from the last pass is in the counts only.
    EXPECT_NEAR(static_cast<double>(accepted), static_cast<double>(correct), 3.0);
    EXPECT_NEAR(static_cast<double>(rejected), static_cast<double>(proposed - correct), 3.0);

    OrderedJson streamed = OrderedJson::array();
    for (const OrderedJson& chunk : ask(streamed_fields).chunks())
      for (const OrderedJson& token : chunk["choices"][0].value("draft_info", OrderedJson::array()))
        streamed.push_back(token);
    std::string streamed_text;
    for (const OrderedJson& token : streamed) streamed_text += token["text"].get<std::string>();
    EXPECT_EQ(streamed_text, text);
    EXPECT_FALSE(ask({}).json()["choices"][0].contains("draft_info"));

    OrderedJson plain_fields = fields;
    plain_fields["speculative_num_steps"] = 0;
    const OrderedJson plain = ask(plain_fields).json()["choices"][0];
    EXPECT_EQ(is_chat ? plain["message"]["content"] : plain["text"], text);
    EXPECT_FALSE(plain["meta_info"].contains("spec_accept_length"));
    for (const OrderedJson& token : plain["draft_info"]) EXPECT_EQ(token.size(), 1u) << token;
  }
  expect_refused(complete({{"speculative_num_steps", -1}}), "speculative_num_steps", "");
}

}  // namespace
}  // namespace foresail
