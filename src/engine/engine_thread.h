// What stands behind the public Engine: the loop on a thread of its own, an inbox in front of it,
// a queue of events behind every request.
// Owner: Engine. Thread rule: public members from any thread.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <future>
#include <mutex>
#include <thread>
#include <unordered_set>

#include "engine/engine_loop.h"
#include "foresail/engine.h"
#include "text/chat_template.h"

namespace foresail {

class EngineThread;

// A longer one, added to the time that it is, would be in the past: milliseconds::max() as well.
constexpr std::chrono::milliseconds kLongestWait = std::chrono::hours(24 * 365);
inline std::chrono::milliseconds waitable(std::chrono::milliseconds timeout) {
  return std::clamp(timeout, std::chrono::milliseconds(0), kLongestWait);
}

// The queue between the engine thread and the reader of one request.
struct StreamState {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Event> events;
  GenerationStats stats;
  bool closed = false;  // the last event is in the queue
  // Of the reader: set by cancel(), seen by the engine thread before its next step.
  bool cancelled = false;
  std::weak_ptr<class EngineInbox> inbox;
  std::function<void()> wake;  // runs under the mutex

  void push(const Event& event, const GenerationStats& figures);
  void note(const GenerationStats& figures);  // without an event
};

// What callers leave for the engine thread. Outlives the engine for as long as a stream holds it.
class EngineInbox {
 public:
  struct Arrival {
    PreparedRequest prepared;
    std::shared_ptr<StreamState> stream;
  };
  struct Content {
    std::vector<Arrival> arrivals;
    bool cancelled = false;  // some stream is, as it says itself
    bool abort_all = false;
    bool stop = false;
    bool look = false;  // someone wants to see how things stand
    std::vector<std::promise<bool>> flushes;
  };

  // False when the engine is draining or gone.
  bool submit(std::vector<Arrival> arrivals);
  void cancel() noexcept;  // needs no memory: readers let go of streams when there is none
  void refuse_new();
  void abort_all();
  void look();
  // Ready once the engine thread has done it, or not.
  std::future<bool> flush();
  void stop();
  // Everything that has come in. Waits for something when `wait`.
  Content take(bool wait);
  // Of the requests that were accepted, so many more have ended.
  void note_ended(int64_t count);
  // False when some have not ended by then.
  bool wait_all_ended(std::chrono::milliseconds timeout);

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::condition_variable all_ended_;
  Content content_;
  int64_t open_ = 0;  // accepted and not ended
  bool refuses_ = false;
  bool stopped_ = false;
};

class EngineThread {
 public:
  explicit EngineThread(EngineOptions options);
  ~EngineThread();

  std::vector<SubmitResult> submit(std::vector<Request> requests);
  // Otherwise to submit it takes up to a tenth of a second; may be null.
  bool knows(const GrammarPtr& grammar) const { return loop_.grammars().knows(grammar); }
  EngineStats stats() const;
  // Who has which page of the cache (PageHolder, in the order of their ids). Never waits for the
  // engine: as it was at the end of the step after which somebody last asked, or since when the
  // engine is idle.
  std::vector<int16_t> page_holders();
  void drain(std::chrono::milliseconds timeout);
  bool flush_cache() { return inbox_->flush().get(); }
  const Tokenizer* tokenizer() const { return tokenizer_.get(); }
  Result<std::vector<int32_t>> encode_chat(const Chat& chat) const;
  const std::string& model_path() const { return model_.options().model_path; }
  // How long its thread has been at work without coming back for more; 0 while it waits.
  std::chrono::milliseconds busy_for() const;
  int64_t max_total_len() const { return loop_.scheduler().capacity().max_total_len().value; }

 private:
  void run();
  EngineInbox::Content next_content();
  bool handle(EngineInbox::Content content);
  void abort_cancelled();
  void abort_all();
  void fail_youngest();
  void publish();

  std::unique_ptr<Tokenizer> tokenizer_;  // null: none in the model folder
  Result<ChatTemplate> chat_template_;
  LoadedModel model_;
  EngineLoop loop_;
  std::shared_ptr<EngineInbox> inbox_ = std::make_shared<EngineInbox>();
  std::unordered_map<StreamState*, RequestId> running_;  // engine thread only

  int64_t newly_ended_ = 0;  // likewise

  // When it last came back for more, in ticks of the steady clock; 0: it waits.
  std::atomic<std::chrono::steady_clock::rep> busy_since_{0};
  mutable std::mutex mutex_;
  EngineStats stats_;
  std::vector<int16_t> page_holders_;
  std::atomic<bool> page_holders_wanted_{false};
  std::thread thread_;
};

}  // namespace foresail
