#include "server/http/connection.h"

#include <fmt/core.h>

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/beast/http/error.hpp>
#include <cstring>
#include <utility>

#include "server/http/connection_exchange.h"
#include "server/http/loopback.h"

namespace foresail {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using boost::system::error_code;

constexpr size_t kReadBytes = 16 << 10;
// Of requests sent ahead while another is being answered.
constexpr size_t kMaxPipelinedBytes = 256 << 10;
// The system would take megabytes for a client that reads nothing, where no limit of ours counts.
constexpr int kSendBufferBytes = 128 << 10;

// A socket that is a file has no other end than this machine.
bool is_loopback(const asio::generic::stream_protocol::endpoint& peer) {
  asio::ip::tcp::endpoint address;
  if (peer.protocol().family() == AF_UNIX) return true;
  if (peer.size() == 0 || peer.size() > address.capacity()) return false;
  std::memcpy(address.data(), peer.data(), peer.size());
  return is_loopback_address(address.address());
}

std::string_view view(boost::beast::string_view text) {
  return {text.data(), text.size()};
}

}  // namespace

Connection::Connection(Socket socket, const HttpLimits& limits, HttpCounters& counters,
                       LongRequests& long_requests, HttpApplication& application)
    : socket_(std::move(socket)),
      limits_(limits),
      counters_(counters),
      long_requests_(long_requests),
      application_(application),
      read_timer_(socket_.get_executor()),
      write_timer_(socket_.get_executor()),
      exchange_timer_(socket_.get_executor()) {
  ++counters_.connections;
}

Connection::~Connection() {
  holds_body(0);
  holds_answer(0);
  --counters_.connections;
}

// The request under way ends, with an answer if there is memory for one; other connections go on.
void Connection::give_up() noexcept {
  ++counters_.out_of_memory_total;
  std::shared_ptr<ConnectionExchange> exchange;
  try {
    const bool unanswered = is_asked() && !(exchange_ && exchange_->answered());
    if (state_ == State::kBusy) --counters_.busy;
    state_ = State::kLingering;
    exchange = std::exchange(exchange_, nullptr);
    if (exchange) exchange->lose();
    if (unanswered)
      refuse(503, "out_of_memory", "Not enough memory for this request.");
    else
      close();
  } catch (const std::exception&) {
    close();
  }
}

void Connection::start() {
  error_code ignored;
  socket_.set_option(asio::ip::tcp::no_delay(true), ignored);
  socket_.set_option(asio::socket_base::send_buffer_size(kSendBufferBytes), ignored);
  socket_.non_blocking(true, ignored);
  asio::post(socket_.get_executor(), [self = shared_from_this()] {
    self->guarded([&] {
      self->set_read_deadline(self->limits_.keep_alive_timeout);
      self->read();
    });
  });
}

void Connection::close_when_idle() {
  asio::post(socket_.get_executor(), [self = shared_from_this()] {
    self->keep_alive_ = false;
    if (self->state_ != State::kIdle) return;
    // A request has come that nobody has looked at yet: its answer ends the connection.
    error_code error;
    if (self->socket_.available(error) > 0 && !error) return;
    if (!self->writing_) return self->close();
    self->guarded([&] { self->linger(); });
  });
}

void Connection::drop() {
  asio::post(socket_.get_executor(),
             [self = shared_from_this()] { self->guarded([&] { self->lose_client(); }); });
}

void Connection::read() {
  if (reading_ || state_ == State::kClosed) return;
  if (peer_done_) return end_of_requests();
  if ((state_ == State::kBusy || writing_) && input_.size() > kMaxPipelinedBytes) return;
  reading_ = true;
  // Thousands of idle connections must not hold a buffer each.
  if (state_ == State::kIdle && input_.size() == 0) input_.shrink_to_fit();
  socket_.async_wait(Socket::wait_read, [self = shared_from_this()](error_code error) {
    self->reading_ = false;
    if (self->state_ == State::kClosed) return;
    self->guarded([&] {
      size_t bytes = 0;
      if (!error) bytes = self->socket_.read_some(self->input_.prepare(kReadBytes), error);
      if (error == asio::error::would_block) return self->read();
      self->on_read(error, bytes);
    });
  });
}

void Connection::on_read(error_code error, size_t bytes) {
  if (error == asio::error::eof) {
    peer_done_ = true;
    return end_of_requests();
  }
  if (error) return lose_client();
  if (state_ == State::kLingering) {
    input_.consume(input_.size());
    return read();
  }
  input_.commit(bytes);
  parse();
  read();
}

// A client that has said all it will say still gets what is on its way, and answers to what it had
// sent before; a model does not run for someone who may have gone.
void Connection::end_of_requests() {
  const bool answered = state_ == State::kIdle || state_ == State::kLingering;
  if (!answered || (!writing_ && input_.size() == 0)) return lose_client();
  if (input_.size() == 0) state_ = State::kLingering;
}

void Connection::parse() {
  while (input_.size() > 0 &&
         (state_ == State::kIdle || state_ == State::kHeader || state_ == State::kBody)) {
    if (state_ == State::kIdle) {
      // Or whoever sends and never reads would pile up answers.
      if (writing_) return;
      // Some clients end a body with a line break that belongs to nothing.
      const auto* bytes = static_cast<const char*>(input_.data().data());
      if (*bytes == '\r' || *bytes == '\n') {
        input_.consume(1);
        continue;
      }
      state_ = State::kHeader;
      parser_.emplace();
      head_bytes_ = 0;
      parser_->header_limit(limits_.max_header_bytes);
      parser_->body_limit(limits_.longest_body_bytes());
      set_read_deadline(limits_.header_timeout);
    }
    error_code error;
    const size_t used = parser_->put(input_.data(), error);
    input_.consume(used);
    if (error && error != http::error::need_more) return refuse_parse(error);
    if (state_ == State::kHeader) {
      head_bytes_ += used;
      // The parser's own limit is for what it has not taken yet, and it takes field by field.
      const size_t waiting = parser_->is_header_done() ? 0 : input_.size();
      if (head_bytes_ + waiting > limits_.max_header_bytes) return refuse_head();
    }
    if (state_ == State::kHeader && parser_->is_header_done()) {
      if (!accept_header()) return;
      state_ = State::kBody;
      parser_->eager(true);  // not earlier: trailer fields would join the head before it is read
    }
    if (state_ == State::kBody) {
      set_read_deadline(limits_.body_timeout);
      if (!holds_body(parser_->get().body().size())) {
        ++counters_.over_incoming_total;
        return refuse(503, "server_busy", "Too much is being sent at once: try again soon.");
      }
    }
    if (parser_->is_done()) return dispatch();
    // A body is consumed as it comes; what waits is a chunk's first line or what follows the last.
    if (state_ == State::kBody && used == 0 && input_.size() > limits_.max_header_bytes)
      return refuse_parse(http::error::header_limit);
    if (error == http::error::need_more || used == 0) return;
  }
}

// False when it was refused.
bool Connection::accept_header() {
  const auto& message = parser_->get();
  int field_count = 0, host_count = 0;
  for (const auto& field : message) {
    if (++field_count > limits_.max_header_fields ||
        field.name_string().size() + field.value().size() > limits_.max_header_line_bytes) {
      ++counters_.header_too_large_total;
      refuse(431, "headers_too_large",
             fmt::format("more than {} header fields, or one longer than {} bytes",
                         limits_.max_header_fields, limits_.max_header_line_bytes));
      return false;
    }
    host_count += field.name() == http::field::host ? 1 : 0;
  }
  if (message.target().size() > limits_.max_header_line_bytes) {
    ++counters_.header_too_large_total;
    refuse(414, "uri_too_long",
           fmt::format("the request line exceeds {} bytes", limits_.max_header_line_bytes));
    return false;
  }
  if (host_count > 1 || (host_count == 0 && message.version() >= 11)) {
    ++counters_.malformed_total;
    refuse(400, "bad_http", "an HTTP/1.1 request has one Host field");
    return false;
  }
  if (!takes_body_of(message)) return false;
  read_head(message);
  if (parser_->is_done()) return true;
  if (chunked_ && lower(view(message[http::field::expect])) == "100-continue") {
    output_ += "HTTP/1.1 100 Continue\r\n\r\n";
    flush();
  }
  return state_ != State::kClosed;
}

// Whether there is room for so much of the body under way.
bool Connection::holds_body(size_t bytes) {
  const bool grows = bytes > body_bytes_;
  counters_.incoming_bytes += bytes - body_bytes_;
  body_bytes_ = bytes;
  return !grows || bytes <= kSmallBodyBytes ||
         counters_.incoming_bytes <= limits_.max_incoming_bytes;
}

// Where a body ends must be beyond doubt: a proxy in front that reads another end than we do would
// let one client write the next one's request.
bool Connection::takes_body_of(const Parser::value_type& message) {
  const auto coding = message.find(http::field::transfer_encoding);
  if (coding == message.end()) return true;
  const bool chunked = lower(view(coding->value())) == "chunked";
  if (chunked && message.version() >= 11) return true;
  ++counters_.malformed_total;
  if (chunked)
    refuse(400, "bad_http", "HTTP/1.0 has no Transfer-Encoding");
  else
    refuse(501, "bad_http", "a Transfer-Encoding other than chunked is not supported");
  return false;
}

// What comes behind the body (trailer fields) is not looked at.
void Connection::read_head(const Parser::value_type& message) {
  request_ = {};
  request_.method = view(message.method_string());
  request_.path = path_of(view(message.target()));
  for (const auto& field : message)
    request_.fields.emplace_back(lower(view(field.name_string())), view(field.value()));
  const std::string_view id = request_.field("x-request-id");
  request_.id = is_usable_id(id) ? std::string(id) : random_hex_id();
  error_code ignored;
  const auto peer = socket_.remote_endpoint(ignored);
  request_.from_loopback = !ignored && is_loopback(peer);
  keep_alive_ = message.keep_alive();
  head_only_ = request_.method == "HEAD";
  chunked_ = message.version() >= 11;
}

void Connection::dispatch() {
  request_.body = std::move(parser_->get().body());
  parser_.reset();

  state_ = State::kBusy;
  ++counters_.busy;
  read_timer_.cancel();
  exchange_ = std::make_shared<ConnectionExchange>(shared_from_this(), std::move(request_));
  serve_in_turn();
}

void Connection::serve_in_turn() {
  const auto exchange = exchange_;
  if (exchange == nullptr) return;  // its client left while it waited
  if (!exchange->serve())
    return exchange->after(long_requests_.delay(), [this] { serve_in_turn(); });
  exchange->forget_body();  // parsed by now: it shall not stay as long as an answer takes
  holds_body(0);
}

void Connection::refuse(int status, std::string_view code, const std::string& message) {
  keep_alive_ = false;
  HttpResponse response = application_.fault(status, code, message);
  append_head(response, fmt::format("Content-Length: {}\r\n", response.body.size()));
  const bool head_only = parser_ ? parser_->get().method() == http::verb::head : head_only_;
  if (!head_only) output_ += response.body;
  linger();
}

void Connection::refuse_parse(error_code error) {
  if (error == http::error::header_limit || error == http::error::buffer_overflow)
    return refuse_head();
  if (error == http::error::body_limit) {
    ++counters_.body_too_large_total;
    return refuse(413, "request_too_large",
                  fmt::format("the request's body exceeds {} bytes", limits_.longest_body_bytes()));
  }
  ++counters_.malformed_total;
  refuse(400, "bad_http", fmt::format("not an HTTP/1.1 request: {}", error.message()));
}

void Connection::refuse_head() {
  ++counters_.header_too_large_total;
  const bool has_request_line = !parser_->get().target().empty();
  refuse(has_request_line ? 431 : 414, has_request_line ? "headers_too_large" : "uri_too_long",
         fmt::format("the request's {} exceeds {} bytes",
                     has_request_line ? "header" : "request line", limits_.max_header_bytes));
}

void Connection::set_read_deadline(std::chrono::milliseconds delay) {
  read_timer_.expires_after(delay);
  read_timer_.async_wait([self = shared_from_this()](error_code error) {
    if (!error && self->read_timer_.expiry() <= std::chrono::steady_clock::now())
      self->guarded([&] { self->on_read_deadline(); });
  });
}

void Connection::on_read_deadline() {
  switch (state_) {
    case State::kIdle:
    case State::kLingering:
      // An answer is still on its way to a slow reader, which write_timer_ watches; the time counts
      // from its end.
      if (writing_) return;
      return close();
    case State::kHeader:
      ++counters_.header_timeout_total;
      return refuse(408, "request_timeout", "the request's header took too long");
    case State::kBody:
      ++counters_.body_timeout_total;
      return refuse(408, "request_timeout", "the request's body took too long");
    case State::kBusy:
    case State::kClosed:
      return;
  }
}

// Closing with bytes unread would reset the connection and lose the answer on its way.
void Connection::linger() {
  parser_.reset();
  holds_body(0);
  state_ = State::kLingering;
  input_.consume(input_.size());
  read_timer_.cancel();
  flush();
  read();
}

void Connection::lose_client() {
  if (state_ == State::kBusy) {
    ++counters_.disconnects_total;
    --counters_.busy;
    const auto exchange = std::exchange(exchange_, nullptr);
    close();
    exchange->lose();
    return;
  }
  close();
}

void Connection::close() {
  state_ = State::kClosed;
  holds_body(0);
  holds_answer(0);
  read_timer_.cancel();
  write_timer_.cancel();
  exchange_timer_.cancel();
  error_code ignored;
  socket_.close(ignored);
}

}  // namespace foresail
