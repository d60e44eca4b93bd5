// One request under way: the bridge between streams of the engine and one exchange of HTTP.
// The engine's hook posts to the connection's strand; everything else happens there.
// Owner: OpenRequests while it runs. Thread rule: abort() from any thread, all else on the strand.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <vector>

#include "foresail/engine.h"
#include "server/api/projection.h"
#include "server/http/exchange.h"
#include "server/serving.h"

namespace foresail {

class Generation : public std::enable_shared_from_this<Generation> {
 public:
  Generation(Serving& serving, std::shared_ptr<Exchange> exchange, GenerationSpec spec,
             std::unique_ptr<Projection> projection);
  ~Generation() { release(); }

  // Submits and answers, or refuses.
  void start();
  // Ends it as soon as can be; the client is told.
  void abort();
  // The client's name for it, or ours with or without its prefix.
  bool is_called(std::string_view name) const;
  const std::string& name() const { return record_.id; }

 private:
  using Clock = std::chrono::steady_clock;
  // Outlives the generation in the engine's hooks, which must never hold what owns their stream.
  struct Waker {
    std::weak_ptr<Generation> generation;
    std::shared_ptr<Exchange> exchange;
    std::atomic<bool> posted{false};
    static void wake(const std::shared_ptr<Waker>& waker) noexcept;
  };
  struct Source {
    size_t choice;
    Stream stream;
  };

  std::vector<Request> requests() const;
  void run(std::vector<SubmitResult> results);
  void listen(std::vector<SubmitResult> results);
  void begin_stream();
  void watch();
  void look_at_time();
  void pump();
  Piece take(Source& source);
  // What an echo with log probabilities is told with.
  void begin_with_echo(const Event& event, Choice& choice, Piece& piece);
  void read(const Event& event, Choice& choice, Piece& piece);
  TokenSource::Part parse(const Event& event, Choice& choice, Piece& piece);
  bool scores_prompt() const { return spec_.options.prompt_top_logprobs.has_value(); }
  bool all_ended() const;
  void release() noexcept;
  template <typename Whole, typename Last>
  void send_end(const Whole& whole, const Last& last);
  void finish();
  void fail(const ApiError& error);
  void count_unfinished();
  void client_gone();
  void close(const char* outcome) noexcept;
  void log_end(const char* outcome) const;
  double elapsed_s() const;

  Serving& serving_;
  std::shared_ptr<Exchange> exchange_;
  GenerationSpec spec_;
  std::unique_ptr<Projection> projection_;
  GenerationRecord record_;
  std::shared_ptr<Waker> waker_;
  std::vector<Source> sources_;
  std::vector<ChatOutputParser> parsers_;  // [choice], where the answer is more than text
  Clock::time_point start_ = Clock::now();
  std::vector<Clock::time_point> latest_token_;  // [choice]
  Clock::time_point latest_write_ = start_;
  bool streaming_ = false;
  bool closed_ = false;
  bool counts_ = false;  // its streams do, among those that are open
};

}  // namespace foresail
