#include "server/metrics_text.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "base/memory_reserve.h"

namespace foresail {
namespace {

constexpr std::string_view kOwn = "foresail:";
constexpr std::string_view kVllm = "vllm:";

std::string label(std::string_view name, std::string_view value) {
  std::string out = fmt::format("{}=\"", name);
  for (const char c : value) {
    if (c == '\\' || c == '"') out += '\\';
    out += c == '\n' ? ' ' : c;
  }
  return out + '"';
}

class Writer {
 public:
  Writer(std::string common, bool aliases) : common_(std::move(common)), aliases_(aliases) {}

  void head(std::string_view prefix, std::string_view name, std::string_view type,
            std::string_view help) {
    fmt::format_to(std::back_inserter(out_), "# HELP {}{} {}\n# TYPE {}{} {}\n", prefix, name, help,
                   prefix, name, type);
  }
  template <typename Value>
  void sample(std::string_view prefix, std::string_view name, Value value,
              const std::string& labels = {}) {
    fmt::format_to(std::back_inserter(out_), "{}{}{{{}{}{}}} {}\n", prefix, name, common_,
                   labels.empty() ? "" : ",", labels, value);
  }
  // Under our own name, and under vLLM's where it has one.
  template <typename Value>
  void one(std::string_view type, std::string_view name, std::string_view help, Value value,
           std::string_view vllm_name = {}) {
    head(kOwn, name, type, help);
    sample(kOwn, name, value);
    if (vllm_name.empty() || !aliases_) return;
    head(kVllm, vllm_name, type, help);
    sample(kVllm, vllm_name, value);
  }
  void histogram(std::string_view name, std::string_view help, const Histogram& histogram,
                 bool has_alias) {
    write_histogram(kOwn, name, help, histogram);
    if (has_alias && aliases_) write_histogram(kVllm, name, help, histogram);
  }
  bool aliases() const { return aliases_; }
  std::string take() { return std::move(out_); }

 private:
  void write_histogram(std::string_view prefix, std::string_view name, std::string_view help,
                       const Histogram& histogram) {
    const Histogram::Snapshot snapshot = histogram.snapshot();
    head(prefix, name, "histogram", help);
    const std::string bucket = fmt::format("{}_bucket", name);
    for (size_t i = 0; i < snapshot.at_most.size(); ++i)
      sample(prefix, bucket, snapshot.at_most[i],
             label("le", fmt::format("{}", histogram.edges()[i])));
    sample(prefix, bucket, snapshot.count, label("le", "+Inf"));
    sample(prefix, fmt::format("{}_sum", name), snapshot.sum);
    sample(prefix, fmt::format("{}_count", name), snapshot.count);
  }

  std::string common_;
  bool aliases_;
  std::string out_;
};

void write_engine(Writer& out, const EngineStats& engine) {
  out.one("gauge", "num_requests_running", "Requests that run.", engine.running,
          "num_requests_running");
  out.one("gauge", "num_requests_waiting", "Requests that wait.", engine.waiting,
          "num_requests_waiting");
  const double used = engine.pages_total == 0 ? 0.0
                                              : static_cast<double>(engine.pages_owned) /
                                                    static_cast<double>(engine.pages_total);
  out.one("gauge", "kv_cache_usage_perc", "Share of the KV pages that running requests own.", used,
          "kv_cache_usage_perc");
  out.head(kOwn, "kv_pages", "gauge", "KV pages by state.");
  out.sample(kOwn, "kv_pages", engine.pages_free, label("state", "free"));
  out.sample(kOwn, "kv_pages", engine.pages_owned, label("state", "used"));
  out.sample(kOwn, "kv_pages", engine.pages_cached, label("state", "cached"));
  out.sample(kOwn, "kv_pages", engine.pages_in_flight, label("state", "in_flight"));
  out.one("counter", "prompt_tokens_total", "Prompt tokens of admitted requests.",
          engine.prompt_tokens, "prompt_tokens_total");
  out.one("counter", "generation_tokens_total", "Output tokens.", engine.output_tokens,
          "generation_tokens_total");
  out.one("counter", "prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache.",
          engine.prompt_tokens, "prefix_cache_queries_total");
  out.one("counter", "prefix_cache_hits_total", "Prompt tokens found there.", engine.cached_tokens,
          "prefix_cache_hits_total");
  out.one("counter", "num_preemptions_total", "Requests whose pages were taken back for a while.",
          engine.retractions, "num_preemptions_total");
  out.one("counter", "nan_logits_total",
          "Requests that ended because their logits were no numbers.", engine.nan_logits);
  out.one("counter", "engine_steps_total", "Steps of the engine.", engine.steps);
  out.one("counter", "attention_plans_total", "Attention plans: one per pass or draft loop.",
          engine.attention_plans);
  out.head(kOwn, "metadata_builds_total", "counter", "Metadata built for attention, by kind.");
  out.sample(kOwn, "metadata_builds_total", engine.key_index_builds, label("kind", "key_index"));
  out.sample(kOwn, "metadata_builds_total", engine.chunk_lists, label("kind", "chunk_list"));
  out.sample(kOwn, "metadata_builds_total", engine.ragged_plans, label("kind", "ragged_plan"));
  out.head(kOwn, "attention_fallback_total", "counter",
           "Prefill passes that could not run expanded, by reason.");
  out.sample(kOwn, "attention_fallback_total", engine.fallbacks_segmented,
             label("reason", "segmented"));
  out.sample(kOwn, "attention_fallback_total", engine.fallbacks_prefix,
             label("reason", "prefix_not_chunked"));
  if (engine.device_passes == 0) return;  // a CPU
  out.one("counter", "device_waits_total", "Times the host waited for the GPU.",
          engine.device_waits);
  out.one("counter", "device_upload_bytes_total", "Bytes sent to the GPU.",
          engine.device_upload_bytes);
  out.one("counter", "device_download_bytes_total", "Bytes fetched from the GPU.",
          engine.device_download_bytes);
  out.one("counter", "device_passes_total", "Forward passes on the GPU.", engine.device_passes);
  out.one("counter", "device_graph_replays_total", "Passes launched as one graph.",
          engine.device_replays);
  out.one("counter", "device_wait_seconds_total", "Time the host waited for the GPU.",
          engine.device_wait_s);
  out.one("counter", "engine_step_seconds_total",
          "Time of the engine's thread in steps, waiting for the GPU included.", engine.step_s);
  constexpr std::string_view kOrder = "step_order_total";
  out.head(kOwn, kOrder, "counter",
           "Steps launched before the results of the one before were known, or why not.");
  out.sample(kOwn, kOrder, engine.launched_ahead, label("order", "ahead"));
  out.sample(kOwn, kOrder, engine.waited_for_prefill, label("order", "prefill"));
  out.sample(kOwn, kOrder, engine.waited_for_draws, label("order", "host_draws"));
  out.sample(kOwn, kOrder, engine.waited_for_masks, label("order", "host_masks"));
  out.sample(kOwn, kOrder, engine.waited_for_drafts, label("order", "host_drafts"));
  out.sample(kOwn, kOrder, engine.waited_for_unequal_rows, label("order", "unequal_rows"));
  out.sample(kOwn, kOrder, engine.waited_for_scaled_queries, label("order", "scaled_queries"));
  constexpr std::string_view kChosen = "token_choice_passes_total";
  out.head(kOwn, kChosen, "counter",
           "Target passes by where their tokens were chosen: on the GPU, or why on the host.");
  out.sample(kOwn, kChosen, engine.chosen_on_device, label("by", "device"));
  out.sample(kOwn, kChosen, engine.chosen_for_logprobs, label("by", "host_logprobs"));
  out.sample(kOwn, kChosen, engine.chosen_for_memory, label("by", "host_memory"));
}

void write_requests(Writer& out, const Metrics& metrics) {
  constexpr std::string_view kName = "request_success_total";
  for (const std::string_view prefix : {kOwn, kVllm}) {
    if (prefix == kVllm && !out.aliases()) continue;
    out.head(prefix, kName, "counter", "Requests that ended, by reason.");
    out.sample(prefix, kName, metrics.ended_by_stop.load(), label("finished_reason", "stop"));
    out.sample(prefix, kName, metrics.ended_by_length.load(), label("finished_reason", "length"));
    out.sample(prefix, kName, metrics.ended_by_abort.load(), label("finished_reason", "abort"));
    out.sample(prefix, kName, metrics.ended_by_error.load(), label("finished_reason", "error"));
  }
  out.histogram("time_to_first_token_seconds", "From arrival to the first token.", metrics.ttft_s,
                true);
  out.histogram("inter_token_latency_seconds",
                "Gap before a piece of output over the tokens in it, once per token.",
                metrics.inter_token_s, true);
  out.histogram("request_time_per_output_token_seconds",
                "Time after the first token over the tokens after it, once per request.",
                metrics.per_output_token_s, true);
  out.histogram("e2e_request_latency_seconds", "From arrival to the end.", metrics.request_s, true);
  out.histogram("request_queue_time_seconds", "From arrival to admission.", metrics.queue_s, true);
  out.histogram("request_prefill_time_seconds", "From admission to the first token.",
                metrics.prefill_s, true);
  out.histogram("request_decode_time_seconds", "After the first token.", metrics.decode_s, true);
  out.histogram("request_prompt_tokens", "Tokens of a prompt.", metrics.prompt_tokens, true);
  out.histogram("request_generation_tokens", "Tokens of an output.", metrics.output_tokens, true);
}

void write_speculation(Writer& out, const Metrics& metrics) {
  out.one("counter", "spec_decode_num_drafts_total", "Verify passes that had drafts.",
          metrics.draft_passes.load(), "spec_decode_num_drafts_total");
  out.one("counter", "spec_decode_num_draft_tokens_total", "Drafted tokens.",
          metrics.drafted.load(), "spec_decode_num_draft_tokens_total");
  out.one("counter", "spec_decode_num_accepted_tokens_total", "Drafted tokens that were accepted.",
          metrics.accepted.load(), "spec_decode_num_accepted_tokens_total");
  constexpr std::string_view kName = "spec_decode_num_accepted_tokens_per_pos_total";
  size_t positions = 0;
  for (size_t i = 0; i < Metrics::kMaxPositions; ++i)
    if (metrics.drafted_at[i] > 0) positions = i + 1;
  for (const std::string_view prefix : {kOwn, kVllm}) {
    if (positions == 0 || (prefix == kVllm && !out.aliases())) continue;
    out.head(prefix, kName, "counter", "Accepted tokens by draft position.");
    for (size_t i = 0; i < positions; ++i)
      out.sample(prefix, kName, metrics.accepted_at[i].load(),
                 label("position", std::to_string(i)));
  }
  out.histogram("spec_accept_length",
                "1 + accepted drafts / passes that had drafts, once per request.",
                metrics.accept_length, false);
}

void write_http(Writer& out, const Metrics& metrics, const HttpCounters& http) {
  out.head(kOwn, "http_connections", "gauge", "Open connections by state.");
  const int64_t busy = http.busy;
  out.sample(kOwn, "http_connections", busy, label("state", "busy"));
  out.sample(kOwn, "http_connections", std::max<int64_t>(0, http.connections - busy),
             label("state", "idle"));
  out.one("gauge", "http_incoming_bytes", "Bytes of bodies that are coming in.",
          static_cast<int64_t>(http.incoming_bytes.load()));
  out.one("gauge", "http_waiting_bytes", "Bytes of answers that their clients have not read.",
          static_cast<int64_t>(http.waiting_bytes.load()));
  out.one("counter", "http_accepted_total", "Connections that were accepted.",
          http.accepted_total.load());
  if (const auto responses = metrics.responses(); !responses.empty()) {
    out.head(kOwn, "http_responses_total", "counter", "Answers by route and status.");
    for (const auto& [key, count] : responses)
      out.sample(kOwn, "http_responses_total", count,
                 label("route", key.first) + "," + label("status", std::to_string(key.second)));
  }
  out.head(kOwn, "requests_rejected_total", "counter", "Requests that were refused, by reason.");
  for (const auto& [reason, count] : metrics.rejections())
    out.sample(kOwn, "requests_rejected_total", count, label("reason", reason));
  const std::pair<const char*, const std::atomic<int64_t>&> limits[] = {
      {"out_of_memory", http.out_of_memory_total},
      {"connections", http.over_connections_total},
      {"incoming_bytes", http.over_incoming_total},
      {"waiting_bytes", http.over_waiting_total},
      {"headers_too_large", http.header_too_large_total},
      {"request_too_large", http.body_too_large_total},
      {"bad_http", http.malformed_total},
      {"header_timeout", http.header_timeout_total},
      {"body_timeout", http.body_timeout_total}};
  for (const auto& [reason, count] : limits)
    out.sample(kOwn, "requests_rejected_total", count.load(), label("reason", reason));
  out.head(kOwn, "client_disconnects_total", "counter",
           "Clients that left before the end, by what their request was doing.");
  out.sample(kOwn, "client_disconnects_total", metrics.gone_while_waiting.load(),
             label("phase", "waiting"));
  out.sample(kOwn, "client_disconnects_total", metrics.gone_while_running.load(),
             label("phase", "running"));
  out.one("counter", "slow_readers_dropped_total",
          "Clients dropped because they did not read their stream.", http.slow_reader_total.load());
}

void write_process(Writer& out) {
  std::ifstream statm("/proc/self/statm");
  int64_t pages = 0, resident_pages = 0;
  statm >> pages >> resident_pages;
  out.head("", "process_resident_memory_bytes", "gauge", "Resident memory.");
  out.sample("", "process_resident_memory_bytes", resident_pages * sysconf(_SC_PAGESIZE));
  std::error_code ignored;
  int64_t open = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", ignored)) {
    static_cast<void>(entry);
    ++open;
  }
  out.one("counter", "memory_reserve_draws_total",
          "Times that an allocation failed and memory kept back for that was used.",
          static_cast<int64_t>(MemoryReserve::draws()));
  out.head("", "process_open_fds", "gauge", "Open file descriptors.");
  out.sample("", "process_open_fds", open);
}

}  // namespace

std::string metrics_text(const MetricsSources& sources) {
  Writer out(label("model_name", sources.model_name) + "," + label("engine", "0"),
             sources.vllm_aliases);
  write_engine(out, sources.engine);
  write_requests(out, sources.metrics);
  write_speculation(out, sources.metrics);
  write_http(out, sources.metrics, sources.http);
  out.head(kOwn, "build_info", "gauge", "Always 1.");
  out.sample(kOwn, "build_info", 1, label("version", sources.version));
  write_process(out);
  return out.take();
}

}  // namespace foresail
