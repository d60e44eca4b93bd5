// Host cost of a request outside the engine: a chat body of about 1,000 tokens from bytes to ids,
// and an output token from id to the bytes of its event. On models/tales, or MODEL_DIR.
#include <benchmark/benchmark.h>

#include <cstdlib>

#include "base/check.h"
#include "base/json.h"
#include "engine/load_tokenizer.h"
#include "server/api/json_text.h"
#include "server/api/projection.h"
#include "text/detokenizer.h"

namespace foresail {
namespace {

constexpr size_t kPromptLen = 1000;
constexpr std::string_view kText =
    "The old captain stood at the window and watched the harbour lights. \"If the wind turns "
    "before morning,\" he said, \"we shall sail; if not, we wait another day.\" ";

class Served {
 public:
  Served() {
    const char* dir = std::getenv("MODEL_DIR");
    const std::string path = dir == nullptr ? "models/tales" : dir;
    tokenizer_ = load_tokenizer(path);
    model_.names = {"bench"};
    model_.tokenizer = tokenizer_.get();
    model_.chat_template = std::make_unique<ChatTemplate>(ChatTemplate::load(path));
    model_.vocab_size = static_cast<int64_t>(tokenizer_->vocab_size());
    model_.max_total_len = 1 << 20;
  }
  const ServedModel& model() const { return model_; }
  const Tokenizer& tokenizer() const { return *tokenizer_; }

 private:
  std::unique_ptr<Tokenizer> tokenizer_;
  ServedModel model_;
};

const Served& served() {
  static const Served served;
  return served;
}

GenerationSpec parse(const std::string& body) {
  const auto json = parse_ordered_json(body);
  FORESAIL_CHECK(json.has_value(), "{}", json.error().message);
  auto spec = parse_chat(*json, served().model(), [] { return true; });
  FORESAIL_CHECK(spec.has_value(), "{}", spec.error().message);
  return std::move(*spec);
}

std::string chat_body() {
  std::string text;
  while (served().tokenizer().encode(text, {}).size() < kPromptLen) text += kText;
  const OrderedJson body = {{"messages", {{{"role", "user"}, {"content", text}}}},
                            {"stream", true}};
  return json_text(body);
}

void BM_ChatBodyToIds(benchmark::State& state) {
  const std::string body = chat_body();
  size_t prompt_len = 0;
  for (auto _ : state) prompt_len = parse(body).prompts[0].size();
  state.counters["tokens"] = static_cast<double>(prompt_len);
}
BENCHMARK(BM_ChatBodyToIds)->Unit(benchmark::kMicrosecond);

void BM_TokenToEvent(benchmark::State& state) {
  const GenerationSpec spec = parse(chat_body());
  const auto projection = chat_projection(spec, served().model());
  const std::vector<int32_t> ids = served().tokenizer().encode(kText, {});
  GenerationRecord record{.id = "bench", .model = "bench", .prompts = spec.prompts};
  record.choices.resize(1);
  Detokenizer detokenizer(served().tokenizer(), true);
  size_t next = 0, total_bytes = 0;
  for (auto _ : state) {
    const int32_t id = ids[next++ % ids.size()];
    const Piece piece{.text = detokenizer.push(id), .ids = {id}};
    total_bytes += projection->piece(record, piece).size();
  }
  benchmark::DoNotOptimize(total_bytes);
}
BENCHMARK(BM_TokenToEvent)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace foresail
