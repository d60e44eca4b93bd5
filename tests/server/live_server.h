// Real servers on a free loopback port, with models/tales and MTP drafts.
#pragma once

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "server/server.h"
#include "server/test_client.h"

namespace foresail {

ServeOptions tales_options();
// One for all tests of a process that change nothing in it.
Server& shared_server();
// Until `holds` does, at most `seconds`; whether it did.
bool eventually(const std::function<bool()>& holds, double seconds = 10);
// The value of a sample of /metrics by its name and, if given, a label; -1 when it is not there.
double metric(int port, const std::string& name, const std::string& label = {});
// Pages of the cache that requests hold.
double owned_pages(int port);
// The same request's output from the engine itself, without speculation and without HTTP.
std::string plain_text(Request request);

class LiveServer : public testing::Test {
 protected:
  int port() const { return shared_server().port(); }
  TestResponse get(const std::string& path) { return TestClient(port()).get(path); }
  TestResponse post(const std::string& path, const OrderedJson& body) {
    return TestClient(port()).post(path, body);
  }
  // Adds prompt, temperature 0 and max_tokens 12 where they are missing.
  TestResponse complete(OrderedJson fields);
  std::string text(const OrderedJson& fields);
  // Adds one user message likewise.
  TestResponse chat(OrderedJson fields);
  // The status is 400 and the error says these.
  void expect_refused(const TestResponse& response, const std::string& param,
                      const std::string& message, int status = 400);
};

}  // namespace foresail
