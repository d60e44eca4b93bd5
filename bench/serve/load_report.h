// The figures of a load test, by the definitions that the field uses. Plain values; any thread.
//   TTFT         first chunk that brought something, from the start of its request
//   E2E          the last one
//   TPOT         (E2E - TTFT) / (output tokens - 1), one value a request of 2 tokens or more
//   ITL/token    gap before a chunk over the tokens in it, once a token: what a reader sees
//   ITL/chunk    gap before a chunk, once a chunk: with speculation a chunk holds several tokens
//   concurrency  sum of E2E / duration
//   accept length  1 + accepted drafts / passes that verified drafts, of this test alone
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "bench/serve/load_request.h"

namespace foresail {

struct Spread {
  double mean = 0, median = 0, deviation = 0, p90 = 0, p95 = 0, p99 = 0, most = 0;
};
// Of the population; between two values in a straight line. Zeros when there are none.
Spread spread_of(std::vector<double> values);

// What /metrics of a server says about drafts, under any of the known prefixes.
struct DraftCounters {
  double passes = 0, drafted = 0, accepted = 0;
  std::vector<double> accepted_at;  // [position]
};
std::optional<DraftCounters> read_draft_counters(const std::string& metrics);

struct LoadReport {
  int64_t completed = 0, failed = 0;
  std::string first_error;
  double duration_s = 0;
  int64_t input_tokens = 0, output_tokens = 0;
  double peak_output_per_s = 0;  // tokens in the busiest second
  int64_t peak_concurrent = 0;
  double concurrency = 0;
  bool tokens_known = false;  // of every chunk
  Spread e2e_ms, ttft_ms, tpot_ms, itl_token_ms, itl_chunk_ms;
  std::optional<DraftCounters> drafts;  // of this test

  double per_second(double count) const { return duration_s > 0 ? count / duration_s : 0.0; }
  double accept_length() const {
    return drafts && drafts->passes > 0 ? 1.0 + drafts->accepted / drafts->passes : 1.0;
  }
};

LoadReport summarise(const std::vector<LoadResult>& results);
// After minus before.
std::optional<DraftCounters> drafts_between(const std::optional<DraftCounters>& before,
                                            const std::optional<DraftCounters>& after);

struct LoadHeader {
  std::string backend, model, request_rate, max_concurrency;
};
// The layout of the field's tools: 50 columns, titles padded to 40.
std::string report_text(const LoadReport& report, const LoadHeader& header);
// One object with the key names of the field's tools.
OrderedJson report_json(const LoadReport& report, const LoadHeader& header);

}  // namespace foresail
