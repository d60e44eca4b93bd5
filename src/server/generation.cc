#include "server/generation.h"

#include <fmt/core.h>

#include <algorithm>
#include <ctime>
#include <utility>

#include "base/json.h"
#include "base/utf8.h"

namespace foresail {
namespace {

constexpr std::chrono::milliseconds kPoll{1000};
constexpr std::string_view kReplacementText = "\xEF\xBF\xBD";

HttpResponse event_stream_head() {
  return {.content_type = "text/event-stream",
          .fields = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}}};
}

uint64_t fresh_seed() {
  return std::stoull(random_hex_id().substr(0, 16), nullptr, 16);
}

}  // namespace

Generation::Generation(Serving& serving, std::shared_ptr<Exchange> exchange, GenerationSpec spec,
                       std::unique_ptr<Projection> projection)
    : serving_(serving),
      exchange_(std::move(exchange)),
      spec_(std::move(spec)),
      projection_(std::move(projection)) {
  record_.id = spec_.rid.empty() ? random_hex_id() : spec_.rid;
  record_.model = serving.model.names.front();
  record_.created = std::time(nullptr);
  record_.prompts = spec_.prompts;
  record_.choices_per_prompt = spec_.choices;
  for (size_t prompt = 0; prompt < spec_.prompts.size(); ++prompt)
    for (int i = 0; i < spec_.choices; ++i) {
      Choice choice{.index = static_cast<int>(record_.choices.size()), .prompt = prompt};
      if (!spec_.echoes.empty()) choice.echo_chars = count_characters(spec_.echoes[prompt]);
      if (!spec_.echoes.empty() && !scores_prompt()) choice.text = spec_.echoes[prompt];
      if (spec_.max_tokens[prompt] == 0 && !scores_prompt()) choice.finish = FinishReason::kLength;
      record_.choices.push_back(std::move(choice));
    }
  latest_token_.resize(record_.choices.size());
  if (!spec_.parses()) return;
  while (parsers_.size() < record_.choices.size()) {
    ChatOutputParser::Options options = spec_.parsing;
    options.call_id_prefix = "call_" + random_hex_id() + "_";
    parsers_.emplace_back(spec_.syntax, std::move(options));
  }
}

std::vector<Request> Generation::requests() const {
  std::vector<Request> requests;
  const bool seeded = spec_.seeded;
  const uint64_t seed = seeded ? spec_.options.sampling.seed : fresh_seed();
  for (const Choice& choice : record_.choices) {
    if (choice.finish) continue;  // no output was asked for
    Request request = spec_.options;
    request.input_ids = spec_.prompts[choice.prompt];
    // The prompt's log probabilities come with a token, wanted or not.
    request.max_tokens = std::max<int64_t>(spec_.max_tokens[choice.prompt], 1);
    // A client's seed gives each prompt what it would get alone.
    request.sampling.seed =
        seed + static_cast<uint64_t>(seeded ? choice.index % spec_.choices : choice.index);
    requests.push_back(std::move(request));
  }
  return requests;
}

void Generation::start() {
  const auto streams = static_cast<int64_t>(record_.choices.size());
  if (streams > serving_.open.limit()) {
    serving_.metrics.count_rejection("invalid");
    return exchange_->send(to_response(
        api_error({fmt::format("The request asks for {} outputs at once, and this server takes {}: "
                               "send fewer prompts or a smaller 'n'.",
                               streams, serving_.open.limit()),
                   "n"})));
  }
  if (!serving_.open.reserve(streams)) {
    serving_.metrics.count_rejection("queue_full");
    return exchange_->send(
        to_response(unavailable("server_busy", "The request queue is full: try again soon.")));
  }
  counts_ = true;
  std::vector<SubmitResult> results = serving_.engine.submit(requests());
  for (const SubmitResult& result : results) {
    if (result) continue;
    release();
    const RequestError& error = result.error();
    if (serving_.draining)
      return exchange_->send(to_response(unavailable("shutting_down",
                                                     "The server is shutting "
                                                     "down.")));
    serving_.metrics.count_rejection("invalid");
    return exchange_->send(to_response(api_error({error.message, error.param})));
  }
  try {
    run(std::move(results));
  } catch (const std::exception&) {  // no memory: the exchange tells it
    close("failed");
    throw;
  }
}

void Generation::run(std::vector<SubmitResult> results) {
  serving_.open.add(shared_from_this());
  exchange_->on_gone([weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->client_gone();
  });
  if (spec_.stream) begin_stream();
  listen(std::move(results));
  watch();
  if (!closed_ && all_ended()) finish();
}

void Generation::listen(std::vector<SubmitResult> results) {
  if (closed_) return;  // the client left at the first byte
  waker_ = std::make_shared<Waker>();
  waker_->generation = weak_from_this();
  waker_->exchange = exchange_;
  size_t next = 0;
  for (SubmitResult& result : results) {
    while (record_.choices[next].finish) ++next;
    sources_.push_back({next++, std::move(*result)});
  }
  for (Source& source : sources_) source.stream.on_event([waker = waker_] { Waker::wake(waker); });
}

void Generation::Waker::wake(const std::shared_ptr<Waker>& waker) noexcept {
  if (waker->posted.exchange(true)) return;
  try {
    waker->exchange->post([waker] {
      waker->posted = false;
      if (const auto owner = waker->generation.lock()) owner->pump();
    });
  } catch (const std::bad_alloc&) {  // the next event or look at the time will do
    waker->posted = false;
  }
}

void Generation::begin_stream() {
  streaming_ = true;
  exchange_->start_stream(event_stream_head());
  exchange_->write(projection_->opening(record_));
}

// One timer for everything that happens by itself: limits on time, and comments that keep proxies
// from giving up while a request waits or a long prompt is read.
void Generation::watch() {
  std::chrono::milliseconds interval = std::min(kPoll, serving_.ping_interval);
  for (const auto limit : {serving_.queue_timeout, serving_.request_timeout})
    if (limit.count() > 0) interval = std::min(interval, limit);
  if (closed_) return;
  exchange_->after(interval, [weak = weak_from_this()] {
    const auto self = weak.lock();
    if (!self || self->closed_) return;
    self->look_at_time();
    self->pump();
    self->watch();
  });
}

void Generation::look_at_time() {
  const Clock::time_point now = Clock::now();
  const auto is_over = [&](std::chrono::milliseconds limit) {
    return limit.count() > 0 && now - start_ >= limit;
  };
  const auto is_admitted = [](const Source& source) { return source.stream.stats().admitted; };
  if (is_over(serving_.queue_timeout) &&
      std::none_of(sources_.begin(), sources_.end(), is_admitted)) {
    serving_.metrics.count_rejection("queue_timeout");
    return fail(
        unavailable("queue_timeout", "The request waited too long in the queue: try again."));
  }
  if (is_over(serving_.request_timeout)) {
    serving_.metrics.count_rejection("request_timeout");
    return fail(
        api_error(504, "request_timeout", "The request took longer than this server allows."));
  }
  if (!streaming_ || now - latest_write_ < serving_.ping_interval) return;
  latest_write_ = now;
  exchange_->write(": ping\n\n");
}

void Generation::pump() {
  if (closed_) return;
  for (Source& source : sources_) {
    if (record_.choices[source.choice].finish) continue;
    const Piece piece = take(source);
    const bool broken = piece.finish == FinishReason::kFailed ||
                        (piece.finish == FinishReason::kAborted && !projection_->tells_aborts());
    const std::string& failure = record_.choices[source.choice].stats.failure;
    if (broken && !failure.empty()) {
      serving_.metrics.count_rejection("grammar_too_complex");
      return fail(api_error(400, "grammar_too_complex", failure));
    }
    if (broken && piece.finish == FinishReason::kFailed)
      return fail(api_error(500, "generation_failed",
                            "The model's output was not usable for this request."));
    if (broken && serving_.draining)
      return fail(unavailable("shutting_down", "The server is shutting down."));
    if (broken) return fail(api_error(499, "request_aborted", "The request was aborted."));
    if (!streaming_ || (piece.ids.empty() && !piece.finish)) continue;
    const std::string events = projection_->piece(record_, piece);
    if (!events.empty()) latest_write_ = Clock::now();
    exchange_->write(events);
    if (closed_) return;  // the client was lost, and sources_ with it
  }
  if (all_ended()) finish();
}

// Everything that has come for a choice since the last time, as one piece.
Piece Generation::take(Source& source) {
  Choice& choice = record_.choices[source.choice];
  Piece piece{.choice = source.choice};
  while (!piece.finish) {
    const std::optional<Event> event = source.stream.try_next();
    if (!event) break;
    if (event->token >= 0 && scores_prompt() && choice.ids.empty() && piece.ids.empty())
      begin_with_echo(*event, choice, piece);
    piece.finish = event->finish;
    if (spec_.max_tokens[choice.prompt] == 0) {
      if (event->token >= 0) piece.finish = FinishReason::kLength;
      continue;
    }
    if (event->token >= 0) piece.ids.push_back(event->token);
    if (event->logprobs) piece.logprobs.push_back(*event->logprobs);
    read(*event, choice, piece);
  }
  GenerationStats stats = source.stream.stats();
  if (spec_.max_tokens[choice.prompt] == 0) stats.output_tokens = 0;
  const bool counts = !spec_.options.is_probe;
  if (counts) serving_.metrics.count_drafts(choice.stats, stats);
  if (counts && !piece.ids.empty()) {
    const Clock::time_point now = Clock::now();
    if (choice.ids.empty())
      serving_.metrics.count_first_token(stats);
    else
      serving_.metrics.count_tokens_after(
          std::chrono::duration<double>(now - latest_token_[source.choice]).count(),
          static_cast<int64_t>(piece.ids.size()));
    latest_token_[source.choice] = now;
  }
  choice.stats = std::move(stats);
  choice.ids.insert(choice.ids.end(), piece.ids.begin(), piece.ids.end());
  choice.logprobs.insert(choice.logprobs.end(), piece.logprobs.begin(), piece.logprobs.end());
  choice.sources.insert(choice.sources.end(), piece.sources.begin(), piece.sources.end());
  choice.text += piece.text;
  choice.reasoning += piece.reasoning;
  for (const ToolCallDelta& call : piece.calls) {
    if (call.index == static_cast<int>(choice.calls.size()))
      choice.calls.push_back(call);
    else
      choice.calls[call.index].arguments += call.arguments;
  }
  choice.finish = piece.finish;
  choice.elapsed_s = elapsed_s();
  if (counts && piece.finish) serving_.metrics.count_end(choice.stats, choice.elapsed_s);
  return piece;
}

void Generation::begin_with_echo(const Event& event, Choice& choice, Piece& piece) {
  piece.has_echo = true;
  if (!spec_.echoes.empty()) piece.text = spec_.echoes[choice.prompt];
  choice.prompt_logprobs = event.prompt_logprobs;
}

// The event's text, sorted into the parts of an answer.
void Generation::read(const Event& event, Choice& choice, Piece& piece) {
  TokenSource::Part part = TokenSource::Part::kContent;
  if (parsers_.empty())
    piece.text += event.text;
  else
    part = parse(event, choice, piece);
  if (!spec_.return_draft_info || event.token < 0) return;
  TokenSource source{.text = event.text, .rejected = event.rejected, .part = part};
  // Every chain of accepted drafts ends with a token of the target's own.
  const std::vector<TokenSource>& before = piece.sources.empty() ? choice.sources : piece.sources;
  if (event.from_draft)
    source.draft_position = before.empty() ? 1 : before.back().draft_position + 1;
  piece.sources.push_back(std::move(source));
}

// Which part its token belongs to.
TokenSource::Part Generation::parse(const Event& event, Choice& choice, Piece& piece) {
  using Part = TokenSource::Part;
  ChatOutputParser& parser = parsers_[piece.choice];
  ChatDelta delta;
  const bool calls = parser.in_calls();
  const bool reasoned = parser.in_reasoning();
  std::string_view text = event.text;
  while (event.finish && text.ends_with(kReplacementText))
    text.remove_suffix(kReplacementText.size());
  parser.push(text, event.token, delta);
  const bool reasons = reasoned || parser.in_reasoning();
  if (event.token >= 0 && reasons) ++choice.reasoning_tokens;
  const Part part = reasons                      ? Part::kReasoning
                    : calls || parser.in_calls() ? Part::kCall
                                                 : Part::kContent;
  choice.cut_in_call = event.finish && parser.in_unfinished_call();
  if (event.finish)
    parser.finish(delta, event.finish != FinishReason::kEndToken,
                  std::string_view(event.text).substr(text.size()));
  piece.text += delta.content;
  if (spec_.include_reasoning) piece.reasoning += delta.reasoning;
  for (ToolCallDelta& call : delta.calls) {
    if (!piece.calls.empty() && piece.calls.back().index == call.index)
      piece.calls.back().arguments += call.arguments;
    else
      piece.calls.push_back(std::move(call));
  }
  return part;
}

bool Generation::all_ended() const {
  for (const Choice& choice : record_.choices)
    if (!choice.finish) return false;
  return true;
}

// Before the last bytes: who has read them may ask for what only an idle server does.
void Generation::release() noexcept {
  if (std::exchange(counts_, false))
    serving_.open.release(static_cast<int64_t>(record_.choices.size()));
}

// The end of the answer, made by the one of these that it takes. An exchange that finds no memory
// after its last byte is over, and tells nobody that the client is gone.
template <typename Whole, typename Last>
void Generation::send_end(const Whole& whole, const Last& last) {
  release();
  try {
    if (!streaming_) return exchange_->send(whole());
    exchange_->write(last());
    if (!closed_) exchange_->finish();
  } catch (const std::exception&) {
    client_gone();
    throw;
  }
}

void Generation::finish() {
  send_end([&] { return HttpResponse{.body = projection_->whole(record_)}; },
           [&] { return projection_->closing(record_); });
  if (!closed_) close("done");
}

void Generation::fail(const ApiError& error) {
  send_end([&] { return to_response(error); }, [&] { return event(to_json(error)); });
  if (closed_) return;
  count_unfinished();
  close(error.status == 500 || error.status == 400 ? "failed" : "aborted");
}

void Generation::count_unfinished() {
  for (const Choice& choice : record_.choices)
    if (!choice.finish && !spec_.options.is_probe) ++serving_.metrics.ended_by_abort;
}

void Generation::client_gone() {
  if (closed_) return;
  count_unfinished();
  bool any = false;
  for (const Choice& choice : record_.choices) any = any || !choice.ids.empty();
  if (!spec_.options.is_probe)
    ++(any ? serving_.metrics.gone_while_running : serving_.metrics.gone_while_waiting);
  close("client_gone");
}

// Letting go of the streams cancels what still runs.
void Generation::close(const char* outcome) noexcept {
  if (std::exchange(closed_, true)) return;
  sources_.clear();
  release();
  const auto is_aborted = [](const Choice& choice) {
    return choice.finish == FinishReason::kAborted;
  };
  if (serving_.draining && std::any_of(record_.choices.begin(), record_.choices.end(), is_aborted))
    ++serving_.metrics.cut_by_shutdown;
  try {
    log_end(outcome);
  } catch (const std::exception&) {  // no memory: a line is lost
  }
  serving_.open.remove(shared_from_this());
}

void Generation::log_end(const char* outcome) const {
  const Usage usage = record_.usage();
  const GenerationStats& stats = record_.choices[0].stats;
  const FinishReason finish = record_.choices[0].finish.value_or(FinishReason::kAborted);
  serving_.log.write("request", object_of({{"id", record_.id},
                                           {"path", exchange_->request().path},
                                           {"outcome", outcome},
                                           {"choices", record_.choices.size()},
                                           {"finish", finish_reason_name(finish)},
                                           {"prompt_tokens", usage.prompt_tokens},
                                           {"cached_tokens", usage.cached_tokens},
                                           {"output_tokens", usage.completion_tokens},
                                           {"ttft_ms", static_cast<int64_t>(stats.ttft_s * 1e3)},
                                           {"total_ms", static_cast<int64_t>(elapsed_s() * 1e3)},
                                           {"accept_length", stats.accept_length()}}));
}

void Generation::abort() {
  exchange_->post([self = shared_from_this()] {
    for (Source& source : self->sources_) source.stream.cancel();
  });
}

bool Generation::is_called(std::string_view name) const {
  for (const std::string_view prefix : {"chatcmpl-", "cmpl-"})
    if (name.starts_with(prefix) && name.substr(prefix.size()) == record_.id) return true;
  return name == record_.id;
}

double Generation::elapsed_s() const {
  return std::chrono::duration<double>(Clock::now() - start_).count();
}

}  // namespace foresail
