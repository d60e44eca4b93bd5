// What the application holds of a connection while it answers a request.
// Thread rule: as the connection's, but post() may be called from any thread.
#pragma once

#include <boost/asio/post.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "server/http/connection.h"

namespace foresail {

// The exchange of a connection; outlives it as a handle that does nothing.
class ConnectionExchange final : public Exchange,
                                 public std::enable_shared_from_this<ConnectionExchange> {
 public:
  ConnectionExchange(std::shared_ptr<Connection> connection, HttpRequest request)
      : connection_(std::move(connection)), request_(std::move(request)) {}

  const HttpRequest& request() const override { return request_; }
  void forget_body() { std::string().swap(request_.body); }  // with its memory
  void send(HttpResponse response) override {
    if (over_) return;
    // Inside a stream there is no place for an answer.
    if (streaming_) return connection_->lose_client();
    if (!connection_->has_room_for(response)) response = connection_->no_room();
    note(response);
    connection_->send(std::move(response));
  }
  void start_stream(HttpResponse head) override {
    if (over_) return;
    note(head);
    connection_->start_stream(head);
    streaming_ = true;
  }
  void write(std::string_view piece) override {
    if (!over_) connection_->write_piece(piece);
  }
  void finish() override {
    if (!over_) connection_->finish_stream();
  }
  void on_gone(std::function<void()> gone) override { gone_ = std::move(gone); }
  void post(std::function<void()> function) override {
    boost::asio::post(connection_->socket_.get_executor(),
                      [connection = connection_, function = std::move(function)] {
                        connection->guarded(function);
                      });
  }
  void after(std::chrono::milliseconds delay, std::function<void()> function) override {
    if (over_) return;
    connection_->exchange_timer_.expires_after(delay);
    connection_->exchange_timer_.async_wait(
        [connection = connection_,
         function = std::move(function)](boost::system::error_code error) {
          if (!error) connection->guarded(function);
        });
  }
  bool answered() const override { return answered_; }
  bool take_turn() override {
    LongRequests& long_requests = connection_->long_requests_;
    if (!turn_) turn_ = long_requests.take_turn(place_ != nullptr);
    if (turn_) {
      place_.reset();
    } else if (!place_) {
      place_ = long_requests.take_place();
      if (!waits_since_) waits_since_ = std::chrono::steady_clock::now();
    }
    return turn_ != nullptr;
  }
  std::chrono::steady_clock::duration waited() const override {
    if (!waits_since_) return {};
    return std::chrono::steady_clock::now() - *waits_since_;
  }

  // False: it waits for its turn.
  bool serve() {
    const TurnsEnd end{turn_};
    // To parse and tokenize what a large body holds takes up to seconds.
    const bool is_long = place_ || request_.body.size() > kSmallBodyBytes;
    if (!is_long || take_turn()) connection_->application_.serve(shared_from_this());
    return !place_;
  }

  void end() {
    over_ = true;
    gone_ = {};
  }
  void lose() {
    over_ = true;
    if (const auto gone = std::exchange(gone_, {})) gone();
  }

 private:
  void note(const HttpResponse& response) {
    answered_ = true;
    connection_->application_.answered(request_, response);
  }

  struct TurnsEnd {
    LongRequests::Turn& turn;
    ~TurnsEnd() { turn.reset(); }
  };

  std::shared_ptr<Connection> connection_;
  HttpRequest request_;
  LongRequests::Turn turn_;    // while it is served
  LongRequests::Place place_;  // while it waits for that
  std::optional<std::chrono::steady_clock::time_point> waits_since_;
  std::function<void()> gone_;
  bool answered_ = false;
  bool streaming_ = false;
  bool over_ = false;
};

}  // namespace foresail
