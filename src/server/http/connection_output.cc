// The writing half of a connection.
#include <fmt/core.h>

#include <boost/asio/buffer.hpp>
#include <boost/asio/post.hpp>
#include <iterator>

#include "server/http/connection.h"
#include "server/http/connection_exchange.h"

namespace foresail {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;

constexpr size_t kKeptBufferBytes = 64 << 10;
constexpr std::chrono::milliseconds kLinger{2000};

}  // namespace

void Connection::append_head(const HttpResponse& response, const std::string& framing) {
  if (application_.closing()) keep_alive_ = false;
  fmt::format_to(std::back_inserter(output_), "HTTP/1.1 {} {}\r\n{}Connection: {}\r\n",
                 response.status, http_reason(response.status), framing,
                 keep_alive_ ? "keep-alive" : "close");
  if (response.status != 204)
    fmt::format_to(std::back_inserter(output_), "Content-Type: {}\r\n", response.content_type);
  if (exchange_)
    fmt::format_to(std::back_inserter(output_), "X-Request-Id: {}\r\n", exchange_->request().id);
  for (const auto& [name, value] : response.fields)
    fmt::format_to(std::back_inserter(output_), "{}: {}\r\n", name, value);
  output_ += "\r\n";
}

// A client that reads nothing holds its answer, which may be many times as long as the question.
bool Connection::has_room_for(const HttpResponse& response) const {
  return response.body.size() <= kSmallBodyBytes ||
         counters_.waiting_bytes < limits_.max_waiting_bytes;
}

HttpResponse Connection::no_room() {
  ++counters_.over_waiting_total;
  return application_.fault(503, "server_busy",
                            "Too many answers wait for clients to read them: try again soon.");
}

void Connection::holds_answer(size_t bytes) {
  counters_.waiting_bytes += bytes - answer_bytes_;
  answer_bytes_ = bytes;
}

void Connection::send(HttpResponse response) {
  const size_t earlier = output_.size();
  try {
    append_head(response, response.status == 204
                              ? std::string()
                              : fmt::format("Content-Length: {}\r\n", response.body.size()));
    if (!head_only_) output_ += response.body;
  } catch (const std::bad_alloc&) {  // half an answer must not precede the next one
    output_.resize(earlier);
    throw;
  }
  end_exchange();
}

// To a client of HTTP/1.0 the end of the connection is the end of the answer.
void Connection::start_stream(const HttpResponse& head) {
  if (!chunked_) keep_alive_ = false;
  append_head(head, chunked_ ? "Transfer-Encoding: chunked\r\n" : "");
  flush();
}

void Connection::write_piece(std::string_view piece) {
  if (piece.empty()) return;
  if (chunked_) fmt::format_to(std::back_inserter(output_), "{:x}\r\n", piece.size());
  output_ += piece;
  if (chunked_) output_ += "\r\n";
  flush();
  if (output_.size() - written_bytes_ <= limits_.max_unsent_bytes) {
    over_limit_since_.reset();
    return;
  }
  const auto now = std::chrono::steady_clock::now();
  if (!over_limit_since_) over_limit_since_ = now;
  if (now - *over_limit_since_ < limits_.unsent_grace) return;
  ++counters_.slow_reader_total;
  lose_client();
}

void Connection::finish_stream() {
  if (chunked_) output_ += "0\r\n\r\n";
  end_exchange();
}

void Connection::end_exchange() {
  exchange_timer_.cancel();
  --counters_.busy;
  exchange_->end();
  exchange_.reset();
  state_ = State::kIdle;
  if (!keep_alive_) return linger();
  flush();
  if (state_ != State::kIdle) return;
  // Not from here: a request sent ahead would be answered inside the answer of this one.
  asio::post(socket_.get_executor(), [self = shared_from_this()] {
    self->guarded([&] {
      self->parse();
      self->read();
    });
  });
}

void Connection::flush() {
  if (writing_ || state_ == State::kClosed) return;
  while (written_bytes_ < output_.size()) {
    error_code error;
    written_bytes_ += socket_.write_some(
        asio::buffer(output_.data() + written_bytes_, output_.size() - written_bytes_), error);
    if (error == asio::error::would_block) break;
    if (error) return lose_client();
  }
  if (written_bytes_ == output_.size()) {
    output_.clear();
    if (output_.capacity() > kKeptBufferBytes || state_ == State::kIdle) output_.shrink_to_fit();
    written_bytes_ = 0;
    over_limit_since_.reset();
    holds_answer(0);
    return after_flush();
  }
  holds_answer(output_.capacity());
  write_timer_.expires_after(limits_.write_timeout);
  write_timer_.async_wait([self = shared_from_this()](error_code error) {
    if (error || !self->writing_) return;
    if (self->write_timer_.expiry() > std::chrono::steady_clock::now()) return;
    ++self->counters_.slow_reader_total;
    self->guarded([&] { self->lose_client(); });
  });
  socket_.async_wait(Socket::wait_write, [self = shared_from_this()](error_code error) {
    self->writing_ = false;
    self->write_timer_.cancel();
    self->guarded([&] {
      if (error) return self->lose_client();
      if (self->written_bytes_ > self->output_.size() / 2) {
        self->output_.erase(0, self->written_bytes_);
        self->written_bytes_ = 0;
      }
      self->flush();
      if (self->writing_) return;
      self->parse();
      self->read();
    });
  });
  writing_ = true;  // last: without memory for the waits nothing would ever end it
}

void Connection::after_flush() {
  if (state_ == State::kIdle) return set_read_deadline(limits_.keep_alive_timeout);
  if (state_ != State::kLingering) return;
  if (peer_done_) return close();
  set_read_deadline(kLinger);
  error_code ignored;
  socket_.shutdown(Socket::shutdown_send, ignored);
}

}  // namespace foresail
