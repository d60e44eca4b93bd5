#include "bench/serve/http_client.h"

#include <fmt/core.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>

#include "base/error.h"

namespace foresail {
namespace {

class Socket {
 public:
  Socket(const HttpAddress& address, int timeout_s) {
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    if (getaddrinfo(address.host.c_str(), address.port.c_str(), &hints, &found) != 0) {
      error_ = fmt::format("there is no host {}", address.host);
      return;
    }
    for (const addrinfo* one = found; one != nullptr && descriptor_ < 0; one = one->ai_next) {
      descriptor_ = socket(one->ai_family, one->ai_socktype | SOCK_CLOEXEC, one->ai_protocol);
      if (descriptor_ < 0) continue;
      const timeval timeout{timeout_s, 0};
      setsockopt(descriptor_, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
      setsockopt(descriptor_, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof timeout);
      const int on = 1;
      setsockopt(descriptor_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
      if (connect(descriptor_, one->ai_addr, one->ai_addrlen) == 0) break;
      const int reason = errno;
      // Of several addresses the one where a machine answered counts.
      if (!refused_)
        error_ = fmt::format("cannot connect to {}:{}: {}", address.host, address.port,
                             std::strerror(reason));
      refused_ = refused_ || reason == ECONNREFUSED;
      close(std::exchange(descriptor_, -1));
    }
    freeaddrinfo(found);
  }
  ~Socket() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  Socket(const Socket&) = delete;

  bool open() const { return descriptor_ >= 0; }
  const std::string& error() const { return error_; }
  bool refused() const { return refused_; }
  bool send_all(std::string_view bytes) const {
    while (!bytes.empty()) {
      const ssize_t sent = send(descriptor_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(sent));
    }
    return true;
  }
  // Empty at the end, and when something went wrong.
  std::string_view receive() {
    const ssize_t got = recv(descriptor_, buffer_, sizeof buffer_, 0);
    return {buffer_, got > 0 ? static_cast<size_t>(got) : 0};
  }

 private:
  int descriptor_ = -1;
  bool refused_ = false;
  std::string error_;
  char buffer_[64 << 10];
};

// The body of an answer out of what comes after its header, whichever way it is framed.
class BodyReader {
 public:
  BodyReader(std::string_view header, HttpReply& reply, const HttpCall& call)
      : reply_(reply), call_(call) {
    std::string lower(header);
    for (char& c : lower) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c | 0x20 : c);
    chunked_ = lower.find("\r\ntransfer-encoding: chunked") != lower.npos;
    const std::string_view length = "\r\ncontent-length: ";
    const size_t at = lower.find(length);
    if (at != lower.npos)
      std::from_chars(lower.data() + at + length.size(), lower.data() + lower.size(), left_);
    has_length_ = at != lower.npos;
  }

  void take(std::string_view bytes) {
    if (!chunked_) {
      deliver(bytes.substr(0, has_length_ ? left_ : bytes.npos));
      left_ -= has_length_ ? std::min(left_, bytes.size()) : 0;
      return;
    }
    held_ += bytes;
    while (!done_) {
      if (left_ > 0) {
        const size_t part = std::min(left_, held_.size());
        if (part == 0) return;
        deliver(std::string_view(held_).substr(0, part));
        held_.erase(0, part);
        left_ -= part;
        if (left_ > 0) return;
        skips_line_end_ = true;
      }
      if (skips_line_end_) {
        if (held_.size() < 2) return;
        held_.erase(0, 2);
        skips_line_end_ = false;
      }
      const size_t end = held_.find("\r\n");
      if (end == held_.npos) return;
      const auto [rest, error] = std::from_chars(held_.data(), held_.data() + end, left_, 16);
      if (error != std::errc()) {
        reply_.error = "the answer's chunks are malformed";
        done_ = true;
        return;
      }
      held_.erase(0, end + 2);
      done_ = left_ == 0;
    }
  }
  bool complete() const { return chunked_ ? done_ : has_length_ && left_ == 0; }
  bool ends_with_connection() const { return !chunked_ && !has_length_; }

 private:
  void deliver(std::string_view piece) {
    if (piece.empty()) return;
    if (call_.on_piece && reply_.status == 200)
      call_.on_piece(piece);
    else
      reply_.body += piece;
  }

  HttpReply& reply_;
  const HttpCall& call_;
  bool chunked_ = false, has_length_ = false, done_ = false, skips_line_end_ = false;
  size_t left_ = 0;  // bytes of the body or of the chunk under way
  std::string held_;
};

std::string request_text(const HttpAddress& address, const HttpCall& call) {
  std::string text =
      fmt::format("{} {}{} HTTP/1.1\r\nHost: {}:{}\r\nConnection: close\r\n", call.method,
                  address.prefix, call.path, address.host, address.port);
  for (const auto& [name, value] : call.fields) text += fmt::format("{}: {}\r\n", name, value);
  if (call.method != "GET")
    text +=
        fmt::format("Content-Type: application/json\r\nContent-Length: {}\r\n", call.body.size());
  return text + "\r\n" + call.body;
}

}  // namespace

HttpAddress parse_http_address(const std::string& url) {
  const std::string scheme = "http://";
  if (!url.starts_with(scheme))
    throw_error(ErrorCode::kUsage, "--base-url {}: write http://HOST:PORT (without TLS)", url);
  HttpAddress address;
  std::string place = url.substr(scheme.size());
  if (const size_t slash = place.find('/'); slash != place.npos) {
    address.prefix = place.substr(slash);
    place.resize(slash);
  }
  const auto drop_slashes = [&] {
    while (address.prefix.ends_with('/')) address.prefix.pop_back();
  };
  drop_slashes();
  // What OpenAI's clients call the base URL ends with the version, which our paths begin with.
  if (address.prefix.ends_with("/v1")) {
    address.prefix.resize(address.prefix.size() - 3);
    drop_slashes();
  }
  const size_t bracket = place.find(']');
  const size_t colon = place.find(':', bracket == place.npos ? 0 : bracket);
  address.port = colon == place.npos ? "80" : place.substr(colon + 1);
  address.host = place.substr(0, colon);
  if (address.host.starts_with('[')) address.host = address.host.substr(1, bracket - 1);
  if (address.host.empty() || address.port.empty() ||
      address.port.find_first_not_of("0123456789") != address.port.npos)
    throw_error(ErrorCode::kUsage, "--base-url {}: write http://HOST:PORT", url);
  return address;
}

HttpReply http_call(const HttpAddress& address, const HttpCall& call) {
  HttpReply reply;
  Socket socket(address, call.timeout_s);
  if (!socket.open()) {
    reply.error = socket.error();
    reply.refused = socket.refused();
    return reply;
  }
  if (!socket.send_all(request_text(address, call))) {
    reply.error = "the server closed the connection while the request was sent";
    return reply;
  }
  std::string header;
  size_t end = std::string::npos;
  while (end == std::string::npos && header.size() < (64 << 10)) {
    const std::string_view bytes = socket.receive();
    if (bytes.empty()) break;
    header += bytes;
    end = header.find("\r\n\r\n");
  }
  if (end == std::string::npos || !header.starts_with("HTTP/1.") || header.size() < 12) {
    reply.error = "the connection ended without an answer";
    return reply;
  }
  reply.status = std::atoi(header.c_str() + 9);
  BodyReader body(std::string_view(header).substr(0, end + 2), reply, call);
  body.take(std::string_view(header).substr(end + 4));
  while (!body.complete()) {
    const std::string_view bytes = socket.receive();
    if (bytes.empty()) break;
    body.take(bytes);
  }
  if (!body.complete() && !body.ends_with_connection() && reply.error.empty())
    reply.error = "the connection ended inside the answer";
  return reply;
}

}  // namespace foresail
