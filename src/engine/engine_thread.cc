#include "engine/engine_thread.h"

#include <pthread.h>

#include <algorithm>
#include <utility>

#include "base/memory_reserve.h"
#include "engine/chat_input.h"
#include "engine/load_tokenizer.h"
#include "text/chat_prompt.h"

namespace foresail {
namespace {

ModelOptions with_slots(const EngineOptions& options) {
  ModelOptions model = options;
  model.slot_count = options.max_running_requests;
  return model;
}

}  // namespace

void StreamState::push(const Event& event, const GenerationStats& figures) {
  const std::lock_guard lock(mutex);
  events.push_back(event);
  stats = figures;
  closed = event.finish.has_value();
  changed.notify_all();
  if (wake) wake();
}

void StreamState::note(const GenerationStats& figures) {
  const std::lock_guard lock(mutex);
  stats = figures;
}

bool EngineInbox::submit(std::vector<Arrival> arrivals) {
  const std::lock_guard lock(mutex_);
  if (refuses_) return false;
  open_ += static_cast<int64_t>(arrivals.size());
  for (Arrival& arrival : arrivals) content_.arrivals.push_back(std::move(arrival));
  changed_.notify_one();
  return true;
}

void EngineInbox::cancel() noexcept {
  const std::lock_guard lock(mutex_);
  content_.cancelled = true;
  changed_.notify_one();
}

void EngineInbox::refuse_new() {
  const std::lock_guard lock(mutex_);
  refuses_ = true;
}

void EngineInbox::abort_all() {
  const std::lock_guard lock(mutex_);
  content_.abort_all = true;
  changed_.notify_one();
}

void EngineInbox::look() {
  const std::lock_guard lock(mutex_);
  content_.look = true;
  changed_.notify_one();
}

std::future<bool> EngineInbox::flush() {
  const std::lock_guard lock(mutex_);
  std::promise<bool> promise;
  std::future<bool> done = promise.get_future();
  if (stopped_)
    promise.set_value(false);
  else
    content_.flushes.push_back(std::move(promise));
  changed_.notify_one();
  return done;
}

void EngineInbox::stop() {
  const std::lock_guard lock(mutex_);
  refuses_ = true;
  content_.stop = stopped_ = true;
  changed_.notify_one();
}

EngineInbox::Content EngineInbox::take(bool wait) {
  std::unique_lock lock(mutex_);
  const auto something = [&] {
    return !content_.arrivals.empty() || content_.cancelled || content_.abort_all ||
           !content_.flushes.empty() || content_.stop || content_.look;
  };
  if (wait) changed_.wait(lock, something);
  return std::exchange(content_, {});
}

void EngineInbox::note_ended(int64_t count) {
  const std::lock_guard lock(mutex_);
  open_ -= count;
  if (open_ == 0) all_ended_.notify_all();
}

bool EngineInbox::wait_all_ended(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  return all_ended_.wait_for(lock, waitable(timeout), [&] { return open_ == 0; });
}

EngineThread::EngineThread(EngineOptions options)
    : tokenizer_(find_tokenizer(options.model_path)),
      chat_template_(ChatTemplate::find(options.model_path)),
      model_(with_slots(options)),
      loop_(model_, tokenizer_.get(), options),
      stats_(loop_.stats()),
      page_holders_(loop_.scheduler().page_holders()),
      thread_([this] { run(); }) {}

EngineThread::~EngineThread() {
  inbox_->stop();
  thread_.join();
}

std::vector<SubmitResult> EngineThread::submit(std::vector<Request> requests) {
  std::vector<SubmitResult> results;
  std::vector<EngineInbox::Arrival> arrivals;
  for (Request& request : requests) {
    Result<PreparedRequest> prepared = loop_.prepare(std::move(request));
    if (!prepared) {
      results.push_back(RequestError{prepared.error().message, prepared.error().param});
      continue;
    }
    auto state = std::make_shared<StreamState>();
    state->inbox = inbox_;
    arrivals.push_back({std::move(*prepared), state});
    results.push_back(Stream(std::move(state)));
  }
  if (inbox_->submit(std::move(arrivals))) return results;
  for (SubmitResult& result : results)
    if (result) result = RequestError{"the engine is shutting down", ""};
  return results;
}

Result<std::vector<int32_t>> EngineThread::encode_chat(const Chat& chat) const {
  if (tokenizer_ == nullptr)
    return input_error("a conversation needs a tokenizer, and the model folder has none");
  if (!chat_template_) return tl::unexpected(chat_template_.error());
  const Result<RenderInput> input = chat_input(chat);
  if (!input) return tl::unexpected(input.error());
  return chat_prompt(*chat_template_, *tokenizer_, *input);
}

EngineStats EngineThread::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

std::vector<int16_t> EngineThread::page_holders() {
  if (!page_holders_wanted_.exchange(true)) inbox_->look();
  const std::lock_guard lock(mutex_);
  return page_holders_;
}

void EngineThread::drain(std::chrono::milliseconds timeout) {
  inbox_->refuse_new();
  if (inbox_->wait_all_ended(timeout)) return;
  inbox_->abort_all();
  inbox_->wait_all_ended(std::chrono::hours(1));
}

std::chrono::milliseconds EngineThread::busy_for() const {
  using Clock = std::chrono::steady_clock;
  const Clock::rep since = busy_since_;
  if (since == 0) return {};
  return std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now().time_since_epoch() -
                                                               Clock::duration(since));
}

EngineInbox::Content EngineThread::next_content() {
  busy_since_ = 0;
  EngineInbox::Content content = inbox_->take(loop_.idle());
  busy_since_ = std::chrono::steady_clock::now().time_since_epoch().count();
  return content;
}

void EngineThread::run() {
  pthread_setname_np(pthread_self(), "foresail-engine");
  for (;;) {
    const MemoryReserve::Watch reserve;
    if (!handle(next_content())) break;
    loop_.step();
    if (!MemoryReserve::fill() && reserve.drew()) fail_youngest();
    publish();
  }
  abort_all();
  while (loop_.step()) {
  }
  publish();
}

// False when the thread is to end.
bool EngineThread::handle(EngineInbox::Content content) {
  for (EngineInbox::Arrival& arrival : content.arrivals) {
    StreamState* const key = arrival.stream.get();
    const std::weak_ptr<StreamState> noted = arrival.stream;
    const RequestId id = loop_.submit(
        std::move(arrival.prepared),
        [this, stream = std::move(arrival.stream)](const Event& event,
                                                   const GenerationStats& figures) {
          if (event.finish) newly_ended_ += static_cast<int64_t>(running_.erase(stream.get()));
          stream->push(event, figures);
        },
        [noted](const GenerationStats& figures) {
          if (const auto stream = noted.lock()) stream->note(figures);
        });
    running_.emplace(key, id);
  }
  if (content.cancelled) abort_cancelled();
  if (content.abort_all) abort_all();
  for (std::promise<bool>& flush : content.flushes) {
    const bool idle = loop_.idle();
    if (idle) loop_.flush_cache();
    if (idle) publish();  // who is answered may look
    flush.set_value(idle);
  }
  return !content.stop;
}

void EngineThread::abort_cancelled() {
  std::vector<RequestId> cancelled;
  for (const auto& [stream, id] : running_) {
    const std::lock_guard lock(stream->mutex);
    if (stream->cancelled) cancelled.push_back(id);
  }
  for (const RequestId id : cancelled) loop_.abort(id);
}

void EngineThread::abort_all() {
  while (!running_.empty()) loop_.abort(running_.begin()->second);
}

// One a step, until the others have memory enough.
void EngineThread::fail_youngest() {
  const auto youngest =
      std::max_element(running_.begin(), running_.end(),
                       [](const auto& a, const auto& b) { return a.second < b.second; });
  if (youngest != running_.end()) loop_.abort(youngest->second, FinishReason::kFailed);
}

void EngineThread::publish() {
  {
    const std::lock_guard lock(mutex_);
    stats_ = loop_.stats();
    // Who asks once of an idle engine is told how it is, not how it was when somebody last asked.
    if (page_holders_wanted_.exchange(false) || loop_.idle())
      page_holders_ = loop_.scheduler().page_holders();
  }
  inbox_->note_ended(std::exchange(newly_ended_, 0));
}

}  // namespace foresail
