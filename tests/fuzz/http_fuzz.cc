// Any bytes on a connection: the server side of a socket pair frames them, answers, and closes or
// waits; it must not crash, and every answer it writes begins with a status line.
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/write.hpp>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "server/http/connection.h"

namespace {

namespace asio = boost::asio;

class Echo final : public foresail::HttpApplication {
 public:
  void serve(std::shared_ptr<foresail::Exchange> exchange) override {
    const foresail::HttpRequest& request = exchange->request();
    if (request.path == "/stream") {
      exchange->start_stream({.content_type = "text/event-stream"});
      exchange->write("data: a\n\n");
      return exchange->finish();
    }
    exchange->send({.body = request.method + request.path + request.body});
  }
  foresail::HttpResponse fault(int status, std::string_view code,
                               const std::string& message) override {
    return {.status = status, .body = std::string(code) + message};
  }
  void answered(const foresail::HttpRequest&, const foresail::HttpResponse&) override {}
  bool closing() const override { return false; }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static foresail::HttpLimits limits = [] {
    foresail::HttpLimits small;
    small.max_body_bytes = 4096;
    small.max_header_bytes = 2048;
    small.max_header_fields = 16;
    small.max_header_line_bytes = 512;
    return small;
  }();
  static foresail::HttpCounters counters;
  static foresail::LongRequests long_requests(1);
  static Echo application;
  asio::io_context context;
  asio::ip::tcp::acceptor acceptor(context, {asio::ip::address_v4::loopback(), 0});
  asio::ip::tcp::socket client(context);
  client.connect(acceptor.local_endpoint());
  foresail::Connection::Socket socket =
      acceptor.accept(foresail::Connection::Strand(context.get_executor()));
  std::make_shared<foresail::Connection>(std::move(socket), limits, counters, long_requests,
                                         application)
      ->start();
  // The first byte says where the bytes are cut in two.
  const size_t cut = size == 0 ? 0 : data[0] * size / 256;
  boost::system::error_code error;
  asio::write(client, asio::buffer(data, cut), error);
  context.poll();
  asio::write(client, asio::buffer(data + cut, size - cut), error);
  context.poll();
  client.shutdown(asio::ip::tcp::socket::shutdown_send, error);
  for (int i = 0; i < 4; ++i) context.poll();
  client.non_blocking(true, error);
  std::string answer(1 << 16, '\0');
  answer.resize(client.read_some(asio::buffer(answer), error));
  if (!answer.empty() && !answer.starts_with("HTTP/1.1 ")) std::abort();
  client.close(error);
  context.poll();
  return 0;
}
