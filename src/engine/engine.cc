#include "foresail/engine.h"

#include "engine/engine_thread.h"
#include "engine/sampling_defaults.h"

namespace foresail {

Stream::Stream(std::shared_ptr<StreamState> state) : state_(std::move(state)) {}
Stream::Stream(Stream&&) noexcept = default;

Stream& Stream::operator=(Stream&& other) noexcept {
  if (state_ != nullptr) on_event({});
  cancel();
  state_ = std::move(other.state_);
  return *this;
}

Stream::~Stream() {
  if (state_ != nullptr) on_event({});
  cancel();
}

std::optional<Event> Stream::next() {
  return next_within(kLongestWait);
}
std::optional<Event> Stream::try_next() {
  return next_within(std::chrono::milliseconds(0));
}

std::optional<Event> Stream::next_within(std::chrono::milliseconds timeout) {
  std::unique_lock lock(state_->mutex);
  state_->changed.wait_for(lock, waitable(timeout),
                           [&] { return !state_->events.empty() || state_->closed; });
  if (state_->events.empty()) return std::nullopt;
  Event event = std::move(state_->events.front());
  state_->events.pop_front();
  return event;
}

void Stream::on_event(std::function<void()> wake) {
  const std::lock_guard lock(state_->mutex);
  state_->wake.swap(wake);
  if (state_->wake && !state_->events.empty()) state_->wake();
}

bool Stream::ended() const {
  const std::lock_guard lock(state_->mutex);
  return state_->closed && state_->events.empty();
}

void Stream::cancel() {
  if (state_ == nullptr) return;
  {
    const std::lock_guard lock(state_->mutex);
    if (state_->closed || std::exchange(state_->cancelled, true)) return;
  }
  if (const auto inbox = state_->inbox.lock()) inbox->cancel();
}

GenerationStats Stream::stats() const {
  const std::lock_guard lock(state_->mutex);
  return state_->stats;
}

Engine::Engine(EngineOptions options)
    : thread_(std::make_unique<EngineThread>(std::move(options))) {}
Engine::~Engine() = default;
Engine::Engine(Engine&&) noexcept = default;
Engine& Engine::operator=(Engine&&) noexcept = default;

SubmitResult Engine::submit(Request request) {
  std::vector<Request> one;
  one.push_back(std::move(request));
  return std::move(thread_->submit(std::move(one))[0]);
}

std::vector<SubmitResult> Engine::submit(std::vector<Request> requests) {
  return thread_->submit(std::move(requests));
}

EngineStats Engine::stats() const {
  return thread_->stats();
}
void Engine::drain(std::chrono::milliseconds timeout) {
  thread_->drain(timeout);
}

bool Engine::flush_cache() {
  return thread_->flush_cache();
}

OrError<std::vector<int32_t>> Engine::encode_chat(const Chat& chat) const {
  Result<std::vector<int32_t>> ids = thread_->encode_chat(chat);
  if (!ids) return RequestError{ids.error().message, ids.error().param};
  return *std::move(ids);
}

SamplingParams Engine::default_sampling() const {
  return read_sampling_defaults(thread_->model_path());
}

std::vector<int32_t> Engine::tokenize(const std::string& text) const {
  const Tokenizer* tokenizer = thread_->tokenizer();
  return tokenizer == nullptr ? std::vector<int32_t>() : tokenizer->encode(text, {.add_bos = true});
}

std::string Engine::detokenize(const std::vector<int32_t>& ids) const {
  const Tokenizer* tokenizer = thread_->tokenizer();
  return tokenizer == nullptr ? std::string() : tokenizer->decode(ids, true);
}

int64_t Engine::max_total_len() const {
  return thread_->max_total_len();
}

}  // namespace foresail
