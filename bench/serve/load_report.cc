#include "bench/serve/load_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

namespace foresail {
namespace {

double quantile(const std::vector<double>& sorted, double share) {
  const double at = share * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(at);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (at - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

void add_gaps(const LoadResult& result, std::vector<double>& per_token,
              std::vector<double>& per_chunk) {
  for (size_t i = 1; i < result.chunks.size(); ++i) {
    const double gap_ms = 1e3 * LoadResult::seconds(result.chunks[i].at - result.chunks[i - 1].at);
    per_chunk.push_back(gap_ms);
    const int64_t tokens = result.chunks[i].tokens;
    per_token.insert(per_token.end(), static_cast<size_t>(tokens),
                     gap_ms / static_cast<double>(std::max<int64_t>(tokens, 1)));
  }
}

void title(std::string& out, std::string_view text, char fill) {
  out += fmt::format(fmt::runtime(fmt::format("{{:{}^50}}\n", fill)), text);
}
void row(std::string& out, std::string_view name, const std::string& value) {
  out += fmt::format("{:<40} {:<10}\n", name, value);
}
void row(std::string& out, std::string_view name, int64_t value) {
  row(out, name, std::to_string(value));
}
void row(std::string& out, std::string_view name, double value) {
  row(out, name, fmt::format("{:.2f}", value));
}

void rows_of(std::string& out, std::string_view heading, std::string_view name,
             const Spread& spread, bool with_most) {
  title(out, heading, '-');
  row(out, fmt::format("Mean {} (ms):", name), spread.mean);
  row(out, fmt::format("Median {} (ms):", name), spread.median);
  row(out, fmt::format("P90 {} (ms):", name), spread.p90);
  row(out, fmt::format("P95 {} (ms):", name), spread.p95);
  row(out, fmt::format("P99 {} (ms):", name), spread.p99);
  if (with_most) row(out, fmt::format("Max {} (ms):", name), spread.most);
}

void add_spread(OrderedJson& json, const std::string& name, const Spread& spread) {
  json["mean_" + name] = spread.mean;
  json["median_" + name] = spread.median;
  json["std_" + name] = spread.deviation;
  json["p90_" + name] = spread.p90;
  json["p95_" + name] = spread.p95;
  json["p99_" + name] = spread.p99;
  json["max_" + name] = spread.most;
}

}  // namespace

Spread spread_of(std::vector<double> values) {
  Spread spread;
  if (values.empty()) return spread;
  std::sort(values.begin(), values.end());
  const auto count = static_cast<double>(values.size());
  for (const double value : values) spread.mean += value / count;
  for (const double value : values)
    spread.deviation += (value - spread.mean) * (value - spread.mean) / count;
  spread.deviation = std::sqrt(spread.deviation);
  spread.median = quantile(values, 0.5);
  spread.p90 = quantile(values, 0.9);
  spread.p95 = quantile(values, 0.95);
  spread.p99 = quantile(values, 0.99);
  spread.most = values.back();
  return spread;
}

std::optional<DraftCounters> read_draft_counters(const std::string& metrics) {
  // Servers that know aliases tell each counter more than once: one prefix, the first that is met.
  const auto samples = [&](const std::string& prefix, const std::string& name) {
    std::vector<std::pair<std::string, double>> found;  // labels, value
    const std::string start = "\n" + prefix + name;
    const std::string text = "\n" + metrics;
    for (size_t at = 0; (at = text.find(start, at)) != text.npos; ++at) {
      const size_t labels = at + start.size();
      if (labels >= text.size() || (text[labels] != '{' && text[labels] != ' ')) continue;
      const std::string line = text.substr(labels, text.find('\n', labels) - labels);
      const size_t space = line.rfind(' ');
      if (space == line.npos) continue;
      found.emplace_back(line.substr(0, space), std::strtod(line.c_str() + space, nullptr));
    }
    return found;
  };
  const auto sum = [](const std::vector<std::pair<std::string, double>>& found) {
    double total = 0;
    for (const auto& sample : found) total += sample.second;
    return total;
  };
  for (const char* prefix : {"foresail:", "vllm:", "tokenspeed:", "llamacpp:"}) {
    for (const char* suffix : {"_total", ""}) {
      const std::string stem = std::string(prefix) + "spec_decode_";
      const auto passes = samples(stem, std::string("num_drafts") + suffix);
      if (passes.empty()) continue;
      DraftCounters counters;
      counters.passes = sum(passes);
      counters.drafted = sum(samples(stem, std::string("num_draft_tokens") + suffix));
      counters.accepted = sum(samples(stem, std::string("num_accepted_tokens") + suffix));
      for (const auto& [labels, value] :
           samples(stem, std::string("num_accepted_tokens_per_pos") + suffix)) {
        const std::string_view name = "position=\"";
        const size_t at = labels.find(name);
        if (at == labels.npos) continue;
        const auto position = static_cast<size_t>(std::atoi(labels.c_str() + at + name.size()));
        if (position >= 64) continue;
        if (counters.accepted_at.size() <= position) counters.accepted_at.resize(position + 1);
        counters.accepted_at[position] += value;
      }
      return counters;
    }
  }
  return std::nullopt;
}

std::optional<DraftCounters> drafts_between(const std::optional<DraftCounters>& before,
                                            const std::optional<DraftCounters>& after) {
  if (!before || !after || after->passes <= before->passes) return std::nullopt;
  DraftCounters drafts = *after;
  drafts.passes -= before->passes;
  drafts.drafted -= before->drafted;
  drafts.accepted -= before->accepted;
  for (size_t i = 0; i < before->accepted_at.size() && i < drafts.accepted_at.size(); ++i)
    drafts.accepted_at[i] -= before->accepted_at[i];
  return drafts;
}

LoadReport summarise(const std::vector<LoadResult>& results) {
  LoadReport report;
  std::vector<double> e2e, ttft, tpot, per_token, per_chunk;
  std::map<int64_t, double> tokens_in_second;
  std::vector<std::pair<LoadResult::Clock::time_point, int>> comings;
  LoadResult::Clock::time_point first = LoadResult::Clock::time_point::max(), last{};
  report.tokens_known = true;
  for (const LoadResult& result : results) first = std::min(first, result.start);
  for (const LoadResult& result : results) {
    if (!result.error.empty()) {
      ++report.failed;
      if (report.first_error.empty()) report.first_error = result.error;
      continue;
    }
    ++report.completed;
    report.input_tokens += result.prompt_tokens;
    report.output_tokens += result.output_tokens;
    last = std::max(last, result.chunks.back().at);
    comings.emplace_back(result.start, 1);
    comings.emplace_back(result.chunks.back().at, -1);
    e2e.push_back(1e3 * result.e2e_s());
    ttft.push_back(1e3 * result.ttft_s());
    if (result.output_tokens > 1)
      tpot.push_back(1e3 * (result.e2e_s() - result.ttft_s()) /
                     static_cast<double>(result.output_tokens - 1));
    add_gaps(result, per_token, per_chunk);
    for (const LoadResult::Chunk& chunk : result.chunks) {
      report.tokens_known = report.tokens_known && chunk.tokens > 0;
      tokens_in_second[static_cast<int64_t>(LoadResult::seconds(chunk.at - first))] +=
          static_cast<double>(std::max<int64_t>(chunk.tokens, 1));
    }
  }
  if (report.completed == 0) return report;
  report.duration_s = LoadResult::seconds(last - first);
  for (const auto& [second, tokens] : tokens_in_second)
    report.peak_output_per_s = std::max(report.peak_output_per_s, tokens);
  // Who ends at the instant at which another begins did not run beside it.
  std::sort(comings.begin(), comings.end());
  int64_t open = 0;
  for (const auto& [at, change] : comings)
    report.peak_concurrent = std::max(report.peak_concurrent, open += change);
  for (const double ms : e2e) report.concurrency += ms / 1e3 / report.duration_s;
  report.e2e_ms = spread_of(e2e);
  report.ttft_ms = spread_of(ttft);
  report.tpot_ms = spread_of(tpot);
  if (report.tokens_known) report.itl_token_ms = spread_of(per_token);
  report.itl_chunk_ms = spread_of(per_chunk);
  return report;
}

std::string report_text(const LoadReport& report, const LoadHeader& header) {
  std::string out;
  title(out, " Serving Benchmark Result ", '=');
  row(out, "Backend:", header.backend);
  row(out, "Traffic request rate:", header.request_rate);
  row(out, "Max request concurrency:", header.max_concurrency);
  row(out, "Successful requests:", report.completed);
  row(out, "Failed requests:", report.failed);
  row(out, "Benchmark duration (s):", report.duration_s);
  row(out, "Total input tokens:", report.input_tokens);
  row(out, "Total generated tokens:", report.output_tokens);
  const auto input = static_cast<double>(report.input_tokens);
  const auto output = static_cast<double>(report.output_tokens);
  row(out, "Request throughput (req/s):", report.per_second(static_cast<double>(report.completed)));
  row(out, "Input token throughput (tok/s):", report.per_second(input));
  row(out, "Output token throughput (tok/s):", report.per_second(output));
  row(out,
      report.tokens_known ? "Peak output token throughput (tok/s):"
                          : "Peak output chunk throughput (1/s):",
      report.peak_output_per_s);
  row(out, "Total token throughput (tok/s):", report.per_second(input + output));
  row(out, "Peak concurrent requests:", report.peak_concurrent);
  row(out, "Concurrency:", report.concurrency);
  if (report.drafts) row(out, "Accept length:", report.accept_length());
  rows_of(out, "End-to-End Latency", "E2E Latency", report.e2e_ms, false);
  rows_of(out, "Time to First Token", "TTFT", report.ttft_ms, false);
  rows_of(out, "Time per Output Token (excl. 1st token)", "TPOT", report.tpot_ms, false);
  if (report.tokens_known)
    rows_of(out, "Inter-Token Latency, per token", "ITL/token", report.itl_token_ms, true);
  rows_of(out, "Inter-Token Latency, per chunk", "ITL/chunk", report.itl_chunk_ms, true);
  if (report.drafts) {
    const DraftCounters& drafts = *report.drafts;
    title(out, "Speculative Decoding", '-');
    row(out, "Acceptance rate (%):", 100.0 * drafts.accepted / std::max(drafts.drafted, 1.0));
    row(out, "Acceptance length:", report.accept_length());
    row(out, "Drafts:", static_cast<int64_t>(drafts.passes));
    row(out, "Draft tokens:", static_cast<int64_t>(drafts.drafted));
    row(out, "Accepted tokens:", static_cast<int64_t>(drafts.accepted));
    for (size_t i = 0; i < drafts.accepted_at.size(); ++i)
      row(out, fmt::format("  Position {} (%):", i), 100.0 * drafts.accepted_at[i] / drafts.passes);
  }
  return out + std::string(50, '=') + "\n";
}

OrderedJson report_json(const LoadReport& report, const LoadHeader& header) {
  const auto input = static_cast<double>(report.input_tokens);
  const auto output = static_cast<double>(report.output_tokens);
  OrderedJson json = {
      {"backend", header.backend},
      {"model", header.model},
      {"request_rate", header.request_rate},
      {"max_concurrency", header.max_concurrency},
      {"completed", report.completed},
      {"failed", report.failed},
      {"duration", report.duration_s},
      {"total_input_tokens", report.input_tokens},
      {"total_output_tokens", report.output_tokens},
      {"request_throughput", report.per_second(static_cast<double>(report.completed))},
      {"input_throughput", report.per_second(input)},
      {"output_throughput", report.per_second(output)},
      {"total_throughput", report.per_second(input + output)},
      {"total_token_throughput", report.per_second(input + output)},
      {"max_output_tokens_per_s", report.peak_output_per_s},
      {"max_concurrent_requests", report.peak_concurrent},
      {"concurrency", report.concurrency}};
  add_spread(json, "e2e_latency_ms", report.e2e_ms);
  add_spread(json, "ttft_ms", report.ttft_ms);
  add_spread(json, "tpot_ms", report.tpot_ms);
  if (report.tokens_known) add_spread(json, "itl_ms", report.itl_token_ms);
  add_spread(json, "itl_chunk_ms", report.itl_chunk_ms);
  if (!report.drafts) return json;
  json["accept_length"] = report.accept_length();
  json["spec_decode_num_drafts"] = report.drafts->passes;
  json["spec_decode_num_draft_tokens"] = report.drafts->drafted;
  json["spec_decode_num_accepted_tokens"] = report.drafts->accepted;
  json["spec_decode_num_accepted_tokens_per_pos"] = report.drafts->accepted_at;
  return json;
}

}  // namespace foresail
