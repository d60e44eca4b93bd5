// An exchange that finds no memory at its very end, as a connection may that has to wait for what
// comes next: the request it was for has ended all the same.
#include <condition_variable>
#include <deque>
#include <mutex>
#include <new>

#include "base/json.h"
#include "server/generation.h"
#include "server/live_server.h"

namespace foresail {
namespace {

// Its strand is whoever calls run_one().
class LastByteExchange final : public Exchange {
 public:
  const HttpRequest& request() const override { return request_; }
  void send(HttpResponse) override { end(); }
  void start_stream(HttpResponse) override { answered_ = true; }
  void write(std::string_view) override {}
  void finish() override { end(); }
  void on_gone(std::function<void()>) override {}
  void post(std::function<void()> function) override {
    const std::lock_guard lock(mutex_);
    if (is_closed_) return;
    posted_.push_back(std::move(function));
    changed_.notify_one();
  }
  void after(std::chrono::milliseconds, std::function<void()>) override {}
  bool answered() const override { return answered_; }
  bool take_turn() override { return true; }
  std::chrono::steady_clock::duration waited() const override { return {}; }

  void run_one() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !posted_.empty(); });
    const std::function<void()> function = std::move(posted_.front());
    posted_.pop_front();
    lock.unlock();
    function();
  }
  // What is posted may hold the exchange.
  void close() {
    std::deque<std::function<void()>> dropped;
    const std::lock_guard lock(mutex_);
    is_closed_ = true;
    dropped.swap(posted_);
  }

 private:
  void end() {
    answered_ = true;
    throw std::bad_alloc();
  }

  HttpRequest request_;
  bool answered_ = false;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> posted_;
  bool is_closed_ = false;
};

class GenerationEnd : public testing::Test {
 protected:
  GenerationEnd() {
    model_.names = {"tales"};
    model_.tokenizer = engine_.tokenizer();
    model_.vocab_size = static_cast<int64_t>(engine_.tokenizer()->vocab_size());
    model_.max_total_len = engine_.max_total_len();
  }
  void expect_closed(const OrderedJson& body) {
    SCOPED_TRACE(json_text(body));
    auto spec = parse_completion(body, model_, [] { return true; });
    ASSERT_TRUE(spec) << spec.error().message;
    const auto exchange = std::make_shared<LastByteExchange>();
    auto projection = completion_projection(*spec, model_);
    const std::weak_ptr<Generation> generation = [&] {
      const auto fresh =
          std::make_shared<Generation>(serving_, exchange, std::move(*spec), std::move(projection));
      fresh->start();
      return fresh;
    }();
    EXPECT_EQ(open_.names().size(), 1u);
    if (aborts_) open_.abort("");
    EXPECT_THROW(for (;;) exchange->run_one(), std::bad_alloc);
    EXPECT_TRUE(open_.empty());
    EXPECT_EQ(open_.streams(), 0);
    EXPECT_TRUE(generation.expired());
    exchange->close();
  }

  bool aborts_ = false;
  EngineThread engine_{tales_options().engine};
  ServedModel model_;
  Metrics metrics_;
  Log log_{LogFormat::kOff};
  OpenRequests open_{8};
  std::atomic<bool> draining_ = false;
  Serving serving_{engine_, model_, metrics_, log_, open_, std::chrono::seconds(1),
                   {},      {},     draining_};
};

TEST_F(GenerationEnd, WithoutMemoryItIsClosedAllTheSame) {
  OrderedJson body = {{"prompt", "a"}, {"max_tokens", 3}};
  expect_closed(body);
  body["stream"] = true;
  expect_closed(body);
}

// The answer is an error here: it was told to end.
TEST_F(GenerationEnd, SoItIsWhenTheAnswerIsAnError) {
  aborts_ = true;
  OrderedJson body = {{"prompt", "a"}, {"max_tokens", 900}, {"ignore_eos", true}};
  expect_closed(body);
  body["stream"] = true;
  expect_closed(body);
}

}  // namespace
}  // namespace foresail
