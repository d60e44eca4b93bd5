#include "server/http/http_server.h"

#include <malloc.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include <boost/asio/basic_socket_acceptor.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/memory_reserve.h"
#include "server/http/connection.h"
#include "server/http/loopback.h"

namespace foresail {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using Unix = asio::local::stream_protocol;
using Acceptor = asio::basic_socket_acceptor<asio::generic::stream_protocol, Connection::Strand>;
using boost::system::error_code;

constexpr std::chrono::milliseconds kAcceptPause{100};  // when descriptors have run out
constexpr std::chrono::milliseconds kPoll{5};
constexpr std::chrono::seconds kQuiet{2};  // after which nobody waits for what a trim holds up
constexpr int kWarmUpStrands = 4096;
constexpr std::string_view kFull =
    "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nRetry-After: 1\r\nConnection: "
    "close\r\n\r\n";

// The next port of the address that nobody listens on; 0: none among the next hundred.
int next_free_port(tcp::endpoint endpoint) {
  asio::io_context context;
  for (int port = endpoint.port() + 1; port <= std::min(endpoint.port() + 100, 65535); ++port) {
    tcp::acceptor probe(context, endpoint.protocol());
    error_code error;
    probe.set_option(tcp::acceptor::reuse_address(true), error);
    probe.bind({endpoint.address(), static_cast<uint16_t>(port)}, error);
    if (!error) probe.listen(1, error);
    if (!error) return port;
  }
  return 0;
}

std::string listen_advice(error_code error, const tcp::endpoint& endpoint) {
  if (error == asio::error::access_denied) return " (ports below 1024 are root's; try --port 8000)";
  if (error == boost::system::errc::address_not_available)
    return " (this machine has no such address; --host 0.0.0.0 listens on all it has)";
  if (error != asio::error::address_in_use) return "";
  const int free_port = next_free_port(endpoint);
  return fmt::format(" (`ss -ltnp 'sport = :{}'` shows by whom{})", endpoint.port(),
                     free_port == 0 ? "" : fmt::format("; --port {} is free", free_port));
}

}  // namespace

bool is_loopback(const ListenAddress& address) {
  if (!address.unix_path.empty()) return false;
  error_code error;
  const auto ip = asio::ip::make_address(address.host, error);
  return error ? address.host == "localhost" : is_loopback_address(ip);
}

struct HttpServer::Parts {
  ListenAddress address;
  HttpLimits limits;
  HttpApplication& application;
  HttpCounters counters;
  LongRequests long_requests;
  asio::io_context context;
  Acceptor acceptor{Connection::Strand(context.get_executor())};
  asio::steady_timer accept_timer{acceptor.get_executor()};
  asio::steady_timer trim_timer{context};
  std::mutex mutex;
  std::vector<std::weak_ptr<Connection>> connections;  // some are gone already
  std::vector<std::thread> threads;
  struct stat file {};  // that was made; st_ino 0: none

  Parts(ListenAddress the_address, int thread_count, HttpLimits the_limits,
        HttpApplication& the_application)
      : address(std::move(the_address)),
        limits(the_limits),
        application(the_application),
        long_requests(thread_count) {}
  ~Parts() {
    if (is_our_file()) unlink(address.unix_path.c_str());
  }

  void listen();
  void listen(const asio::generic::stream_protocol::endpoint& endpoint);
  void listen_on_port();
  void listen_on_file();
  bool is_our_file() const;
  void accept();
  void accept_later();
  bool take(Connection::Socket socket);
  void trim_when_quiet();
  void run();
  template <typename Action>
  void insist(Action&& action);
  void serve(Connection::Socket socket);
  template <typename Action>
  void for_each(Action&& action);
};

void HttpServer::Parts::listen() {
  if (address.unix_path.empty())
    listen_on_port();
  else
    listen_on_file();
}

void HttpServer::Parts::listen(const asio::generic::stream_protocol::endpoint& endpoint) {
  acceptor.open(endpoint.protocol());
  acceptor.set_option(Acceptor::reuse_address(true));
  acceptor.bind(endpoint);
  acceptor.listen(4096);
}

void HttpServer::Parts::listen_on_port() {
  const auto& [host, port, unused] = address;
  std::optional<tcp::endpoint> wanted;
  try {
    tcp::resolver resolver(context);
    const auto found = resolver.resolve(host.empty() ? "0.0.0.0" : host, std::to_string(port),
                                        tcp::resolver::passive);
    wanted = found.begin()->endpoint();
    listen(*wanted);
  } catch (const boost::system::system_error& error) {
    if (acceptor.is_open()) acceptor.close();
    throw_error(ErrorCode::kUsage, "cannot listen on {}:{}: {}{}", host, port,
                error.code().message(), wanted ? listen_advice(error.code(), *wanted) : "");
  }
}

// A server that was killed leaves its file behind; one that lives still answers there.
void HttpServer::Parts::listen_on_file() {
  const std::string& path = address.unix_path;
  try {
    const Unix::endpoint endpoint(path);
    Unix::socket probe(context);
    error_code error;
    probe.connect(endpoint, error);
    if (!error)
      throw_error(ErrorCode::kUsage, "cannot listen on {}: another server does (`ss -lxp src {}`)",
                  path, path);
    // Of no other kind of file does a connection say so.
    if (error == asio::error::connection_refused && std::filesystem::is_socket(path))
      unlink(path.c_str());
    listen(endpoint);
    if (lstat(path.c_str(), &file) != 0) file = {};
  } catch (const boost::system::system_error& error) {
    throw_error(ErrorCode::kUsage, "cannot listen on {}: {}", path, error.code().message());
  }
}

// Somebody may have removed it, and another server may listen there by now.
bool HttpServer::Parts::is_our_file() const {
  struct stat now {};
  return file.st_ino != 0 && lstat(address.unix_path.c_str(), &now) == 0 &&
         now.st_ino == file.st_ino && now.st_dev == file.st_dev;
}

// Tries until there is memory to go on with: a server that no longer accepts is no server.
template <typename Action>
void HttpServer::Parts::insist(Action&& action) {
  for (;;) {
    try {
      return action();
    } catch (const std::bad_alloc&) {
      ++counters.out_of_memory_total;
      std::this_thread::sleep_for(kAcceptPause);
    }
  }
}

void HttpServer::Parts::accept() {
  insist([this] {
    acceptor.async_accept(Connection::Strand(context.get_executor()),
                          [this](error_code error, Connection::Socket socket) {
                            if (error == asio::error::operation_aborted) return;
                            if (!error && take(std::move(socket))) return accept();
                            accept_later();
                          });
  });
}

// Descriptors or memory have run out.
void HttpServer::Parts::accept_later() {
  insist([this] {
    accept_timer.expires_after(kAcceptPause);
    accept_timer.async_wait([this](error_code error) {
      if (!error) accept();
    });
  });
}

// False when there is little memory or none: the socket is closed then, or the next one waits.
bool HttpServer::Parts::take(Connection::Socket socket) {
  try {
    const MemoryReserve::Watch reserve;
    serve(std::move(socket));
    return MemoryReserve::fill() || !reserve.drew();
  } catch (const std::bad_alloc&) {
    ++counters.out_of_memory_total;
    return false;
  }
}

// What a body of 32 MiB was parsed into is a hundred times a server's usual heap, and the library
// keeps it.
void HttpServer::Parts::trim_when_quiet() {
  insist([this] {
    trim_timer.expires_after(kQuiet);
    trim_timer.async_wait([this](error_code error) {
      if (error) return;
      if (long_requests.have_gone_quiet()) malloc_trim(0);
      trim_when_quiet();
    });
  });
}

// Connections catch what happens in them. What comes out here happened to an operation on its way
// to its handler, perhaps to the one that accepts.
void HttpServer::Parts::run() {
  for (;;) {
    try {
      context.run();
      return;
    } catch (const std::bad_alloc&) {
      ++counters.out_of_memory_total;
      insist([this] {
        asio::post(acceptor.get_executor(), [this] {
          error_code ignored;
          acceptor.cancel(ignored);
          accept();
        });
      });
    }
  }
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
  auto connection =
      std::make_shared<Connection>(std::move(socket), limits, counters, long_requests, application);
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

HttpServer::HttpServer(ListenAddress address, int thread_count, HttpLimits limits,
                       HttpApplication& application)
    : parts_(std::make_unique<Parts>(std::move(address), thread_count, limits, application)) {
  // Strands share a few hundred mutexes, which the library makes when a strand first wants one:
  // then a failing allocation is more than it survives. Now it is an error at start-up.
  for (int i = 0; i < kWarmUpStrands; ++i)
    Connection::Strand strand(parts_->context.get_executor());
  parts_->listen();
  parts_->accept();
  parts_->trim_when_quiet();
  for (int i = 0; i < thread_count; ++i)
    parts_->threads.emplace_back([parts = parts_.get()] {
      pthread_setname_np(pthread_self(), "foresail-http");
      parts->run();
    });
}

HttpServer::~HttpServer() {
  stop();
}

void HttpServer::stop() {
  parts_->context.stop();
  for (std::thread& thread : parts_->threads) thread.join();
  parts_->threads.clear();
}

int HttpServer::port() const {
  if (!parts_->address.unix_path.empty()) return 0;
  const auto bound = parts_->acceptor.local_endpoint();
  tcp::endpoint address;
  std::memcpy(address.data(), bound.data(), std::min(bound.size(), address.capacity()));
  return address.port();
}

const HttpCounters& HttpServer::counters() const {
  return parts_->counters;
}

bool HttpServer::has_long_requests() const {
  return !parts_->long_requests.none();
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
