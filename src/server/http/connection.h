// One client's connection: frames requests, writes answers, notices when the client leaves.
// Reading goes on while an answer is under way, so a lost client is seen at once; only one who has
// sent 256 KiB ahead is seen when those requests have had their turn.
// Owner: itself, through its pending operations. Thread rule: everything on its strand.
#pragma once

#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <exception>
#include <memory>
#include <optional>
#include <string>

#include "base/memory_reserve.h"
#include "server/http/exchange.h"
#include "server/http/grown_body.h"
#include "server/http/http_limits.h"
#include "server/http/long_requests.h"
#include "server/http/message.h"

namespace foresail {

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  using Strand = boost::asio::strand<boost::asio::io_context::executor_type>;
  // Of TCP or of a file (AF_UNIX).
  using Socket = boost::asio::basic_stream_socket<boost::asio::generic::stream_protocol, Strand>;

  Connection(Socket socket, const HttpLimits& limits, HttpCounters& counters,
             LongRequests& long_requests, HttpApplication& application);
  ~Connection();

  void start();
  // From any thread: ends it now if no request is under way, or when that one is answered.
  void close_when_idle();
  // From any thread.
  void drop();

 private:
  friend class ConnectionExchange;
  using Parser = boost::beast::http::request_parser<GrownBody>;
  // What the bytes that come in belong to.
  enum class State { kIdle, kHeader, kBody, kBusy, kLingering, kClosed };

  // What every completion runs in: memory may run out anywhere.
  template <typename Action>
  void guarded(const Action& action) noexcept {
    const MemoryReserve::Watch reserve;
    try {
      action();
    } catch (const std::exception&) {  // bad_alloc: all else is caught where it is answered
      return give_up();
    }
    if (!MemoryReserve::fill() && reserve.drew() && is_asked()) give_up();
  }
  void give_up() noexcept;
  bool is_asked() const {  // a request is under way
    return state_ == State::kHeader || state_ == State::kBody || state_ == State::kBusy;
  }

  void read();
  void on_read(boost::system::error_code error, size_t bytes);
  void end_of_requests();
  void parse();
  bool accept_header();
  bool holds_body(size_t bytes);
  bool takes_body_of(const Parser::value_type& message);
  void read_head(const Parser::value_type& message);
  void dispatch();
  void serve_in_turn();
  void refuse(int status, std::string_view code, const std::string& message);
  void refuse_parse(boost::system::error_code error);
  void refuse_head();

  bool has_room_for(const HttpResponse& response) const;
  HttpResponse no_room();
  void holds_answer(size_t bytes);
  void send(HttpResponse response);
  void start_stream(const HttpResponse& head);
  void write_piece(std::string_view piece);
  void finish_stream();
  void end_exchange();

  void append_head(const HttpResponse& response, const std::string& framing);
  void flush();
  void after_flush();

  void set_read_deadline(std::chrono::milliseconds delay);
  void on_read_deadline();
  void linger();
  void lose_client();
  void close();

  Socket socket_;
  const HttpLimits& limits_;
  HttpCounters& counters_;
  LongRequests& long_requests_;
  HttpApplication& application_;
  boost::asio::steady_timer read_timer_, write_timer_, exchange_timer_;

  State state_ = State::kIdle;
  bool reading_ = false;
  bool peer_done_ = false;
  boost::beast::flat_buffer input_;
  std::optional<Parser> parser_;
  size_t head_bytes_ = 0;  // of the request under way that the parser has taken
  size_t body_bytes_ = 0;  // counted in incoming_bytes
  HttpRequest request_;    // its head, while the body comes in

  std::shared_ptr<class ConnectionExchange> exchange_;
  bool keep_alive_ = true;  // after the answer under way
  bool chunked_ = false;    // the streamed answer is
  bool head_only_ = false;
  std::string output_;        // not yet taken by the socket
  size_t written_bytes_ = 0;  // of output_
  size_t answer_bytes_ = 0;   // counted in waiting_bytes
  std::optional<std::chrono::steady_clock::time_point> over_limit_since_;  // of unsent bytes
  bool writing_ = false;
};

}  // namespace foresail
