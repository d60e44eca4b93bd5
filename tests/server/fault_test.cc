// What goes wrong inside: logits that are no numbers, pages that run out, allocations that fail.
// One request may end for it; the others' outputs are what they are without it.
#include <pthread.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <new>
#include <thread>

#include "base/json_tree.h"
#include "base/memory_reserve.h"
#include "checkpoint/model_writer.h"
#include "server/live_server.h"

// Allocations of one kind of thread, of which one fails.
namespace {
struct FailingAllocation {
  std::atomic<const char*> thread{nullptr};  // the name of those that count; null: none
  std::atomic<size_t> least_bytes{0};
  std::atomic<int64_t> countdown{0};
} failing;

bool fails(size_t bytes) {
  const char* const wanted = failing.thread.load(std::memory_order_relaxed);
  if (wanted == nullptr || bytes < failing.least_bytes) return false;
  char name[16] = {};
  pthread_getname_np(pthread_self(), name, sizeof name);
  return std::string_view(name) == wanted && failing.countdown.fetch_sub(1) == 1;
}

// As the library's own: what fails is tried again as long as there is a handler.
void* allocate(size_t bytes, size_t alignment) {
  for (;;) {
    void* memory = nullptr;
    if (!fails(bytes))
      memory = alignment <= alignof(std::max_align_t)
                   ? std::malloc(bytes == 0 ? 1 : bytes)
                   : std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
    if (memory != nullptr) return memory;
    const std::new_handler handler = std::get_new_handler();
    if (handler == nullptr) throw std::bad_alloc();
    handler();
  }
}
}  // namespace

// Not inlined, or the compiler sees malloc() beside delete and takes it for a mistake.
[[gnu::noinline]] void* operator new(size_t bytes) {
  return allocate(bytes, 1);
}
[[gnu::noinline]] void* operator new(size_t bytes, std::align_val_t alignment) {
  return allocate(bytes, static_cast<size_t>(alignment));
}
// Temporary buffers of std::stable_sort come from here and go to an ordinary delete.
[[gnu::noinline]] void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  try {
    return allocate(bytes, 1);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, size_t, std::align_val_t) noexcept {
  std::free(memory);
}

namespace foresail {
namespace {

// Number `n` of the allocations of at least so many bytes on threads of that name fails while this
// lives.
class AllocationFault {
 public:
  AllocationFault(const char* thread, int64_t n, size_t least_bytes = 0) {
    failing.least_bytes = least_bytes;
    failing.countdown = n;
    failing.thread = thread;
  }
  ~AllocationFault() { failing.thread = nullptr; }
  bool happened() const { return failing.countdown <= 0; }
};

std::string text_of(const TestResponse& response) {
  if (response.fields.at("content-type") == "application/json")
    return response.json()["choices"][0]["text"].get<std::string>();
  std::string text;
  for (const OrderedJson& chunk : response.chunks())
    text += chunk["choices"][0]["text"].get<std::string>();
  return text;
}

const OrderedJson kShort = {{"prompt", "a"}, {"max_tokens", 3}, {"temperature", 0}};

void expect_nothing_left(Server& server, const std::string& text) {
  const int port = server.port();
  EXPECT_TRUE(eventually([&] { return owned_pages(port) == 0; }));
  EXPECT_TRUE(eventually([&] { return server.open_requests().empty(); }));
  EXPECT_TRUE(eventually([&] {
    return TestClient(port).post("/flush_cache", nullptr).status == 200;
  })) << "a stream still counts";
  EXPECT_TRUE(
      eventually([&] { return metric(port, "foresail:http_connections", "state=\"busy\"") == 1; }));
  EXPECT_EQ(text_of(TestClient(port).post("/v1/completions", kShort)), text);
}

// Of the threads that serve connections, from accepting to the last byte, without a reserve of
// memory. Smaller ones happen in destructors of JSON values too, where nothing may be thrown.
TEST(FaultServer, ALargeAllocationOfAConnectionMayFail) {
  Server server(tales_options());
  server.load();
  const std::string text = text_of(TestClient(server.port()).post("/v1/completions", kShort));
  int64_t tried = 0, refused = 0, closed = 0;
  for (const bool stream : {false, true}) {
    OrderedJson body = kShort;
    body["stream"] = stream;
    for (int64_t n = 1;; ++n) {
      const AllocationFault fault("foresail-http", n, 256);
      TestClient client(server.port(), 5);
      const TestResponse response = client.post("/v1/completions", body);
      if (response.status == 200 && response.ended) {
        EXPECT_EQ(text_of(response), text) << n;
      } else if (response.status == 0 || response.status == 200) {
        EXPECT_TRUE(client.at_end()) << n << ": neither answered nor closed";
        ++closed;
      } else {
        EXPECT_EQ(response.status, 503) << n;
        EXPECT_EQ(response.json()["error"]["code"], "out_of_memory");
        ++refused;
      }
      ++tried;
      if (!fault.happened() || testing::Test::HasFailure()) break;
    }
  }
  EXPECT_GT(refused, 5);
  EXPECT_GT(tried, refused + closed);
  RecordProperty("tried", static_cast<int>(tried));
  EXPECT_GT(metric(server.port(), "foresail:requests_rejected_total", "out_of_memory"), 0);
  expect_nothing_left(server, text);
}

// A step that finds no memory fails its requests, and the next step is as good as any.
TEST(FaultServer, ALargeAllocationOfTheEngineMayFail) {
  ServeOptions options = tales_options();
  options.engine.max_total_tokens = 4096;
  Server server(options);
  server.load();
  const std::string prompt(900, 'x');
  const OrderedJson body = {{"prompt", prompt}, {"max_tokens", 3}, {"temperature", 0}};
  const std::string text = text_of(TestClient(server.port()).post("/v1/completions", body));
  int failed = 0;
  for (int64_t n = 1;; ++n) {
    EXPECT_TRUE(eventually(
        [&] { return TestClient(server.port()).post("/flush_cache", nullptr).status == 200; }));
    const AllocationFault fault("foresail-engine", n, 16 << 10);
    const TestResponse response = TestClient(server.port(), 20).post("/v1/completions", body);
    if (response.status == 200) {
      EXPECT_EQ(text_of(response), text) << n;
    } else {
      EXPECT_EQ(response.status, 500) << n;
      ++failed;
    }
    if (!fault.happened() || testing::Test::HasFailure()) break;
  }
  EXPECT_GT(failed, 0);
  EXPECT_EQ(text_of(TestClient(server.port()).post("/v1/completions", body)), text);
}

// Any at all, down to a byte: the reserve has memory for it, and nobody notices.
class AnyAllocation : public testing::TestWithParam<const char*> {};

TEST_P(AnyAllocation, IsServedByTheReserve) {
  const MemoryReserve reserve(1 << 20);
  Server server(tales_options());
  server.load();
  const OrderedJson chat = {{"messages", {{{"role", "user"}, {"content", "The sea"}}}},
                            {"max_tokens", 4},
                            {"temperature", 0},
                            {"logprobs", true},
                            {"top_logprobs", 2},
                            {"stream", true}};
  const auto run = [&] {
    const TestResponse whole = TestClient(server.port(), 20).post("/v1/completions", kShort);
    EXPECT_EQ(whole.status, 200) << whole.body;
    const TestResponse events = TestClient(server.port(), 20).post("/v1/chat/completions", chat);
    EXPECT_TRUE(events.ended);
    std::string text = whole.status == 200 ? text_of(whole) : "refused", logprobs;
    // Tokens that are ready together share an event.
    for (const OrderedJson& chunk : events.chunks())
      for (const OrderedJson& choice : chunk["choices"]) {
        text += choice["delta"].value("content", "");
        if (choice["logprobs"].is_object())
          for (const OrderedJson& token : choice["logprobs"]["content"])
            logprobs += json_text(token);
      }
    return text + logprobs;
  };
  const std::string text = run();
  const uint64_t draws = MemoryReserve::draws();
  int64_t tried = 0;
  for (;; ++tried) {
    const AllocationFault fault(GetParam(), tried + 1);
    EXPECT_EQ(run(), text) << tried;
    if (!fault.happened() || testing::Test::HasFailure()) break;
  }
  EXPECT_GT(tried, 100);
  EXPECT_GE(MemoryReserve::draws() - draws, static_cast<uint64_t>(tried));
  RecordProperty("tried", static_cast<int>(tried));
}

INSTANTIATE_TEST_SUITE_P(FaultServer, AnyAllocation,
                         testing::Values("foresail-http", "foresail-engine"), [](const auto& kind) {
                           return kind.param == std::string("foresail-http") ? "OfAConnection"
                                                                             : "OfTheEngine";
                         });

// The largest body would else ask for hundreds of megabytes when it is let go of.
TEST(FaultServer, ATreeOfValuesIsLetGoOfWithoutMemory) {
  bool asked = true;
  std::thread([&] {
    pthread_setname_np(pthread_self(), "taken-apart");
    for (const char* text : {R"([[1,2,[3]],{"a":[4],"b":{"c":"a text that is long enough"}}])",
                             R"({"a":[[[[]]]],"b":{"c":{"d":[0,0,0]}},"e":null})", "[]", "7"}) {
      std::optional<JsonTree> tree(parse_ordered_json(text).value());
      const AllocationFault fault("taken-apart", 1);
      tree.reset();
      asked = fault.happened();
      if (asked) break;
    }
  }).join();
  EXPECT_FALSE(asked);
}

// A model in which one token is no number.
class BrokenModel {
 public:
  explicit BrokenModel(int64_t token) {
    std::filesystem::remove_all(folder_);
    write_preset(folder_, make_preset("tiny-mtp"), 7);
    for (const auto& entry : std::filesystem::directory_iterator(folder_))
      if (entry.path().extension() == ".safetensors") found_ += spoil(entry.path(), token);
  }
  ~BrokenModel() { std::filesystem::remove_all(folder_); }
  std::string path() const { return folder_.string(); }
  int rows_spoilt() const { return found_; }

 private:
  static int spoil(const std::filesystem::path& path, int64_t token) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    uint64_t header_bytes = 0;
    file.read(reinterpret_cast<char*>(&header_bytes), sizeof header_bytes);
    std::string header(header_bytes, '\0');
    file.read(header.data(), static_cast<std::streamsize>(header_bytes));
    const OrderedJson tensors = OrderedJson::parse(header);
    const auto found = tensors.find("model.embed_tokens.weight");
    if (found == tensors.end() || (*found)["dtype"] != "BF16") return 0;
    const auto width = (*found)["shape"][1].get<int64_t>();
    const auto begin = (*found)["data_offsets"][0].get<int64_t>();
    const std::vector<uint16_t> nan(static_cast<size_t>(width), 0x7FC0);
    file.seekp(static_cast<std::streamoff>(8 + header_bytes) + begin + token * width * 2);
    file.write(reinterpret_cast<const char*>(nan.data()), width * 2);
    return 1;
  }

  std::filesystem::path folder_ =
      std::filesystem::temp_directory_path() / ("foresail_broken_" + std::to_string(getpid()));
  int found_ = 0;
};

TEST(FaultServer, NanLogitsEndTheirRequestAndNoOther) {
  constexpr int kBad = 77;
  const BrokenModel model(kBad);
  ASSERT_EQ(model.rows_spoilt(), 1);
  ServeOptions options = tales_options();
  options.engine.model_path = model.path();
  options.engine.context_length = 512;
  options.engine.max_running_requests = 12;
  // Always: the broken token is among the drafts of requests that never draw it.
  options.engine.speculative.adaptive = false;
  Server server(options);
  server.load();
  const auto sound = [](int i, bool stream) {
    return OrderedJson{{"prompt", {3, 5 + i, 9}},
                       {"max_tokens", 60},
                       {"seed", i},
                       {"temperature", i % 2},
                       {"ignore_eos", true},
                       {"return_token_ids", true},
                       {"stream", stream},
                       {"logit_bias", {{std::to_string(kBad), -100}}}};
  };
  const auto run = [&](int i) {
    const TestResponse response =
        TestClient(server.port()).post("/v1/completions", sound(i, i % 4 > 1));
    EXPECT_EQ(response.status, 200) << response.body;
    if (i % 4 <= 1) return response.json()["choices"].dump();
    std::string all;
    for (const OrderedJson& chunk : response.chunks())
      for (const OrderedJson& id : chunk["choices"][0]["token_ids"]) all += id.dump() + " ";
    return all;
  };
  std::vector<std::string> alone;
  for (int i = 0; i < 8; ++i) alone.push_back(run(i));

  std::vector<std::string> beside(8);
  std::vector<std::thread> threads;
  std::atomic<bool> over{false};
  std::atomic<int> bad{0};
  for (int i = 0; i < 8; ++i) threads.emplace_back([&, i] { beside[i] = run(i); });
  std::thread spoiler([&] {
    for (int i = 0; i < 6 || !over; ++i) {
      // In the prompt's middle, at its end, and drawn after a while by force.
      OrderedJson body = {{"prompt", {3, kBad, 9}}, {"max_tokens", 5}, {"stream", i % 2 == 1}};
      if (i % 3 == 1) body["prompt"] = {3, 9, kBad};
      if (i % 3 == 2) body["prompt"] = {3, 9}, body["logit_bias"][std::to_string(kBad)] = 100;
      const TestResponse response = TestClient(server.port()).post("/v1/completions", body);
      if (i % 2 == 0) {
        EXPECT_EQ(response.status, 500) << response.body;
        EXPECT_EQ(response.json()["error"]["code"], "generation_failed");
      } else {
        EXPECT_THAT(response.events().back(), testing::HasSubstr("generation_failed"));
      }
      ++bad;
    }
  });
  for (std::thread& thread : threads) thread.join();
  over = true;
  spoiler.join();
  EXPECT_EQ(beside, alone);
  EXPECT_TRUE(
      eventually([&] { return metric(server.port(), "foresail:nan_logits_total") == bad; }));
  EXPECT_TRUE(eventually([&] { return owned_pages(server.port()) == 0; }));
  // Nothing of a failed prompt is in the prefix cache.
  EXPECT_EQ(run(0), alone[0]);
}

TEST(FaultServer, PagesRunOutAndNoOutputChanges) {
  ServeOptions options = tales_options();
  Server roomy(options);
  roomy.load();
  options.engine.max_total_tokens = 1024;  // of 8 requests with 300 tokens each
  options.engine.page_size = 16;
  options.queue_timeout = std::chrono::milliseconds(0);
  Server tight(options);
  tight.load();
  const auto run = [](Server& server, int i) {
    const TestResponse response =
        TestClient(server.port())
            .post("/v1/completions", {{"prompt", "The captain number " + std::to_string(i)},
                                      {"max_tokens", 280},
                                      {"ignore_eos", true},
                                      {"seed", i},
                                      {"temperature", i % 2},
                                      {"stream", i % 3 == 0}});
    EXPECT_EQ(response.status, 200) << response.body;
    return text_of(response);
  };
  std::vector<std::string> expected, got(8);
  for (int i = 0; i < 8; ++i) expected.push_back(run(roomy, i));
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) threads.emplace_back([&, i] { got[i] = run(tight, i); });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(got, expected);
  EXPECT_GT(metric(tight.port(), "foresail:num_preemptions_total"), 0);
  EXPECT_TRUE(eventually([&] { return owned_pages(tight.port()) == 0; }));
  // What can never fit is said at once, with the numbers.
  const TestResponse too_large =
      TestClient(tight.port())
          .post("/v1/completions", {{"prompt", std::string(900, 'x')}, {"max_tokens", 900}});
  EXPECT_EQ(too_large.status, 400);
  EXPECT_THAT(too_large.body, testing::HasSubstr("context length"));
}

}  // namespace
}  // namespace foresail
