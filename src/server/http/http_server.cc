#include "server/http/http_server.h"

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <mutex>
#include <thread>
#include <vector>

#include "base/error.h"
#include "server/http/connection.h"

namespace foresail {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

constexpr std::chrono::milliseconds kAcceptPause{100};  // when descriptors have run out
constexpr std::chrono::milliseconds kPoll{5};
constexpr std::string_view kFull =
    "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nRetry-After: 1\r\nConnection: "
    "close\r\n\r\n";

}  // namespace

struct HttpServer::Parts {
  HttpLimits limits;
  HttpApplication& application;
  HttpCounters counters;
  asio::io_context context;
  tcp::acceptor acceptor{context};
  asio::steady_timer accept_timer{context};
  std::mutex mutex;
  std::vector<std::weak_ptr<Connection>> connections;  // some are gone already
  std::vector<std::thread> threads;

  Parts(HttpLimits the_limits, HttpApplication& the_application)
      : limits(the_limits), application(the_application) {}

  void listen(const std::string& host, int port);
  void accept();
  void serve(Connection::Socket socket);
  template <typename Action>
  void for_each(Action&& action);
};

void HttpServer::Parts::listen(const std::string& host, int port) {
  try {
    tcp::resolver resolver(context);
    const auto found = resolver.resolve(host.empty() ? "0.0.0.0" : host, std::to_string(port),
                                        tcp::resolver::passive);
    const tcp::endpoint endpoint = found.begin()->endpoint();
    acceptor.open(endpoint.protocol());
    acceptor.set_option(tcp::acceptor::reuse_address(true));
    acceptor.bind(endpoint);
    acceptor.listen(4096);
  } catch (const boost::system::system_error& error) {
    const bool taken = error.code() == asio::error::address_in_use;
    throw_error(ErrorCode::kUsage, "cannot listen on {}:{}: {}{}", host, port,
                error.code().message(),
                taken ? fmt::format(" (`ss -ltnp 'sport = :{}'` shows by whom; try --port {})",
                                    port, port + 1)
                      : "");
  }
}

void HttpServer::Parts::accept() {
  acceptor.async_accept(Connection::Strand(context.get_executor()),
                        [this](error_code error, Connection::Socket socket) {
                          if (error == asio::error::operation_aborted) return;
                          if (!error) {
                            serve(std::move(socket));
                            return accept();
                          }
                          accept_timer.expires_after(kAcceptPause);
                          accept_timer.async_wait([this](error_code cancelled) {
                            if (!cancelled) accept();
                          });
                        });
}

void HttpServer::Parts::serve(Connection::Socket socket) {
  ++counters.accepted_total;
  if (counters.connections >= limits.max_connections) {
    ++counters.over_connections_total;
    error_code ignored;
    socket.non_blocking(true, ignored);
    socket.write_some(asio::buffer(kFull), ignored);
    return;  // closes it
  }
  auto connection = std::make_shared<Connection>(std::move(socket), limits, counters, application);
  {
    const std::lock_guard lock(mutex);
    if (connections.size() > 64 &&
        connections.size() > 2 * static_cast<size_t>(counters.connections.load()))
      std::erase_if(connections, [](const auto& entry) { return entry.expired(); });
    connections.push_back(connection);
  }
  connection->start();
}

template <typename Action>
void HttpServer::Parts::for_each(Action&& action) {
  const std::lock_guard lock(mutex);
  for (const auto& entry : connections)
    if (const auto connection = entry.lock()) action(*connection);
}

HttpServer::HttpServer(const std::string& host, int port, int thread_count, HttpLimits limits,
                       HttpApplication& application)
    : parts_(std::make_unique<Parts>(limits, application)) {
  parts_->listen(host, port);
  parts_->accept();
  for (int i = 0; i < thread_count; ++i)
    parts_->threads.emplace_back([this] { parts_->context.run(); });
}

HttpServer::~HttpServer() {
  parts_->context.stop();
  for (std::thread& thread : parts_->threads) thread.join();
}

int HttpServer::port() const {
  return parts_->acceptor.local_endpoint().port();
}

const HttpCounters& HttpServer::counters() const {
  return parts_->counters;
}

void HttpServer::close_idle() {
  parts_->for_each([](Connection& connection) { connection.close_when_idle(); });
}

void HttpServer::wait_closed(std::chrono::milliseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  while (parts_->counters.connections > 0 && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(kPoll);
  parts_->for_each([](Connection& connection) { connection.drop(); });
}

}  // namespace foresail
