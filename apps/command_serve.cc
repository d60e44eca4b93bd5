#include <fmt/format.h>
#include <signal.h>
#include <spdlog/spdlog.h>

#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <thread>

#include "apps/engine_flags.h"
#include "apps/flag_checks.h"
#include "apps/flag_groups.h"
#include "apps/serve_lines.h"
#include "apps/service_manager.h"
#include "apps/watchdog.h"
#include "base/error.h"
#include "base/memory_reserve.h"
#include "checkpoint/draft_config.h"
#include "engine/validate_request.h"
#include "server/auth.h"
#include "server/server.h"
#include "text/chat_syntax.h"

namespace foresail {
namespace {

// For the lists that the scheduler, the prefix tree and values on their way out make of a request:
// several times 4 bytes for each of a million tokens.
constexpr size_t kMemoryReserveBytes = 16 << 20;

struct ServeFlags {
  EngineFlags engine;
  ServeOptions serve;
  std::string api_key_file, sampling_defaults = "model", log_format = "text";
  int shutdown_timeout_s = 30, ping_interval_s = 30, watchdog_timeout_s = 300;
  int header_timeout_s = 10, body_timeout_s = 60, write_timeout_s = 60, keep_alive_timeout_s = 120;
  std::string reasoning_field = "reasoning_content";
  int queue_timeout_s = 60, request_timeout_s = 0;
  bool no_aliases = false;
};

// SIGTERM and SIGINT, taken by a thread of their own: the first starts a drain, the second ends it.
class StopSignals {
 public:
  StopSignals() {
    sigemptyset(&signals_);
    sigaddset(&signals_, SIGTERM);
    sigaddset(&signals_, SIGINT);
    pthread_sigmask(SIG_BLOCK, &signals_, nullptr);  // inherited by every thread from here on
    signal(SIGPIPE, SIG_IGN);
    std::thread([this] { take(); }).detach();
  }

  void serving(Server& server) {
    const std::lock_guard lock(mutex_);
    server_ = &server;
  }
  void wait_first() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return count_ > 0; });
  }
  // Whether a second one ended the drain.
  bool served() {
    const std::lock_guard lock(mutex_);
    server_ = nullptr;
    over_ = true;
    return count_ > 1;
  }

 private:
  void take() {
    for (;;) {
      int signal = 0;
      sigwait(&signals_, &signal);
      const std::lock_guard lock(mutex_);
      // Nothing runs that anyone waits for: not loaded yet, or drained already.
      if (server_ == nullptr) std::_Exit(over_ || count_ == 0 ? 0 : 1);
      if (++count_ > 1) server_->hurry();
      changed_.notify_all();
    }
  }

  sigset_t signals_;
  std::mutex mutex_;
  std::condition_variable changed_;
  Server* server_ = nullptr;
  int count_ = 0;
  bool over_ = false;
};

void resolve(ServeFlags& flags) {
  using std::chrono::seconds;
  if (flags.engine.model.explain_plan)
    throw_error(ErrorCode::kUsage, "--explain-plan is for run and generate: serve prints no plans");
  resolve_speculation(flags.engine.model);
  ServeOptions& serve = flags.serve;
  serve.engine = flags.engine.engine;
  serve.engine.record_steps = true;
  static_cast<ModelOptions&>(serve.engine) = flags.engine.model.options;
  if (!flags.api_key_file.empty())
    for (std::string& key : read_key_file(flags.api_key_file))
      serve.api_keys.push_back(std::move(key));
  serve.model_sampling_defaults = flags.sampling_defaults == "model";
  serve.log_format = flags.log_format == "json"  ? LogFormat::kJson
                     : flags.log_format == "off" ? LogFormat::kOff
                                                 : LogFormat::kText;
  serve.ping_interval = seconds(flags.ping_interval_s);
  serve.http.header_timeout = seconds(flags.header_timeout_s);
  serve.http.body_timeout = seconds(flags.body_timeout_s);
  serve.http.write_timeout = seconds(flags.write_timeout_s);
  serve.http.keep_alive_timeout = seconds(flags.keep_alive_timeout_s);
  serve.vllm_metrics = !flags.no_aliases;
  serve.queue_timeout = seconds(flags.queue_timeout_s);
  serve.request_timeout = seconds(flags.request_timeout_s);
  serve.both_reasoning_fields = flags.reasoning_field == "both";
}

// Before the port is opened: what is no model, or is not there, will never be served.
void check_model_folders(const ModelOptions& options) {
  const ModelConfig config = read_model_config(options.model_path);
  const std::string& draft_path = options.speculative.draft_model_path;
  if (draft_path.empty()) return;
  const SpeculativeAlgorithm algorithm = options.speculative.algorithm;
  if (algorithm == SpeculativeAlgorithm::kStandalone) read_model_config(draft_path);
  if (algorithm == SpeculativeAlgorithm::kEagle || algorithm == SpeculativeAlgorithm::kEagle3)
    read_draft_config(draft_path, config);
}

void serve(ServeFlags& flags) {
  const ServeLines lines(flags.log_format == "json");
  resolve(flags);
  const bool quiet = flags.engine.model.quiet;
  if (quiet) spdlog::set_level(spdlog::level::warn);
  const MemoryReserve memory(kMemoryReserveBytes);
  StopSignals& signals = *new StopSignals();  // its thread runs to the end of the process
  check_model_folders(flags.serve.engine);
  Server server(flags.serve);
  if (!quiet) {
    lines.limits(flags.serve);
    lines.listening(server.url(), flags.serve.engine.model_path);
  }
  server.load();
  signals.serving(server);
  const Watchdog watchdog(server, std::chrono::seconds(flags.watchdog_timeout_s));
  const ModelOptions& model = flags.serve.engine;
  warn_of_begin_token(model.model_path, server.model().tokenizer);
  ServeLines::ready(fmt::format(
      "ready {} model {} context {} speculation {}{}\n", server.url(), server.model().names.front(),
      server.model().max_total_len,
      model.speculative.algorithm == SpeculativeAlgorithm::kNone
          ? "off"
          : fmt::format("{} x{}", flags.engine.model.speculative_algorithm,
                        model.speculative.steps),
      server.model().tokenizer == nullptr ? "; token ids only, the model folder has no tokenizer"
                                          : ""));
  notify_service_manager("READY=1");
  signals.wait_first();
  notify_service_manager("STOPPING=1");
  if (!quiet) lines.stopping(flags.shutdown_timeout_s);
  const int64_t cut = server.drain(std::chrono::seconds(flags.shutdown_timeout_s));
  const bool hurried = signals.served();
  // Who stops a server has set the limit, and gets what was asked for: that is no failure.
  if (cut > 0)
    lines.stopped(cut, hurried ? "the second signal"
                               : fmt::format("--shutdown-timeout {}", flags.shutdown_timeout_s));
}

// auto, none, or a name that `find` knows, in whatever spelling.
template <typename Syntax>
FlagCheck syntax_name(std::vector<std::string> names, const Syntax* (*find)(std::string_view)) {
  names.insert(names.begin(), {"auto", "none"});
  const FlagCheck listed = one_of(names);
  const auto complaint = [=](const std::string& text) {
    return find(text) != nullptr ? std::string() : listed.complaint(text);
  };
  return {complaint, listed.range};
}

void add_http_flags(Command& command, ServeFlags& flags) {
  ServeOptions& serve = flags.serve;
  HttpLimits& http = serve.http;
  FlagGroup network(command, kNetworkGroup), limit(command, kLimitGroup);
  const auto count_in = [](FlagGroup& group, const char* name, auto& value, const char* help,
                           int64_t least, int64_t most) {
    group.add_option(name, value, help)->capture_default_str()->check(number_in(least, most));
  };
  const auto count = [&](const char* name, auto& value, const char* help, int64_t least,
                         int64_t most) { count_in(limit, name, value, help, least, most); };
  ListenAddress& address = serve.address;
  network.add_option("--host", address.host, "address to listen on; 0.0.0.0: all")
      ->capture_default_str();
  count_in(network, "--port", address.port, "port; 0: any that is free", 0, 65535);
  network
      .add_option(
          "--uds", address.unix_path,
          "file to listen on (AF_UNIX) instead of an address; the umask says who may connect")
      ->excludes("--host")
      ->excludes("--port");
  count_in(network, "--http-threads", serve.http_threads,
           "threads for all connections together; from 2 on, one is kept from what large bodies "
           "hold up",
           1, 64);
  count("--max-connections", http.max_connections, "open connections", 1, 1'000'000);
  count("--max-queued-requests", serve.max_queued_requests,
        "requests that wait beyond those that run; more get 503", 0, 1'000'000);
  count("--max-body-bytes", http.max_body_bytes, "of a request", 1024, int64_t{1} << 30);
  count("--max-incoming-bytes", http.max_incoming_bytes,
        "of all bodies that are coming in at once; more get 503", 1 << 20, int64_t{1} << 40);
  count("--max-waiting-bytes", http.max_waiting_bytes,
        "of all answers that their clients have not read; more get 503", 1 << 20, int64_t{1} << 40);
  count("--max-header-bytes", http.max_header_bytes, "of a request", 1024, 1 << 20);
  count("--max-unsent-bytes", http.max_unsent_bytes,
        "of a streamed answer that its client does not read; then it is dropped", 4096, 1 << 30);
  count("--header-timeout", flags.header_timeout_s, "seconds from first to last byte", 1, 3600);
  count("--body-timeout", flags.body_timeout_s, "seconds between bytes of a body", 1, 3600);
  count("--write-timeout", flags.write_timeout_s, "seconds in which a client takes no byte", 1,
        3600);
  count("--keep-alive-timeout", flags.keep_alive_timeout_s, "seconds between requests", 1, 86400);
  count_in(network, "--sse-ping-interval", flags.ping_interval_s,
           "seconds without an event after which a stream gets a comment", 1, 3600);
  count("--queue-timeout", flags.queue_timeout_s,
        "seconds that a request may wait before it runs, then 503; 0: no limit", 0, 86400);
  count("--request-timeout", flags.request_timeout_s,
        "seconds that a request may take in all, then 504; 0: no limit", 0, 86400);
  count("--shutdown-timeout", flags.shutdown_timeout_s,
        "seconds that running requests have after SIGTERM; those that it cuts off are counted on "
        "stderr, the exit status is 0",
        0, 86400);
  count("--watchdog-timeout", flags.watchdog_timeout_s,
        "seconds that one step of the engine may take, then exit status 5; 0: no limit", 0, 86400);
  count("--max-logprobs", serve.api.max_logprobs, "log probabilities per token", 0,
        kMostTopLogprobs);
  count("--max-n", serve.api.max_choices, "choices of one request", 1, 1024);
}

}  // namespace

void add_serve_command(Command& app) {
  auto flags = std::make_shared<ServeFlags>();
  Command* command = app.add_subcommand("serve", "Serve a model over HTTP, with OpenAI's API");
  flags->engine.model.quiet_help = "only the ready line at start-up";
  add_engine_flags(*command, flags->engine);
  add_http_flags(*command, *flags);
  ServeOptions& serve_options = flags->serve;
  FlagGroup model(*command, kModelGroup), answer(*command, kAnswerGroup),
      access(*command, kAccessGroup), network(*command, kNetworkGroup), log(*command, kLogGroup);
  model.add_option("--served-model-name", serve_options.names,
                   "name of the model, repeatable; default: its folder's");
  model.add_flag("--lax-model", serve_options.lax_names, "serve requests for any model name");
  answer
      .add_option("--sampling-defaults", flags->sampling_defaults,
                  "model: those of generation_config.json; openai: temperature 1, top_p 1")
      ->capture_default_str()
      ->check(one_of({"model", "openai"}));
  access
      .add_option("--api-key", serve_options.api_keys,
                  "key that every path needs but /health, /ready, /ping, /livez and the empty page "
                  "at /, repeatable (/health_generate and /metrics need it)")
      ->envname("FORESAIL_API_KEY");
  access.add_option("--api-key-file", flags->api_key_file, "file with one key a line");
  access
      .add_option("--admin-api-key", serve_options.admin_api_key,
                  "key for flushing and aborting; without one these work from this machine only")
      ->envname("FORESAIL_ADMIN_API_KEY");
  access.add_option("--allowed-host", serve_options.allowed_hosts,
                    "host name that requests may come by and pages from, where there is no key: "
                    "of a proxy, a tunnel, another site; repeatable");
  answer
      .add_option("--reasoning-parser", serve_options.reasoning_parser,
                  "what separates reasoning; auto: by the chat template")
      ->capture_default_str()
      ->check(syntax_name(reasoning_syntax_names(), find_reasoning_syntax));
  answer
      .add_option("--tool-call-parser", serve_options.tool_call_parser,
                  "how tool calls are written; auto: by the chat template")
      ->capture_default_str()
      ->check(syntax_name(tool_syntax_names(), find_tool_syntax));
  answer
      .add_option("--reasoning-field", flags->reasoning_field,
                  "reasoning_content, or both: \"reasoning\" as well")
      ->capture_default_str()
      ->check(one_of({"reasoning_content", "both"}));
  answer.add_flag("--incremental-streaming-output", serve_options.incremental_generate,
                  "events of /generate tell text, ids and log probabilities that are new instead "
                  "of all so far");
  log.add_option("--log-format", flags->log_format, "text, json or off")
      ->capture_default_str()
      ->check(one_of({"text", "json", "off"}));
  network.add_flag("!--no-ui", serve_options.page, "no page at /");
  log.add_flag("--no-metrics-aliases", flags->no_aliases,
               "only our own names in /metrics, not vLLM's as well");
  command->callback([flags] { serve(*flags); });
}

}  // namespace foresail
