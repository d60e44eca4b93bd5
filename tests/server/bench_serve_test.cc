// `foresail bench serve`: its definitions on made-up answers, and the command against a server.
#include <fmt/core.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "base/file.h"
#include "bench/serve/load_prompts.h"
#include "bench/serve/load_report.h"
#include "bench/serve/load_run.h"
#include "engine/terminal.h"
#include "server/live_server.h"

namespace foresail {
namespace {

using std::chrono::milliseconds;

const LoadResult::Clock::time_point kStart{};

LoadResult result(int start_ms, const std::vector<std::pair<int, int64_t>>& chunks) {
  LoadResult result{.start = kStart + milliseconds(start_ms)};
  for (const auto& [at_ms, tokens] : chunks) {
    result.chunks.push_back({kStart + milliseconds(at_ms), tokens});
    result.output_tokens += tokens;
  }
  result.prompt_tokens = 10;
  return result;
}

TEST(LoadReport, Definitions) {
  LoadResult failed = result(0, {});
  failed.error = "no";
  // 100 ms to the first token, then 3 tokens after 60 ms and 2 after 40.
  const LoadReport report =
      summarise({result(0, {{100, 1}, {160, 3}, {200, 2}}), result(200, {{500, 1}}), failed,
                 result(1200, {{1300, 1}, {2200, 9}})});
  EXPECT_EQ(report.completed, 3);
  EXPECT_EQ(report.failed, 1);
  EXPECT_EQ(report.first_error, "no");
  EXPECT_EQ(report.input_tokens, 30);
  EXPECT_EQ(report.output_tokens, 17);
  EXPECT_DOUBLE_EQ(report.duration_s, 2.2);
  EXPECT_NEAR(report.ttft_ms.mean, (100 + 300 + 100) / 3.0, 1e-9);
  EXPECT_NEAR(report.e2e_ms.median, 300, 1e-9);
  // A single token has no time per output token.
  EXPECT_NEAR(report.tpot_ms.mean, (100 / 5.0 + 900 / 9.0) / 2, 1e-9);
  EXPECT_NEAR(report.itl_chunk_ms.mean, (60 + 40 + 900) / 3.0, 1e-9);
  EXPECT_NEAR(report.itl_token_ms.mean, (60 + 40 + 900) / 14.0, 1e-9);
  EXPECT_NEAR(report.itl_token_ms.most, 100, 1e-9);
  EXPECT_NEAR(report.concurrency, (0.2 + 0.3 + 1.0) / 2.2, 1e-9);
  EXPECT_EQ(report.peak_output_per_s, 9);
  EXPECT_EQ(report.peak_concurrent, 1) << "one ended as the next began";
  EXPECT_TRUE(report.tokens_known);
  EXPECT_FALSE(summarise({result(0, {{1, 0}, {2, 0}})}).tokens_known);
  EXPECT_EQ(summarise({failed}).completed, 0);
}

TEST(LoadReport, SpreadsAreThoseOfNumpy) {
  std::vector<double> values;
  for (int i = 10; i > 0; --i) values.push_back(i);
  const Spread spread = spread_of(values);
  EXPECT_DOUBLE_EQ(spread.mean, 5.5);
  EXPECT_DOUBLE_EQ(spread.median, 5.5);
  EXPECT_NEAR(spread.deviation, 2.8722813, 1e-6);
  EXPECT_NEAR(spread.p90, 9.1, 1e-9);
  EXPECT_NEAR(spread.p99, 9.91, 1e-9);
  EXPECT_DOUBLE_EQ(spread.most, 10);
  EXPECT_EQ(spread_of({}).p99, 0);
}

TEST(LoadReport, DraftCountersOfOneTestUnderOneName) {
  const std::string text =
      "# TYPE vllm:spec_decode_num_drafts_total counter\n"
      "vllm:spec_decode_num_drafts_total{engine=\"0\"} 10.0\n"
      "vllm:spec_decode_num_drafts_total{engine=\"1\"} 10.0\n"
      "vllm:spec_decode_num_drafts_created{engine=\"1\"} 1.7e9\n"
      "vllm:spec_decode_num_draft_tokens_total{engine=\"0\"} 60\n"
      "vllm:spec_decode_num_accepted_tokens_total{engine=\"0\"} 30\n"
      "vllm:spec_decode_num_accepted_tokens_per_pos_total{engine=\"0\",position=\"0\"} 18\n"
      "vllm:spec_decode_num_accepted_tokens_per_pos_total{engine=\"0\",position=\"1\"} 12\n";
  const auto after = read_draft_counters(text);
  ASSERT_TRUE(after);
  EXPECT_EQ(after->passes, 20);
  EXPECT_EQ(after->accepted_at, (std::vector<double>{18, 12}));
  LoadReport report;
  report.drafts = drafts_between(
      DraftCounters{.passes = 10, .drafted = 30, .accepted = 10, .accepted_at = {10}}, after);
  EXPECT_DOUBLE_EQ(report.accept_length(), 3.0);
  EXPECT_EQ(report.drafts->accepted_at, (std::vector<double>{8, 12}));
  EXPECT_FALSE(drafts_between(after, after)) << "nothing was drafted";
  EXPECT_FALSE(read_draft_counters("other 1\n"));
}

TEST(LoadStream, TheSameHoweverItIsCut) {
  const std::string chat =
      ": ping\n\n"
      "data: "
      "{\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}],\"usage\":null}\n\n"
      "data: {\"choices\":[{\"delta\":{\"reasoning_content\":\"a\"},\"token_ids\":[1,2]}]}\r\n\r\n"
      "data: {\"choices\":[{\"delta\":{\"content\":\"b\"}}]}\n\n"
      "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n"
      "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":4,\"completion_tokens\":3}}\n\n"
      "data: [DONE]\n\n";
  for (const size_t piece : {size_t{1}, size_t{7}, chat.size()}) {
    LoadResult result;
    LoadStream stream(LoadApi::kChat, result);
    for (size_t at = 0; at < chat.size(); at += piece)
      stream.take(std::string_view(chat).substr(at, piece), kStart);
    EXPECT_TRUE(stream.done());
    EXPECT_EQ(result.error, "");
    ASSERT_EQ(result.chunks.size(), 2u) << "those that brought something";
    EXPECT_EQ(result.chunks[0].tokens, 2);
    EXPECT_EQ(result.prompt_tokens, 4);
    EXPECT_EQ(result.output_tokens, 3);
  }
  LoadResult result;
  LoadStream(LoadApi::kCompletions, result)
      .take("data: {\"error\":{\"message\":\"gone\"}}\n\n", kStart);
  EXPECT_EQ(result.error, "gone");
}

// Some servers' messages are objects, or null: no reason to end the whole run.
TEST(LoadStream, AnswersOfAnyShape) {
  for (const char* message : {"null", "5", "{\"a\":1}", "[]"}) {
    LoadResult result;
    LoadStream(LoadApi::kCompletions, result)
        .take(fmt::format("data: {{\"error\":{{\"message\":{}}}}}\n\n", message), kStart);
    EXPECT_EQ(result.error, "an error event") << message;
  }
  for (const char* event : {"{\"error\":[1]}", "[]", "x", "{\"choices\":5}", "{\"choices\":[5]}",
                            "{\"choices\":[{\"delta\":5,\"text\":5,\"token_ids\":5}],\"usage\":5}",
                            "{\"usage\":{\"prompt_tokens\":\"x\"}}", "{\"meta_info\":5}"})
    for (const LoadApi api : {LoadApi::kCompletions, LoadApi::kChat, LoadApi::kGenerate}) {
      LoadResult result;
      LoadStream(api, result).take(fmt::format("data: {}\n\n", event), kStart);
      EXPECT_EQ(result.output_tokens, 0);
    }
  EXPECT_EQ(text_member({{"id", 5}}, "id"), "");
  EXPECT_EQ(text_member(OrderedJson(5), "id", "x"), "x");
  EXPECT_EQ(integer_member({{"vocab_size", "x"}}, "vocab_size"), 0);
  const auto counters = read_draft_counters("vllm:spec_decode_num_drafts_total{}\n");
  EXPECT_FALSE(counters) << "a sample without a value";
}

TEST(HttpAddress, Parts) {
  const HttpAddress plain = parse_http_address("http://127.0.0.1:8000");
  EXPECT_EQ(plain.host + "|" + plain.port + "|" + plain.prefix, "127.0.0.1|8000|");
  const HttpAddress deep = parse_http_address("http://[::1]:81/api/");
  EXPECT_EQ(deep.host + "|" + deep.port + "|" + deep.prefix, "::1|81|/api");
  EXPECT_EQ(parse_http_address("http://host").port, "80");
  for (const auto& [end, prefix] :
       {std::pair("/v1", ""), std::pair("/v1/", ""), std::pair("/api/v1", "/api"),
        std::pair("/api//v1//", "/api"), std::pair("/v1/v1", "/v1"), std::pair("/av1", "/av1"),
        std::pair("/v1/x", "/v1/x"), std::pair("/", "")})
    EXPECT_EQ(parse_http_address(std::string("http://host:8000") + end).prefix, prefix) << end;
  for (const char* bad : {"https://host", "host:80", "http://", "http://h:x"})
    EXPECT_THROW(parse_http_address(bad), Error) << bad;
}

class BenchServe : public LiveServer {
 protected:
  BenchServe()
      : folder_(std::filesystem::temp_directory_path() /
                ("foresail_bench_serve_" + std::to_string(getpid()))) {
    std::filesystem::create_directories(folder_);
  }
  ~BenchServe() override { std::filesystem::remove_all(folder_); }

  std::string path(const char* name) const { return (folder_ / name).string(); }
  // The exit status; out_ and errors_ hold what was written.
  int run(const std::string& flags) {
    const std::string command = std::string(FORESAIL_BIN_DIR) + "/foresail bench serve " + flags +
                                " >" + path("out") + " 2>" + path("errors");
    const int status = std::system(command.c_str());
    out_ = read_text_file(path("out"), 1 << 20);
    errors_ = read_text_file(path("errors"), 1 << 20);
    return WEXITSTATUS(status);
  }
  std::string here() { return "--base-url http://127.0.0.1:" + std::to_string(port()) + " "; }

  std::filesystem::path folder_;
  std::string out_, errors_;
};

TEST_F(BenchServe, EveryBackend) {
  const std::string load = here() +
                           "--num-prompts 9 --random-input-len 32 --random-output-len 12 "
                           "--max-concurrency 3 --json --backend ";
  for (const char* rest : {"openai", "sglang", "openai-chat --dataset-name random"}) {
    ASSERT_EQ(run(load + rest), 0) << errors_;
    const OrderedJson line = OrderedJson::parse(out_);
    EXPECT_EQ(line["completed"], 9);
    EXPECT_EQ(line["failed"], 0);
    EXPECT_EQ(line["model"], "tales");
    EXPECT_EQ(line["total_output_tokens"], 9 * 12);
    if (std::string(rest) != "openai-chat --dataset-name random") {
      EXPECT_EQ(line["total_input_tokens"], 9 * 32);
    }
    EXPECT_GE(line["accept_length"], 1.0);
    EXPECT_LE(line["accept_length"], 4.0);
    EXPECT_EQ(line["spec_decode_num_accepted_tokens_per_pos"].size(), 3u);
    EXPECT_LE(line["max_concurrent_requests"], 3);
    EXPECT_LE(line["concurrency"], 3.0);
    EXPECT_NEAR(line["output_throughput"].get<double>() * line["duration"].get<double>(), 108.0,
                1e-6);
    EXPECT_GT(line["mean_itl_ms"], 0.0);
    EXPECT_GE(line["mean_itl_chunk_ms"], line["mean_itl_ms"]);
    EXPECT_GE(line["mean_e2e_latency_ms"], line["mean_ttft_ms"]);
    EXPECT_GE(line["p99_tpot_ms"], line["median_tpot_ms"]);
  }
}

TEST_F(BenchServe, TheReportHasTheFieldsLayout) {
  ASSERT_EQ(run(here() +
                "--num-prompts 4 --random-input-len 8 --random-output-len 4 "
                "--request-rate 200 --random-range-ratio 0.5 --output-file " +
                path("lines.jsonl")),
            0)
      << errors_;
  EXPECT_TRUE(out_.starts_with("============ Serving Benchmark Result ============\n")) << out_;
  EXPECT_TRUE(out_.ends_with("\n" + std::string(50, '=') + "\n"));
  for (const char* line :
       {"\nBackend:                                 openai    \n",
        "\nTraffic request rate:                    200       \n",
        "\nSuccessful requests:                     4         \n",
        "\nTotal input tokens:  ", "\nOutput token throughput (tok/s): ", "\nConcurrency:   ",
        "\n----------------End-to-End Latency----------------\nMean E2E Latency (ms):  ",
        "\nP99 TTFT (ms):  ", "\n-----Time per Output Token (excl. 1st token)------\n",
        "\nMax ITL/token (ms):  ", "\nMean ITL/chunk (ms):  "})
    EXPECT_NE(out_.find(line), std::string::npos) << line << out_;
  const OrderedJson line = OrderedJson::parse(read_text_file(path("lines.jsonl"), 1 << 20));
  EXPECT_EQ(line["request_rate"], "200");
  EXPECT_LE(line["total_input_tokens"], 32);
  EXPECT_GE(line["total_input_tokens"], 16);
}

// OpenAI's clients are given the URL with the version.
TEST_F(BenchServe, TheVersionInTheUrl) {
  std::string url = here();
  url.insert(url.size() - 1, "/v1/");
  EXPECT_EQ(run(url + "--num-prompts 1 --random-input-len 4 --random-output-len 2"), 0) << errors_;
}

TEST_F(BenchServe, FilesOfPrompts) {
  const auto write = [&](const char* name, const std::string& text) {
    std::ofstream(path(name)) << text;
    return " --dataset-path " + path(name) + " --json --num-prompts 3 --output-len 5 ";
  };
  const std::string flags = here() + write("custom.jsonl", R"({"prompt":"Once"}
{"prompt":"The old captain","output_tokens":3}
)");
  ASSERT_EQ(run(flags + "--dataset-name custom"), 0) << errors_;
  EXPECT_EQ(OrderedJson::parse(out_)["total_output_tokens"], 5 + 3 + 5);
  EXPECT_EQ(run(flags + "--dataset-name mtbench"), 2);
  EXPECT_NE(errors_.find("entry 1 is not in the format \"mtbench\""), std::string::npos);
  const auto asks = [&](const std::string& name, const std::string& line) {
    return run(here() + write("x.jsonl", line) + "--dataset-name " + name);
  };
  EXPECT_EQ(asks("mtbench", R"({"turns":["Write","Again"]})"), 0) << errors_;
  EXPECT_EQ(asks("sharegpt", R"([{"conversations":[{"from":"human","value":"Hi"}]}])"), 0)
      << errors_;
  EXPECT_EQ(
      asks("openai --backend openai-chat", R"({"messages":[{"role":"user","content":"Hi"}]})"), 0)
      << errors_;
}

TEST_F(BenchServe, Errors) {
  EXPECT_EQ(run("--base-url http://127.0.0.1:1"), 2);
  EXPECT_NE(errors_.find("is the server running?"), std::string::npos) << errors_;
  EXPECT_EQ(run(here() + "--random-input-len 5000 --num-prompts 1"), 2);
  EXPECT_NE(errors_.find("maximum context length"), std::string::npos) << errors_;
  EXPECT_EQ(run(here() + "--request-rate x"), 2);
  EXPECT_EQ(run(here() + "--model other --num-prompts 1"), 2);
  EXPECT_NE(errors_.find("does not exist"), std::string::npos) << errors_;
  EXPECT_EQ(run(here() + "--dataset-name openai"), 2);
}

// Only where it is told how long: without, a slip of the address shows at once.
TEST_F(BenchServe, WaitsForAServerToListen) {
  ServeOptions options = tales_options();
  options.address.port = Server(options).port();  // free again
  const std::string load = "--base-url http://127.0.0.1:" + std::to_string(options.address.port) +
                           " --num-prompts 1 --random-input-len 4 --random-output-len 2 ";
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(run(load), 2);
  EXPECT_LT(std::chrono::steady_clock::now() - start, milliseconds(900)) << "no pause";
  EXPECT_EQ(run(load + "--ready-check-timeout-sec 1"), 2);
  EXPECT_THAT(errors_, testing::HasSubstr("is the server running?"));
  EXPECT_GE(std::chrono::steady_clock::now() - start, milliseconds(1000));
  int status = -1;
  std::thread bench([&] { status = run(load + "--ready-check-timeout-sec 60"); });
  std::this_thread::sleep_for(milliseconds(500));
  Server server(options);
  server.load();
  bench.join();
  EXPECT_EQ(status, 0) << errors_;
}

TEST_F(BenchServe, AServerWithKeysIsToldApartFromOneWithoutModels) {
  ServeOptions options = tales_options();
  options.api_keys = {"right"};
  Server server(options);
  server.load();
  const std::string load = "--base-url http://127.0.0.1:" + std::to_string(server.port()) +
                           " --num-prompts 1 --random-input-len 4 --random-output-len 2 ";
  EXPECT_EQ(run(load), 2);
  EXPECT_EQ(errors_,
            "error: the server refuses requests without a key (HTTP 401): give --api-key, or set "
            "FORESAIL_API_KEY\n");
  EXPECT_EQ(run(load + "--api-key wrong"), 2);
  EXPECT_EQ(errors_,
            "error: the server refuses this key (HTTP 401): give another --api-key, or set "
            "FORESAIL_API_KEY\n");
  EXPECT_EQ(run(load + "--api-key right"), 0) << errors_;
}

TEST_F(BenchServe, ATerminalShowsHowFarItIs) {
  Terminal terminal({std::string(FORESAIL_BIN_DIR) + "/foresail", "bench", "serve", "--base-url",
                     "http://127.0.0.1:" + std::to_string(port()), "--num-prompts", "2",
                     "--random-input-len", "4", "--random-output-len", "2"});
  const std::string shown = terminal.show_until("Benchmark Result");
  EXPECT_THAT(shown, testing::HasSubstr("\r2 of 2 requests\033[K\r\033[K="));
  terminal.show_until("no more");
  EXPECT_EQ(terminal.wait_status(), 0);
}

}  // namespace
}  // namespace foresail
