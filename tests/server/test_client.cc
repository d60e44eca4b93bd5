#include "server/test_client.h"

#include <arpa/inet.h>
#include <fmt/core.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <stdexcept>

namespace foresail {

OrderedJson TestResponse::json() const {
  return OrderedJson::parse(body, nullptr, false);
}

std::vector<std::string> TestResponse::events() const {
  std::vector<std::string> events;
  for (size_t at = 0; at < body.size();) {
    const size_t end = body.find("\n\n", at);
    const std::string event = body.substr(at, end - at);
    if (event.starts_with("data: ")) events.push_back(event.substr(6));
    at = end == std::string::npos ? body.size() : end + 2;
  }
  return events;
}

std::vector<OrderedJson> TestResponse::chunks() const {
  std::vector<OrderedJson> chunks;
  for (const std::string& event : events())
    if (event != "[DONE]") chunks.push_back(OrderedJson::parse(event));
  return chunks;
}

TestClient::TestClient(int port, int timeout_s) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
  const timeval timeout{.tv_sec = timeout_s};
  setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0)
    throw std::runtime_error("cannot connect");
}

TestClient::TestClient(const std::string& unix_path) : socket_(::socket(AF_UNIX, SOCK_STREAM, 0)) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  unix_path.copy(address.sun_path, sizeof address.sun_path - 1);
  if (connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0)
    throw std::runtime_error("cannot connect");
}

TestClient::~TestClient() {
  close();
}

void TestClient::close() {
  if (socket_ >= 0) ::close(socket_);
  socket_ = -1;
}

void TestClient::send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return;
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
}

bool TestClient::fill() {
  char buffer[65536];
  ssize_t count = 0;
  do {  // with a timeout, a stopped process that goes on finds its call interrupted
    count = recv(socket_, buffer, sizeof buffer, 0);
  } while (count < 0 && errno == EINTR);
  if (count > 0) input_.append(buffer, static_cast<size_t>(count));
  return count > 0;
}

std::string TestClient::read_until(std::string_view text) {
  while (input_.find(text) == std::string::npos)
    if (!fill()) break;
  return input_;
}

bool TestClient::at_end() {
  while (fill()) {
  }
  char byte = 0;
  return recv(socket_, &byte, 1, 0) == 0;
}

void TestClient::shut_write() {
  shutdown(socket_, SHUT_WR);
}

TestResponse TestClient::read(bool head_only) {
  TestResponse response;
  size_t head_end = 0;
  while ((head_end = input_.find("\r\n\r\n")) == std::string::npos)
    if (!fill()) return response;
  std::string head = input_.substr(0, head_end + 2);
  input_.erase(0, head_end + 4);
  response.status = std::stoi(head.substr(9, 3));
  for (size_t at = head.find("\r\n") + 2; at < head.size();) {
    const size_t end = head.find("\r\n", at);
    const std::string line = head.substr(at, end - at);
    std::string name = line.substr(0, line.find(':'));
    for (char& c : name) c = static_cast<char>(tolower(c));
    response.fields[name] = line.substr(line.find(':') + 2);
    at = end + 2;
  }
  if (response.status == 100) return read(head_only);
  response.ended = head_only || response.status == 204;
  if (response.ended) return response;
  if (response.fields.count("transfer-encoding") > 0) {
    for (;;) {
      size_t line_end = 0;
      while ((line_end = input_.find("\r\n")) == std::string::npos)
        if (!fill()) return response;
      const size_t size = std::stoul(input_.substr(0, line_end), nullptr, 16);
      while (input_.size() < line_end + 2 + size + 2)
        if (!fill()) return response;
      response.body += input_.substr(line_end + 2, size);
      input_.erase(0, line_end + 2 + size + 2);
      if (size == 0) break;
    }
  } else if (response.fields.count("content-length") > 0) {
    const size_t size = std::stoul(response.fields["content-length"]);
    while (input_.size() < size)
      if (!fill()) return response;
    response.body = input_.substr(0, size);
    input_.erase(0, size);
  } else {
    while (fill()) {
    }
    response.body = std::exchange(input_, {});
  }
  response.ended = true;
  return response;
}

std::string request_text(const std::string& method, const std::string& path,
                         const std::string& body, const std::string& fields) {
  std::string text = fmt::format("{} {} HTTP/1.1\r\nHost: localhost\r\n{}", method, path, fields);
  if (!body.empty() && fields.find("Content-Type") == std::string::npos)
    text += "Content-Type: application/json\r\n";
  if (!body.empty() || method == "POST") text += fmt::format("Content-Length: {}\r\n", body.size());
  return text + "\r\n" + body;
}

TestResponse TestClient::request(const std::string& method, const std::string& path,
                                 const std::string& body, const std::string& fields) {
  send(request_text(method, path, body, fields));
  return read(method == "HEAD");
}

TestResponse TestClient::post(const std::string& path, const OrderedJson& body) {
  return request("POST", path, json_text(body));
}

}  // namespace foresail
