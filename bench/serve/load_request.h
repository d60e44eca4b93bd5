// One request of a load test: how it is asked in each API, and what its answer's stream told when.
// Plain values and functions; any thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"
#include "bench/serve/http_client.h"

namespace foresail {

enum class LoadApi { kCompletions, kChat, kGenerate };

struct LoadPrompt {
  std::string text;           // or
  std::vector<int32_t> ids;   // tokens, or
  OrderedJson messages;       // a conversation
  int64_t output_tokens = 0;  // asked for
};

struct LoadTarget {
  HttpAddress address;
  LoadApi api = LoadApi::kCompletions;
  std::string model, api_key;
  // The server tells the ids of every chunk when asked, so tokens of a chunk are known.
  bool tells_ids = false;
  bool ignore_eos = true;
  float temperature = 0.0f;
  OrderedJson extra = OrderedJson::object();  // goes into every body
};

struct LoadResult {
  using Clock = std::chrono::steady_clock;
  struct Chunk {
    Clock::time_point at;
    int64_t tokens = 0;  // new in it; 0: not told
  };
  std::string error;  // empty: it succeeded
  Clock::time_point start;
  std::vector<Chunk> chunks;  // those that brought something
  int64_t prompt_tokens = 0, output_tokens = 0;

  // Seconds. Precondition: there are chunks.
  double ttft_s() const { return seconds(chunks.front().at - start); }
  double e2e_s() const { return seconds(chunks.back().at - start); }
  static double seconds(Clock::duration elapsed) {
    return std::chrono::duration<double>(elapsed).count();
  }
};

// A member that is text; what servers send otherwise is as good as nothing.
std::string text_member(const OrderedJson& object, const char* name, std::string otherwise = {});
int64_t integer_member(const OrderedJson& object, const char* name);  // likewise, else 0
const char* load_path(LoadApi api);
OrderedJson load_body(const LoadTarget& target, const LoadPrompt& prompt);
// Sends it and reads to the end. The time includes connecting.
LoadResult run_load_request(const LoadTarget& target, const LoadPrompt& prompt);
// Key and the like.
std::vector<std::pair<std::string, std::string>> load_fields(const LoadTarget& target);

// Takes the events of a stream in pieces of any size.
class LoadStream {
 public:
  LoadStream(LoadApi api, LoadResult& result) : api_(api), result_(result) {}
  void take(std::string_view bytes, LoadResult::Clock::time_point now);
  // [DONE] came.
  bool done() const { return done_; }

 private:
  void event(std::string_view data, LoadResult::Clock::time_point now);

  LoadApi api_;
  LoadResult& result_;
  std::string held_;
  bool done_ = false;
};

}  // namespace foresail
