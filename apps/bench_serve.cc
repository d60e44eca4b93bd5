#include <fmt/core.h>

#include <cstdio>
#include <fstream>
#include <thread>

#include "apps/bench_commands.h"
#include "apps/flag_checks.h"
#include "apps/progress_line.h"
#include "apps/standard_error.h"
#include "base/error.h"
#include "base/utf8.h"
#include "bench/serve/load_prompts.h"
#include "bench/serve/load_report.h"
#include "bench/serve/load_run.h"

namespace foresail {
namespace {

struct ServeLoadFlags {
  std::string base_url = "http://127.0.0.1:8000", backend = "openai", model, api_key;
  std::string dataset_name = "random-ids", dataset_path, extra_body, output_file;
  RandomPromptOptions random;
  LoadRunOptions run;
  std::string request_rate = "inf";
  int64_t vocab_size = 0;
  int warmup_requests = 1, ready_timeout_s = 600;
  double temperature = 0;
  bool keep_eos = false, flush_cache = false, json = false;
  bool waits_to_listen = false;
};

LoadApi api_of(const std::string& backend) {
  return backend == "openai-chat" ? LoadApi::kChat
         : backend == "sglang"    ? LoadApi::kGenerate
                                  : LoadApi::kCompletions;
}

class LoadServer {
 public:
  explicit LoadServer(const LoadTarget& target) : target_(target) {}

  // Null when the path is not served.
  OrderedJson get_json(const char* path) const {
    const HttpReply reply = get(path);
    return reply.ok() ? OrderedJson::parse(reply.body, nullptr, false) : OrderedJson();
  }
  HttpReply get(const char* path) const {
    return http_call(target_.address, {.path = path, .fields = load_fields(target_)});
  }
  HttpReply post(const char* path, const OrderedJson& body) const {
    return http_call(
        target_.address,
        {.method = "POST", .path = path, .body = json_text(body), .fields = load_fields(target_)});
  }
  std::optional<DraftCounters> draft_counters() const {
    const HttpReply reply = get("/metrics");
    return reply.ok() ? read_draft_counters(reply.body) : std::nullopt;
  }

 private:
  const LoadTarget& target_;
};

// The model's name, where none was given, and what the server can tell beyond OpenAI's API.
void look_at(const LoadServer& server, const ServeLoadFlags& flags, LoadTarget& target) {
  HttpReply reply = server.get("/v1/models");
  // It is there and loads its model, or is yet to come, which may also be a slip of the address.
  const auto is_on_its_way = [&] {
    return reply.status == 503 || (reply.refused && flags.waits_to_listen);
  };
  for (int waited_s = 0; is_on_its_way() && waited_s < flags.ready_timeout_s; ++waited_s) {
    std::this_thread::sleep_for(std::chrono::seconds(1));
    reply = server.get("/v1/models");
  }
  if (reply.status == 0)
    throw_error(ErrorCode::kUsage, "{} (is the server running? --base-url says where)",
                reply.error);
  if (reply.status == 401 || reply.status == 403)
    throw_error(ErrorCode::kUsage,
                "the server refuses {} (HTTP {}): give {}--api-key, or set FORESAIL_API_KEY",
                target.api_key.empty() ? "requests without a key" : "this key", reply.status,
                target.api_key.empty() ? "" : "another ");
  const OrderedJson models =
      reply.ok() ? OrderedJson::parse(reply.body, nullptr, false) : OrderedJson();
  const bool any = models.is_object() && models.contains("data") && models["data"].is_array() &&
                   !models["data"].empty() && models["data"][0].is_object();
  if (!any && target.model.empty())
    throw_error(ErrorCode::kUsage, "the server does not list its models (HTTP {}): give --model",
                reply.status);
  if (!any) return;
  const OrderedJson& first = models["data"][0];
  if (target.model.empty()) target.model = text_member(first, "id");
  const std::string owner = text_member(first, "owned_by");
  target.tells_ids = owner == "foresail" || owner == "vllm";
}

// What can be said before the server is asked.
void check_dataset(const ServeLoadFlags& flags) {
  const std::string& name = flags.dataset_name;
  const bool chats = api_of(flags.backend) == LoadApi::kChat;
  const bool random = name.starts_with("random");
  if (!random && flags.dataset_path.empty())
    throw_error(ErrorCode::kUsage, "--dataset-name {} needs --dataset-path", name);
  if (random && !flags.dataset_path.empty())
    throw_error(ErrorCode::kUsage,
                "--dataset-path is not read by --dataset-name {}: choose custom, openai, sharegpt "
                "or mtbench",
                name);
  if (name == "openai" && !chats)
    throw_error(ErrorCode::kUsage,
                "--dataset-name openai holds conversations: use --backend openai-chat");
  if (name == "random-ids" && chats)
    throw_error(ErrorCode::kUsage, "a conversation is text: use --dataset-name random");
}

std::vector<LoadPrompt> make_prompts(const LoadServer& server, ServeLoadFlags& flags) {
  if (!flags.dataset_name.starts_with("random")) {
    std::vector<LoadPrompt> prompts =
        read_prompts(flags.dataset_path, flags.dataset_name, flags.random.output_tokens);
    const size_t given = prompts.size();
    const auto count = static_cast<size_t>(flags.random.count);
    for (size_t i = given; i < count; ++i) prompts.push_back(prompts[i % given]);
    prompts.resize(count);
    return prompts;
  }
  flags.random.vocab_size = flags.vocab_size;
  if (flags.vocab_size == 0) {
    const OrderedJson info = server.get_json("/model_info");
    flags.random.vocab_size = integer_member(info, "vocab_size");
    if (flags.random.vocab_size < 1 || flags.random.vocab_size > INT32_MAX)
      throw_error(ErrorCode::kUsage, "the server does not tell its vocabulary: give --vocab-size");
  }
  std::vector<LoadPrompt> prompts = random_prompts(flags.random);
  if (flags.dataset_name == "random-ids") return prompts;
  for (LoadPrompt& prompt : prompts) {
    const HttpReply reply = server.post("/detokenize", {{"tokens", prompt.ids}});
    const OrderedJson json = OrderedJson::parse(reply.body, nullptr, false);
    if (!reply.ok() || !json.is_object() || !json.contains("prompt") || !json["prompt"].is_string())
      throw_error(
          ErrorCode::kUsage,
          "the server does not turn ids into text: use --dataset-name random-ids or a file");
    prompt.text = json["prompt"].get<std::string>();
    prompt.ids.clear();
  }
  return prompts;
}

void bench_serve(ServeLoadFlags& flags) {
  check_dataset(flags);
  LoadTarget target{.address = parse_http_address(flags.base_url),
                    .api = api_of(flags.backend),
                    .model = flags.model,
                    .api_key = flags.api_key,
                    .ignore_eos = !flags.keep_eos,
                    .temperature = static_cast<float>(flags.temperature)};
  if (flags.request_rate != "inf") {
    flags.run.request_rate = parse_number<double>(flags.request_rate).value_or(0.0);
    if (!(flags.run.request_rate > 0))
      throw_error(ErrorCode::kUsage, "--request-rate {}: write requests a second, or inf",
                  flags.request_rate);
  }
  if (!flags.extra_body.empty()) {
    target.extra = OrderedJson::parse(flags.extra_body, nullptr, false);
    if (!target.extra.is_object())
      throw_error(ErrorCode::kUsage, "--extra-request-body must be a JSON object");
  }
  const LoadServer server(target);
  look_at(server, flags, target);
  flags.run.seed = flags.random.seed;
  const std::vector<LoadPrompt> prompts = make_prompts(server, flags);
  for (int i = 0; i < flags.warmup_requests; ++i) {
    const LoadResult result = run_load_request(target, prompts[0]);
    if (!result.error.empty())
      throw_error(ErrorCode::kUsage, "the first request failed: {}", result.error);
  }
  if (flags.flush_cache && !server.post("/flush_cache", OrderedJson::object()).ok())
    throw_error(ErrorCode::kUsage, "the server does not flush its cache: leave out --flush-cache");

  const std::optional<DraftCounters> before = server.draft_counters();
  ProgressLine progress(!flags.json);
  const std::vector<LoadResult> results = run_load(target, prompts, flags.run, [&](size_t done) {
    progress.show(fmt::format("{} of {} requests", done, prompts.size()));
  });
  progress.clear();
  LoadReport report = summarise(results);
  report.drafts = drafts_between(before, server.draft_counters());
  if (report.completed == 0)
    throw_error(ErrorCode::kUsage, "all {} requests failed: {}", report.failed, report.first_error);
  if (report.failed > 0)
    tell("{} requests failed, the first: {}\n", report.failed, for_terminal(report.first_error));
  const LoadHeader header{.backend = flags.backend,
                          .model = target.model,
                          .request_rate = flags.request_rate,
                          .max_concurrency = flags.run.max_concurrency == 0
                                                 ? "not set"
                                                 : std::to_string(flags.run.max_concurrency)};
  const std::string line = json_text(report_json(report, header)) + "\n";
  fmt::print("{}", flags.json ? line : report_text(report, header));
  if (flags.output_file.empty()) return;
  std::ofstream file(flags.output_file, std::ios::app);
  if (!(file << line << std::flush))
    throw_error(ErrorCode::kUsage, "--output-file {}: cannot be written", flags.output_file);
}

}  // namespace

void add_bench_serve(Command& bench) {
  Command* command = bench.add_subcommand(
      "serve",
      "Load a server over HTTP, this one or any with OpenAI's API, and report as the "
      "field's tools do");
  auto flags = std::make_shared<ServeLoadFlags>();
  const auto add = [&](const char* name, auto& value, const char* help) {
    return command->add_option(name, value, help)->capture_default_str();
  };
  constexpr int64_t kMost = 1'000'000'000;
  add("--base-url", flags->base_url, "http://HOST:PORT of the server, with or without /v1");
  add("--backend", flags->backend,
      "openai: /v1/completions, openai-chat: /v1/chat/completions, sglang: /generate")
      ->check(one_of({"openai", "openai-chat", "sglang"}));
  command->add_option("--model", flags->model, "its name; default: the first that is listed");
  command->add_option("--api-key", flags->api_key, "sent as Authorization: Bearer")
      ->envname("FORESAIL_API_KEY");
  add("--dataset-name", flags->dataset_name,
      "random-ids: token ids; random: the same as text; or the format of --dataset-path")
      ->check(one_of({"random-ids", "random", "custom", "openai", "sharegpt", "mtbench"}));
  command->add_option("--dataset-path", flags->dataset_path,
                      "JSON lines or list; it begins anew when --num-prompts is more");
  add("--num-prompts", flags->random.count, "requests")->check(number_in(1, 10'000'000));
  add("--random-input-len,--input-len", flags->random.input_tokens, "tokens of a random prompt")
      ->check(number_in(int64_t{1}, kMost));
  add("--random-output-len,--output-len", flags->random.output_tokens,
      "tokens of an answer, where the file does not say")
      ->check(number_in(int64_t{1}, kMost));
  add("--random-range-ratio", flags->random.range_ratio,
      "random lengths are drawn from [ratio x len, len]; 1: all alike")
      ->check(number_in(0.0, 1.0));
  add("--vocab-size", flags->vocab_size, "for random prompts; 0: the server tells")
      ->check(number_in(int64_t{0}, int64_t{INT32_MAX}));
  add("--request-rate", flags->request_rate, "requests a second, or inf: all at once");
  add("--burstiness", flags->run.burstiness, "of the arrivals; 1: a Poisson process")
      ->check(number_in(0.001, 1000.0));
  add("--max-concurrency", flags->run.max_concurrency, "requests at once; 0: no limit")
      ->check(number_in(0, 4096));
  add("--warmup-requests", flags->warmup_requests, "sent before and not counted")
      ->check(number_in(0, 1000));
  add("--ready-check-timeout-sec", flags->ready_timeout_s,
      "seconds for the server to load its model, and where this is given, to listen")
      ->check(number_in(0, 86400));
  add("--seed", flags->random.seed, "of prompts, lengths and arrivals");
  add("--temperature", flags->temperature, "of every request")->check(number_in(0.0, 2.0));
  command->add_flag("--disable-ignore-eos", flags->keep_eos, "answers may end before their length");
  command->add_flag("--flush-cache", flags->flush_cache, "POST /flush_cache after the warm-up");
  command->add_option("--extra-request-body", flags->extra_body,
                      "a JSON object whose members go into every request");
  command->add_option("--output-file", flags->output_file, "a JSON line is appended to it");
  command->add_flag("--json", flags->json, "print the JSON line instead of the report");
  command->callback([flags, command] {
    flags->waits_to_listen = command->count("--ready-check-timeout-sec") > 0;
    bench_serve(*flags);
  });
}

}  // namespace foresail
