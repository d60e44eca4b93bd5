// The engine to embed: loads a model, serves any number of requests at once on its own thread.
// No globals, no signal handlers, no exit(), and no output but through the log callback of its
// options; of a broken invariant of its own it prints the values and aborts.
// Any thread may submit; a Stream is used by one thread at a time.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <variant>
#include <vector>

#include "foresail/chat.h"
#include "foresail/options.h"
#include "foresail/output.h"
#include "foresail/request.h"

namespace foresail {

struct RequestError {
  std::string message;  // one line, says what to change
  // The field at fault, empty when none: of Request or its sampling, of Chat; "stop" for stops, and
  // "json_schema" or "regex" for an output_pattern of that format.
  std::string param;
};

struct StreamState;
class EngineThread;

// The events of one request, in order. Letting go of it cancels the request.
class Stream {
 public:
  explicit Stream(std::shared_ptr<StreamState> state);
  ~Stream();
  Stream(Stream&&) noexcept;
  Stream& operator=(Stream&&) noexcept;

  // Waits for the next event; empty once the last one has been taken.
  std::optional<Event> next();
  // Does not wait (waits at most so long): empty when there is nothing yet.
  std::optional<Event> try_next();
  std::optional<Event> next_within(std::chrono::milliseconds timeout);
  // For readers that must not wait: `wake` runs whenever an event has come, and at once if there
  // are some already. It runs under the stream's lock, on the engine thread or on the caller's, so
  // it returns quickly, does not throw and leaves the stream alone; it hands the news on (to an
  // executor, an event loop) and the reader takes events with try_next(). Replaces the hook before
  // it. Never runs once the stream is gone.
  void on_event(std::function<void()> wake);
  // The last event has been taken.
  bool ended() const;
  // The request ends as soon as it can; the last event says kAborted unless it had ended before.
  void cancel();
  // So far; complete once the last event has been taken.
  GenerationStats stats() const;

  // for (const Event& event : stream)
  struct End {};
  class Iterator {
   public:
    explicit Iterator(Stream& stream) : stream_(stream), event_(stream.next()) {}
    const Event& operator*() const { return *event_; }
    Iterator& operator++() {
      event_ = stream_.next();
      return *this;
    }
    bool operator!=(End) const { return event_.has_value(); }

   private:
    Stream& stream_;
    std::optional<Event> event_;
  };
  Iterator begin() { return Iterator(*this); }
  End end() { return {}; }

 private:
  std::shared_ptr<StreamState> state_;
};

// What was asked for, or why there is none.
template <typename Value>
class OrError {
 public:
  OrError(Value value) : value_(std::move(value)) {}
  OrError(RequestError error) : value_(std::move(error)) {}

  explicit operator bool() const { return std::holds_alternative<Value>(value_); }
  Value& operator*() { return std::get<Value>(value_); }
  Value* operator->() { return &std::get<Value>(value_); }
  const RequestError& error() const { return std::get<RequestError>(value_); }

 private:
  std::variant<Value, RequestError> value_;
};

using SubmitResult = OrError<Stream>;

class Engine {
 public:
  // Loads the model. Throws std::runtime_error with one line that says what to change.
  explicit Engine(EngineOptions options);
  // Requests that still run end with kAborted.
  ~Engine();
  Engine(Engine&&) noexcept;
  Engine& operator=(Engine&&) noexcept;

  // Refuses at once what can never run, with the numbers. From any thread.
  SubmitResult submit(Request request);
  // In one batch: they reach the scheduler together, in this order.
  std::vector<SubmitResult> submit(std::vector<Request> requests);

  // As of the latest step.
  EngineStats stats() const;
  // Refuses new requests and waits until none runs; what is left after the timeout is aborted.
  void drain(std::chrono::milliseconds timeout = std::chrono::hours(24));

  // Lets go of every cached prefix. False, and nothing happens, while requests run or wait.
  bool flush_cache();

  // The prompt of a conversation, for Request::input_ids, through the model's own chat template.
  // Only what the template writes itself becomes control tokens, never a message's text. Refused
  // where the model has no tokenizer or no template, and where the template refuses.
  OrError<std::vector<int32_t>> encode_chat(const Chat& chat) const;
  // How generation_config.json of the model asks to be drawn from, for Request::sampling; without
  // that file, and of what it leaves out, the defaults of SamplingParams. A Request does not take
  // them by itself. Reads the file; throws std::runtime_error where it is faulty.
  SamplingParams default_sampling() const;

  // Without a tokenizer in the model folder: no ids, empty text. A text never becomes control
  // tokens; encode_chat() brings those of a conversation.
  std::vector<int32_t> tokenize(const std::string& text) const;
  std::string detokenize(const std::vector<int32_t>& ids) const;
  // The longest prompt and output together.
  int64_t max_total_len() const;

 private:
  std::unique_ptr<EngineThread> thread_;
};

}  // namespace foresail
