// Rows 10 and 97 to 105 of the conformance checklist: clients that leave or dawdle, and the end.
#include <fmt/core.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <deque>
#include <thread>

#include "server/live_server.h"

namespace foresail {
namespace {

using Lifecycle = LiveServer;

constexpr const char* kEndless =
    R"({"prompt":"a","stream":true,"max_tokens":900,"ignore_eos":true})";

TEST_F(Lifecycle, Row97ADisconnectFreesPagesWithinASecond) {
  for (const bool stream : {true, false}) {
    const double gone_before = metric(port(), "foresail:client_disconnects_total", "running") +
                               metric(port(), "foresail:client_disconnects_total", "waiting");
    {
      TestClient client(port());
      const std::string body =
          stream ? kEndless : R"({"prompt":"a","max_tokens":900,"ignore_eos":true})";
      client.send(request_text("POST", "/v1/completions", body));
      if (stream) client.read_until("\"text\"");
      EXPECT_TRUE(eventually([&] { return owned_pages(port()) > 0; }));
    }
    EXPECT_TRUE(eventually([&] { return owned_pages(port()) == 0; }, 1.0)) << stream;
    EXPECT_EQ(metric(port(), "foresail:client_disconnects_total", "running") +
                  metric(port(), "foresail:client_disconnects_total", "waiting"),
              gone_before + 1);
  }
}

// Closes at every kind of place: inside the request, between it and the answer, inside events.
TEST_F(Lifecycle, ManyDisconnectsLeaveNothingBehind) {
  const std::string request = request_text("POST", "/v1/completions", kEndless);
  uint64_t draw = 12345;
  for (int i = 0; i < 300; ++i) {
    draw = draw * 6364136223846793005u + 1442695040888963407u;
    TestClient client(port());
    if (i % 3 == 0) {
      client.send(request.substr(0, (draw >> 33) % request.size()));
    } else {
      client.send(request);
      if (i % 3 == 2) client.read_until("data: ");
    }
  }
  EXPECT_TRUE(eventually([&] {
    return owned_pages(port()) == 0 && metric(port(), "foresail:num_requests_waiting") == 0;
  }));
  EXPECT_TRUE(eventually(
      [&] { return metric(port(), "foresail:http_connections", "state=\"idle\"") == 0; }));
  EXPECT_EQ(complete({}).status, 200);
}

TEST(QueuedClient, Row98LeavingTheQueueRemovesTheRequest) {
  ServeOptions options = tales_options();
  options.engine.max_running_requests = 1;
  Server server(options);
  server.load();
  const int port = server.port();
  TestClient running(port);
  running.send(request_text("POST", "/v1/completions", kEndless));
  running.read_until("\"text\"");
  {
    TestClient queued(port);
    queued.send(request_text("POST", "/v1/completions", R"({"prompt":"b","max_tokens":900})"));
    EXPECT_TRUE(eventually([&] { return metric(port, "foresail:num_requests_waiting") == 1; }));
  }
  EXPECT_TRUE(eventually([&] { return metric(port, "foresail:num_requests_waiting") == 0; }, 1));
  EXPECT_EQ(metric(port, "foresail:client_disconnects_total", "phase=\"waiting\""), 1);
  EXPECT_EQ(metric(port, "foresail:num_requests_running"), 1);
  EXPECT_EQ(running.read().events().back(), "[DONE]");
}

TEST_F(Lifecycle, Row99And100AbortAndFlush) {
  TestClient client(port());
  client.send(request_text("POST", "/v1/completions",
                           R"({"prompt":"a","max_tokens":900,"ignore_eos":true,"rid":"mine"})"));
  EXPECT_TRUE(eventually([&] { return owned_pages(port()) > 0; }));
  expect_refused(post("/flush_cache", OrderedJson::object()), "", "while requests run");
  EXPECT_EQ(post("/abort_request", {{"rid", "other"}}).json()["aborted"], 0);
  EXPECT_EQ(post("/abort_request", {{"rid", "mine"}}).json()["aborted"], 1);
  const TestResponse response = client.read();
  EXPECT_EQ(response.status, 499);
  EXPECT_EQ(response.json()["error"]["code"], "request_aborted");
  expect_refused(post("/abort_request", OrderedJson::object()), "rid", "abort_all");

  const std::string long_prompt(600, 'x');
  const auto cached = [&] {
    return complete({{"prompt", long_prompt}})
        .json()["usage"]["prompt_tokens_details"]["cached_tokens"]
        .get<int>();
  };
  cached();
  EXPECT_GT(cached(), 0);
  EXPECT_TRUE(eventually([&] { return post("/flush_cache", nullptr).status == 200; }));
  EXPECT_EQ(cached(), 0);
  EXPECT_GT(cached(), 0);
  EXPECT_TRUE(eventually([&] { return post("/reset_prefix_cache", nullptr).status == 200; }));
}

TEST(DrainServer, Row10And101RunningRequestsFinishAndNewOnesGet503) {
  Server server(tales_options());
  server.load();
  TestClient running(server.port()), idle(server.port()), kept(server.port());
  EXPECT_EQ(idle.get("/health").status, 200);
  running.send(request_text("POST", "/v1/completions",
                            R"({"prompt":"a","stream":true,"max_tokens":300,"ignore_eos":true})"));
  running.read_until("\"text\"");
  std::thread drain([&] { server.drain(std::chrono::seconds(60)); });
  EXPECT_TRUE(eventually([&] {
    TestClient probe(server.port());
    return probe.get("/ready").status == 503;
  }));
  EXPECT_EQ(TestClient(server.port()).get("/livez").status, 200);
  const TestResponse refused = kept.post("/v1/completions", {{"prompt", "a"}});
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(refused.json()["error"]["code"], "shutting_down");
  EXPECT_EQ(refused.fields.at("connection"), "close");
  EXPECT_GE(std::stoi(refused.fields.at("retry-after")), 1);
  const TestResponse whole = running.read();
  EXPECT_EQ(whole.events().back(), "[DONE]");
  drain.join();
  EXPECT_TRUE(idle.at_end());
}

bool is_answered_within(const TestClient& client, int milliseconds) {
  pollfd poll{.fd = client.descriptor(), .events = POLLIN, .revents = 0};
  return ::poll(&poll, 1, milliseconds) > 0;
}
bool is_answered(const TestClient& client) {
  return is_answered_within(client, 0);
}

// The only thread is at work on something else when the request comes and the end does.
TEST(DrainServer, ARequestThatNobodyHasSeenYetIsAnswered) {
  ServeOptions options = tales_options();
  options.http_threads = 1;
  Server server(options);
  server.load();
  TestClient client(server.port()), large(server.port());
  large.send(request_text("POST", "/tokenize",
                          json_text(OrderedJson{{"prompt", std::string(8 << 20, 'a')}})));
  bool waits = false;
  const auto send_and_look = [&] {
    client.send(request_text("GET", "/livez", ""));
    waits = !is_answered_within(client, 50);
    return waits || client.read().status != 200;
  };
  ASSERT_TRUE(eventually(send_and_look) && waits);
  std::thread drain([&] { server.drain(std::chrono::seconds(60)); });
  EXPECT_EQ(client.read().status, 200);
  client.close();
  large.close();
  drain.join();
}

// Its answer is on its way: nobody waits for more than that. Otherwise the drain always takes the
// two seconds of a lingering connection; on a busy machine it may take that long once or twice.
TEST(DrainServer, ASlowReaderEndsWithItsAnswer) {
  const auto drain_time = [] {
    Server server(tales_options());
    server.load();
    TestClient client(server.port());
    client.send(request_text("POST", "/tokenize",
                             json_text(OrderedJson{{"prompt", std::string(2'000'000, 'a')}})));
    EXPECT_TRUE(
        eventually([&] { return metric(server.port(), "foresail:http_waiting_bytes") > 1 << 20; }));
    const auto start = std::chrono::steady_clock::now();
    std::thread drain([&] { server.drain(std::chrono::seconds(60)); });
    EXPECT_TRUE(eventually([&] { return TestClient(server.port()).get("/ready").status == 503; }));
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    EXPECT_TRUE(client.read().ended);
    EXPECT_TRUE(client.at_end());
    client.close();
    drain.join();
    return std::chrono::steady_clock::now() - start;
  };
  auto least = drain_time();
  for (int i = 0; i < 3 && least > std::chrono::milliseconds(1900); ++i)
    least = std::min(least, drain_time());
  EXPECT_LT(least, std::chrono::milliseconds(1900));
}

// Whoever still reads a prompt when a server goes needs the tokenizer for it. (A build with
// AddressSanitizer sees it.)
TEST(DrainServer, APromptThatTakesLongOutlivesNothingItNeeds) {
  TestResponse answer;
  std::thread asking;
  {
    Server server(tales_options());
    server.load();
    std::string text(3'000'000, ' ');
    uint32_t draw = 1;
    for (char& letter : text) {
      draw = draw * 1664525 + 1013904223;
      letter = static_cast<char>('a' + (draw >> 24) % 26);
    }
    const std::string request =
        request_text("POST", "/tokenize", json_text(OrderedJson{{"prompt", std::move(text)}}));
    asking = std::thread([request, port = server.port(), &answer] {
      TestClient client(port);
      client.send(request);
      answer = client.read();
    });
    EXPECT_TRUE(eventually(
        [&] { return metric(server.port(), "foresail:http_connections", "state=\"busy\"") == 2; }));
  }
  asking.join();
  EXPECT_EQ(answer.status, 200);
}

TEST(DrainServer, Row102AfterTheTimeoutOrASecondSignalStreamsEndWithAnError) {
  for (const bool hurry : {false, true}) {
    Server server(tales_options());
    server.load();
    TestClient running(server.port());
    running.send(request_text("POST", "/v1/completions", kEndless));
    running.read_until("\"text\"");
    std::thread drain([&] {
      server.drain(hurry ? std::chrono::milliseconds(60'000) : std::chrono::milliseconds(50));
    });
    if (hurry) {
      EXPECT_TRUE(
          eventually([&] { return TestClient(server.port()).get("/ready").status == 503; }));
      server.hurry();
    }
    const TestResponse cut = running.read();
    EXPECT_TRUE(cut.ended);
    EXPECT_THAT(cut.events().back(), testing::HasSubstr("shutting_down"));
    drain.join();
  }
}

TEST_F(Lifecycle, Row103IdleConnectionsDoNotBlockANewRequest) {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  const int count = limit.rlim_cur > 2500 ? 1000 : 200;
  std::vector<std::unique_ptr<TestClient>> idle;
  for (int i = 0; i < count; ++i) {
    idle.push_back(std::make_unique<TestClient>(port()));
    if (i % 2 == 0) {
      EXPECT_EQ(idle.back()->get("/livez").status, 200);
    }
  }
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(complete({{"max_tokens", 1}}).status, 200);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
  EXPECT_GE(metric(port(), "foresail:http_connections", "state=\"idle\""), count);
  EXPECT_EQ(idle[0]->get("/livez").status, 200);
}

// Two threads, and two bodies that take one each for long: who asks for little does not wait.
TEST_F(Lifecycle, LargeBodiesLeaveAThreadForOthers) {
  OrderedJson body;
  body["prompt"] = std::string(8 << 20, 'a');
  const std::string request = request_text("POST", "/v1/completions", body.dump());
  std::deque<TestClient> clients;
  std::vector<std::thread> senders;
  for (int i = 0; i < 3; ++i) clients.emplace_back(port());
  for (TestClient& client : clients) senders.emplace_back([&] { client.send(request); });
  for (std::thread& sender : senders) sender.join();
  TestClient other(port());
  int answers = 0;
  while (!std::any_of(clients.begin(), clients.end(), is_answered)) {
    ASSERT_EQ(other.get("/livez").status, 200);
    ++answers;
  }
  EXPECT_GT(answers, 5);
  // One after the other they all have their turn, but for who has left.
  clients.pop_back();
  for (TestClient& client : clients) EXPECT_EQ(client.read().status, 400);  // too long
  EXPECT_EQ(get("/livez").status, 200);
}

// Grammars that take long: two at once would hold both threads until two are left. Each another
// one, and each asked for by several: whoever finds it compiled has still to try it.
TEST_F(Lifecycle, NewGrammarsLeaveAThreadForOthers) {
  std::deque<TestClient> clients;
  for (int i = 0; i < 36; ++i) {
    OrderedJson body;
    body["prompt"] = "a";
    body["regex"] = fmt::format("((a?){{400}}){{{}}}", 200 + (i < 12 ? i : 8 + i / 3));
    clients.emplace_back(port());
    clients.back().send(request_text("POST", "/v1/completions", body.dump()));
  }
  TestClient other(port());
  int answers = 0;
  while (std::count_if(clients.begin(), clients.end(), is_answered) < 34) {
    ASSERT_EQ(other.get("/livez").status, 200);
    ++answers;
  }
  EXPECT_GT(answers, 120);
  for (TestClient& client : clients) {
    const TestResponse response = client.read();
    EXPECT_EQ(response.status, 400);
    EXPECT_THAT(response.body, testing::HasSubstr("too complex to be followed"));
  }
}

// The time limit of the queue holds for those that wait for a turn too.
TEST(TurnTimeout, WhoWaitsTooLongForATurnIsTold) {
  ServeOptions options = tales_options();
  options.queue_timeout = std::chrono::milliseconds(100);
  Server server(options);
  server.load();
  std::deque<TestClient> clients;
  for (int i = 0; i < 30; ++i) {
    OrderedJson body;
    body["prompt"] = "a";
    body["regex"] = fmt::format("((a?){{400}}){{{}}}", 150 + i);
    clients.emplace_back(server.port());
    clients.back().send(request_text("POST", "/v1/completions", body.dump()));
  }
  int late = 0;
  for (TestClient& client : clients) {
    const TestResponse response = client.read();
    if (response.status == 400) continue;  // too complex
    EXPECT_EQ(response.status, 503);
    EXPECT_EQ(response.json()["error"]["code"], "queue_timeout");
    ++late;
  }
  EXPECT_GT(late, 5);
  EXPECT_EQ(metric(server.port(), "foresail:requests_rejected_total", "queue_timeout"), late);
  EXPECT_TRUE(eventually([&] {
    return TestClient(server.port())
               .post("/v1/completions", {{"prompt", "a"}, {"regex", "b"}})
               .status == 200;
  }));
}

TEST_F(Lifecycle, ClientsMayLeaveWhileTheirLargeBodiesWait) {
  OrderedJson body;
  body["prompt"] = std::string(256 << 10, 'a');
  const std::string request = request_text("POST", "/tokenize", body.dump());
  std::vector<std::thread> senders;
  for (int i = 0; i < 16; ++i)
    senders.emplace_back([&, i] {
      for (int j = 0; j < 12; ++j) {
        TestClient client(port());
        client.send(request);
        std::this_thread::sleep_for(std::chrono::milliseconds(5 * ((i * 7 + j * 5) % 12)));
      }
    });
  for (std::thread& sender : senders) sender.join();
  EXPECT_EQ(get("/livez").status, 200);
  EXPECT_EQ(post("/tokenize", {{"prompt", "a"}}).status, 200);
}

TEST_F(Lifecycle, Row104PipelinedAndHalfClosed) {
  TestClient client(port());
  const std::string one =
      request_text("POST", "/v1/completions", R"({"prompt":"a","max_tokens":4,"temperature":0})");
  client.send(one + one + request_text("GET", "/health", "") + one);
  const TestResponse first = client.read();
  EXPECT_EQ(first.status, 200);
  EXPECT_EQ(client.read().json()["choices"], first.json()["choices"]);
  EXPECT_EQ(client.read().body, R"({"status":"ok"})");
  EXPECT_EQ(client.read().status, 200);
  // What needs no model is answered; a model does not run for someone who may have gone.
  TestClient half(port());
  half.send(request_text("GET", "/v1/models", ""));
  half.shut_write();
  EXPECT_EQ(half.read().status, 200);
  EXPECT_TRUE(half.at_end());
  for (int i = 0; i < 20; ++i) {
    constexpr int kAhead = 20;
    TestClient ahead(port());
    std::string requests;
    for (int j = 0; j < kAhead; ++j) requests += request_text("GET", "/metrics", "");
    ahead.send(requests);
    ahead.shut_write();
    for (int j = 0; j < kAhead; ++j) ASSERT_EQ(ahead.read().status, 200) << i << " " << j;
    EXPECT_TRUE(ahead.at_end());
  }
  // Nor does half a request keep it open, or one of a model.
  for (const std::string& last : {one.substr(0, 30), one.substr(0, one.size() - 1), one}) {
    TestClient ahead(port());
    ahead.send(request_text("GET", "/health", "") + request_text("GET", "/health", "") + last);
    ahead.shut_write();
    EXPECT_EQ(ahead.read().status, 200);
    EXPECT_EQ(ahead.read().status, 200);
    EXPECT_TRUE(ahead.at_end());
  }
  EXPECT_TRUE(eventually(
      [&] { return metric(port(), "foresail:http_connections", "state=\"busy\"") == 1; }));
}

TEST(SlowServer, Row105ASlowReaderIsDroppedAndOthersGoOn) {
  ServeOptions options = tales_options();
  options.http.max_unsent_bytes = 4096;
  options.engine.max_running_requests = 12;
  Server server(options);
  server.load();
  TestClient slow(server.port());
  const int small = 2048;
  setsockopt(slow.descriptor(), SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
  // Its stream is far larger than what the sockets between it and the server hold.
  slow.send(request_text("POST", "/generate",
                         R"({"text":"a","stream":true,"sampling_params":{"max_new_tokens":1000,)"
                         R"("ignore_eos":true,"n":8}})"));
  TestClient other(server.port());
  EXPECT_EQ(other.post("/v1/completions", {{"prompt", "b"}, {"max_tokens", 20}}).status, 200);
  EXPECT_TRUE(eventually(
      [&] { return metric(server.port(), "foresail:slow_readers_dropped_total") == 1; }, 60));
  EXPECT_TRUE(eventually([&] { return owned_pages(server.port()) == 0; }, 1));
}

// One event may be larger than what may stay unsent.
TEST(SlowServer, ALargeEventReachesItsReader) {
  ServeOptions options = tales_options();
  options.http.max_unsent_bytes = 4096;
  options.engine.context_length = 2048;
  Server server(options);
  server.load();
  TestClient client(server.port());
  const TestResponse answer = client.post("/v1/completions", {{"prompt", std::vector<int>(1500, 5)},
                                                              {"n", 4},
                                                              {"echo", true},
                                                              {"logprobs", 20},
                                                              {"max_tokens", 1},
                                                              {"stream", true}});
  EXPECT_GT(answer.body.size(), size_t{1} << 20);
  EXPECT_TRUE(answer.body.ends_with("data: [DONE]\n\n"));
  EXPECT_EQ(metric(server.port(), "foresail:slow_readers_dropped_total"), 0);
}

// Neither the limit on idle connections nor that on those that end cuts an answer.
TEST(SlowServer, ALargeAnswerReachesASlowReader) {
  ServeOptions options = tales_options();
  options.http.keep_alive_timeout = std::chrono::milliseconds(300);
  Server server(options);
  server.load();
  const OrderedJson body = {{"prompt", std::vector<int>(1000, 5)},
                            {"n", 4},
                            {"echo", true},
                            {"logprobs", 20},
                            {"max_tokens", 1}};
  for (const char* field : {"", "Connection: close\r\n"}) {
    TestClient client(server.port());
    const int small = 64 << 10;
    setsockopt(client.descriptor(), SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    client.send(request_text("POST", "/v1/completions", json_text(body), field));
    std::this_thread::sleep_for(std::chrono::milliseconds(6000));
    const TestResponse answer = client.read();
    EXPECT_TRUE(answer.ended) << field;
    EXPECT_GT(answer.body.size(), size_t{1} << 20) << field;
  }
  EXPECT_EQ(metric(server.port(), "foresail:slow_readers_dropped_total"), 0);
}

TEST(SlowServer, ASlowReaderHasTheWholeTimeForItsNextRequest) {
  ServeOptions options = tales_options();
  options.http.keep_alive_timeout = std::chrono::milliseconds(3500);
  Server server(options);
  server.load();
  TestClient client(server.port());
  client.send(request_text("POST", "/tokenize",
                           json_text(OrderedJson{{"prompt", std::string(2'000'000, 'a')}})));
  std::this_thread::sleep_for(std::chrono::milliseconds(4000));
  EXPECT_TRUE(client.read().ended);
  std::this_thread::sleep_for(std::chrono::milliseconds(2500));
  EXPECT_EQ(client.get("/livez").status, 200);
}

// Of whoever sends and never reads, one answer is kept: 60 bytes ask for 30,000.
TEST(SlowServer, AnswersToRequestsSentAheadDoNotPileUp) {
  Server server(tales_options());
  server.load();
  constexpr int kCount = 400;
  TestClient client(server.port());
  std::string ahead;
  for (int i = 0; i < kCount; ++i) ahead += request_text("GET", "/metrics", "");
  client.send(ahead);
  EXPECT_TRUE(eventually([&] { return metric(server.port(), "foresail:http_waiting_bytes") > 0; }));
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  EXPECT_LT(metric(server.port(), "foresail:http_waiting_bytes"), 1 << 20);
  for (int i = 0; i < kCount; ++i) ASSERT_EQ(client.read().status, 200) << i;
  // The last answer is counted until its sender knows that it is through.
  EXPECT_TRUE(
      eventually([&] { return metric(server.port(), "foresail:http_waiting_bytes") == 0; }));
}

// Nor do many connections hold more than there is room for, however long their answers are.
TEST(SlowServer, AnswersThatNobodyReadsAreLimited) {
  ServeOptions options = tales_options();
  options.http.max_waiting_bytes = 1 << 20;
  Server server(options);
  server.load();
  std::string text;
  for (int i = 0; i < 300'000; ++i) text += "\xF0\x9F\x98\x80";
  const OrderedJson question = {{"prompt", text}};
  const auto ask = [&](const OrderedJson& body) {
    return TestClient(server.port()).post("/tokenize", body);
  };
  {
    TestClient holder(server.port());
    holder.send(request_text("POST", "/tokenize", json_text(question)));
    EXPECT_TRUE(
        eventually([&] { return metric(server.port(), "foresail:http_waiting_bytes") > 1 << 20; }));
    const TestResponse refused = ask(question);
    EXPECT_EQ(refused.status, 503);
    EXPECT_EQ(refused.json()["error"]["code"], "server_busy");
    EXPECT_EQ(ask({{"prompt", "a"}}).status, 200);
    EXPECT_TRUE(holder.read().ended) << "what was promised comes";
    EXPECT_EQ(ask(question).status, 200);
    holder.send(request_text("POST", "/tokenize", json_text(question)));
    EXPECT_TRUE(
        eventually([&] { return metric(server.port(), "foresail:http_waiting_bytes") > 1 << 20; }));
  }
  // Who leaves holds nothing.
  EXPECT_TRUE(
      eventually([&] { return metric(server.port(), "foresail:http_waiting_bytes") == 0; }));
  EXPECT_EQ(ask(question).status, 200);
  EXPECT_EQ(metric(server.port(), "foresail:requests_rejected_total", "waiting_bytes"), 1);
}

TEST(SlowServer, ARequestLargerThanTheQueueIsNotToldToTryAgain) {
  ServeOptions options = tales_options();
  options.max_queued_requests = 2;
  options.engine.max_running_requests = 2;
  Server server(options);
  server.load();
  TestClient client(server.port());
  const TestResponse answer =
      client.post("/v1/completions", {{"prompt", "a"}, {"n", 5}, {"max_tokens", 1}});
  EXPECT_EQ(answer.status, 400);
  EXPECT_NE(answer.body.find("takes 4"), std::string::npos) << answer.body;
  EXPECT_EQ(client.post("/v1/completions", {{"prompt", "a"}, {"n", 4}, {"max_tokens", 1}}).status,
            200);
}

TEST(SlowServer, SlowSendersAreClosedByTheirTimeouts) {
  ServeOptions options = tales_options();
  options.http.header_timeout = std::chrono::milliseconds(200);
  options.http.body_timeout = std::chrono::milliseconds(200);
  options.http.keep_alive_timeout = std::chrono::milliseconds(600);
  Server server(options);
  server.load();
  TestClient header(server.port()), body(server.port()), idle(server.port());
  header.send("POST /v1/comp");
  body.send("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nab");
  EXPECT_EQ(header.read().status, 408);
  EXPECT_EQ(body.read().status, 408);
  EXPECT_TRUE(header.at_end());
  EXPECT_TRUE(idle.at_end());
  EXPECT_EQ(metric(server.port(), "foresail:requests_rejected_total", "header_timeout"), 1);
}

TEST(SlowServer, ConnectionsOverTheLimitGet503) {
  ServeOptions options = tales_options();
  options.http.max_connections = 2;
  Server server(options);
  TestClient first(server.port()), second(server.port());
  EXPECT_EQ(first.get("/livez").status, 200);
  EXPECT_EQ(second.get("/livez").status, 200);
  EXPECT_EQ(TestClient(server.port()).read().status, 503);
  second.close();
  EXPECT_TRUE(eventually([&] { return TestClient(server.port()).get("/livez").status == 200; }));
}

}  // namespace
}  // namespace foresail
