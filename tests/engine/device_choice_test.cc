// Tokens chosen and drafts chained by the kernels are those of the host, in every order of passes.
#include <gtest/gtest.h>

#include <numeric>

#include "checkpoint/byte_tokenizer.h"
#include "engine/device_like_kernels.h"
#include "engine/draftings.h"
#include "engine/memory_plan.h"

namespace foresail {
namespace {

// Requests that a device can draw for.
std::vector<Request> plain_requests(uint64_t seed, int count) {
  std::vector<Request> requests = random_requests(seed, count);
  for (Request& request : requests) {
    request.sampling = {.temperature = request.sampling.temperature, .seed = request.sampling.seed};
    request.min_tokens = 0;
    request.max_tokens += 10;
  }
  return requests;
}

// Host and device beside each other through the same engine.
struct Pair {
  explicit Pair(const EngineOptions& options)
      : host(options), device(options, {}, make_kernels()) {}
  std::unique_ptr<KernelSet> make_kernels() {
    auto made = std::make_unique<DeviceLikeKernels>();
    kernels = made.get();
    return made;
  }
  // Steps that are launched ahead are planned ahead: for equal figures the host's have to be too.
  void expect_equal(EngineOptions options, const std::vector<Request>& requests, bool ahead = false,
                    const Tokenizer* tokenizer = nullptr) {
    options.launch_ahead = ahead;
    EngineLoop host_loop(host, tokenizer, options);
    EngineLoop device_loop(device, tokenizer, options);
    for (const bool warm : {false, true}) {
      const std::vector<Output> expected = serve(host_loop, requests);
      const std::vector<Output> outputs = serve(device_loop, requests);
      for (size_t i = 0; i < requests.size(); ++i) {
        SCOPED_TRACE(fmt::format("request {} {}", i, warm ? "warm" : "cold"));
        EXPECT_EQ(outputs[i].ids, expected[i].ids);
        EXPECT_EQ(outputs[i].stats.finish, expected[i].stats.finish);
        expect_same_logprobs(outputs[i], expected[i]);
        // A device drafts without masks.
        if (tokenizer != nullptr) continue;
        EXPECT_EQ(outputs[i].stats.drafted_at, expected[i].stats.drafted_at);
        EXPECT_EQ(outputs[i].stats.accepted_at, expected[i].stats.accepted_at);
      }
    }
    const EngineStats stats = device_loop.stats();
    EXPECT_EQ(stats.pages_owned + stats.pages_in_flight, 0);
    EXPECT_EQ(stats.pages_free + stats.pages_cached, stats.pages_total);
    EXPECT_EQ(stats.launched_ahead > 0, ahead);
  }

  LoadedModel host;
  DeviceLikeKernels* kernels = nullptr;
  LoadedModel device;
};

class DeviceChoice : public testing::TestWithParam<DraftingCase> {};

TEST_P(DeviceChoice, TokensAndDraftsAreTheHosts) {
  const auto [index, page_size, backend] = GetParam();
  const Drafting& drafting = kDraftings[index];
  EngineOptions options = tiny_options(drafting, page_size);
  options.attention_backend = backend;
  Pair pair(options);
  for (int steps = 1; steps <= 5; ++steps) {
    SCOPED_TRACE(fmt::format("{} page {} steps {}", drafting.name, page_size, steps));
    std::vector<Request> requests = plain_requests(2000 * index + 10 * page_size + steps, 6);
    requests[3].speculative_steps = 1 + steps / 2;
    if (steps == 4) requests[2].speculative_steps = 0;
    if (steps > 2) add_terms(requests);
    options.speculative.steps = steps;
    options.chunked_prefill_size = steps % 2 == 0 ? 7 : 2048;
    options.retract_every = steps == 2 ? 3 : 0;
    options.late_results = steps == 3;
    options.seed_schedule = steps == 5 ? 9 : 0;
    pair.expect_equal(options, requests);
    // Planned alike, they verify and accept alike too. Those ahead know no drafts of other
    // drafters.
    const bool ahead = index < kHeadDraftings || drafting.algorithm == SpeculativeAlgorithm::kNone;
    if (options.late_results) pair.expect_equal(options, requests, ahead);
  }
  EXPECT_EQ(pair.kernels->linked_passes() > 0, index < kHeadDraftings);
  const Iteration::HostChoices& choices = pair.device.iteration().host_choices();
  EXPECT_GT(choices[static_cast<size_t>(HostChoice::kNone)], 0);
  for (size_t reason = 1; reason < choices.size(); ++reason)
    EXPECT_EQ(choices[reason], 0) << reason;
  EXPECT_EQ(pair.host.iteration().host_choices(), Iteration::HostChoices{});
}

INSTANTIATE_TEST_SUITE_P(All, DeviceChoice, drafting_cases(kUnscriptedDraftings, {1, 16}),
                         drafting_case_name);

// A batch with one request that the kernels can't draw for goes through the host, from step to step
// as requests come and go.
TEST(DeviceChoiceFallback, MixedRequestsEqualTheHosts) {
  for (int index = 0; index < kHeadDraftings; ++index) {
    const Drafting& drafting = kDraftings[index];
    EngineOptions options = tiny_options(drafting, 16);
    options.speculative.steps = 3;
    Pair pair(options);
    std::vector<Request> requests = plain_requests(70 + index, 6);
    // What stays has counts of tokens that the kernels did not choose.
    for (Request& request : requests) {
      request.sampling.presence_penalty = 0.5f;
      request.sampling.repetition_penalty = 1.2f;
    }
    requests[1].top_logprobs = kMostRankedTokens + 1;
    requests[1].max_tokens = 5;
    requests[2].prompt_top_logprobs = 2;
    requests[2].max_tokens = 4;
    requests[3].min_tokens = 3;
    requests[3].ignore_eos = false;
    requests[4].sampling.top_p = 0.9f;
    requests[4].sampling.temperature = 0.8f;
    requests[4].max_tokens = 6;
    pair.expect_equal(options, requests);
    EXPECT_GT(pair.kernels->linked_passes(), 0);
    // Of a batch the first reason counts.
    const Iteration::HostChoices& choices = pair.device.iteration().host_choices();
    EXPECT_GT(choices[static_cast<size_t>(HostChoice::kNone)], 0);
    EXPECT_GT(std::accumulate(choices.begin() + 1, choices.end(), int64_t{0}), 0);
  }
}

// Requests with a grammar beside others: what it allows is known to the host alone, which finds it
// while the pass runs.
TEST(DeviceChoiceMasks, TokensUnderAGrammarAreTheHosts) {
  const auto tokenizer =
      Tokenizer::from_json(byte_tokenizer_json(), byte_tokenizer_config_json(512));
  for (int index = 0; index < kUnscriptedDraftings; ++index) {
    const Drafting& drafting = kDraftings[index];
    EngineOptions options = tiny_options(drafting, 16);
    Pair pair(options);
    for (int steps = 1; steps <= 4; ++steps) {
      SCOPED_TRACE(fmt::format("{} steps {}", drafting.name, steps));
      std::vector<Request> requests = plain_requests(300 * index + steps, 8);
      if (steps > 2) add_terms(requests);
      const auto guide = [&](int i, OutputFormat format, const char* pattern) {
        requests[i].output_format = format;
        requests[i].output_pattern = pattern;
        requests[i].max_tokens = 40;
        requests[i].min_tokens = 0;
        requests[i].ignore_eos = false;
      };
      guide(0, OutputFormat::kRegex, "(yes|no|[0-9]{2,9}x)+");
      guide(2, OutputFormat::kJsonObject, "");
      guide(3, OutputFormat::kRegex, "[a-c]");  // it ends within a pass
      guide(5, OutputFormat::kJsonSchema, R"({"enum":["red","redder",17,null]})");
      guide(6, OutputFormat::kRegex, "a{30}");  // one token is allowed at a time
      requests[5].sampling.top_k = 3;
      requests[6].sampling.temperature = 1.5f;
      requests[1].top_logprobs = requests[6].top_logprobs = 2;
      options.speculative.steps = steps;
      options.chunked_prefill_size = steps % 2 == 0 ? 7 : 2048;
      options.retract_every = steps == 2 ? 3 : 0;
      options.late_results = steps == 3;
      pair.expect_equal(options, requests, false, tokenizer.get());
    }
    const Iteration::HostChoices& choices = pair.device.iteration().host_choices();
    EXPECT_GT(choices[static_cast<size_t>(HostChoice::kNone)], 0);
    EXPECT_EQ(std::accumulate(choices.begin() + 1, choices.end(), int64_t{0}), 0);
    EXPECT_EQ(pair.kernels->linked_passes() > 0, index < kHeadDraftings);
  }
}

// Neither a phase without drafts nor one whose drafts are allowed leaves a request where it was.
TEST(DeviceChoiceMasks, CutsAreForgotten) {
  RequestState request;
  request.masked_drafts = false;
  for (int i = 0; i < 20; ++i) request.learn_cut(true);
  EXPECT_GT(request.cut_share, 0.9f);
  EXPECT_FALSE(request.wants_masked_drafts()) << "without a grammar";
  request.masked_drafts = true;
  for (int i = 0; i < 40; ++i) request.learn_cut(false);
  EXPECT_LT(request.cut_share, 0.3f);
}

// Drafts that a device proposes by itself know nothing of a grammar. Where few of them are allowed
// the host proposes instead; where most are it does not.
TEST(DeviceChoiceMasks, ANarrowGrammarIsDraftedForUnderItsMasks) {
  EngineOptions options;
  options.model_path = model_path("tales");
  options.dtype = "f32";
  options.context_length = 512;
  options.slot_count = options.max_running_requests = 4;
  options.speculative = {.algorithm = SpeculativeAlgorithm::kMtp, .adaptive = false};
  options.launch_ahead = false;
  const auto tokenizer = Tokenizer::load(options.model_path);
  Pair pair(options);
  const auto passes = [&](LoadedModel& model, OutputFormat format, const char* pattern) {
    std::vector<Request> requests;
    for (const char* prompt : {"The old captain said:", "Once", "At sea", "A letter"}) {
      Request& request = requests.emplace_back();
      request.input_ids = tokenizer->encode(prompt, {.add_bos = true});
      request.max_tokens = 60;
      request.sampling.temperature = 0.0f;
      request.output_format = format;
      request.output_pattern = pattern;
    }
    EngineLoop loop(model, tokenizer.get(), options);
    const int linked = pair.kernels->linked_passes();
    serve(loop, requests);
    return std::pair(static_cast<double>(loop.stats().verify_passes),
                     pair.kernels->linked_passes() - linked);
  };
  constexpr const char* kSchema =
      R"({"type":"object","properties":{"name":{"type":"string","maxLength":12},
          "port":{"enum":["Bergen","Porto"]},"days":{"type":"array","items":{"type":"integer"},
          "minItems":3,"maxItems":5}},"required":["name","port","days"],
          "additionalProperties":false})";
  const auto [of_host, none] = passes(pair.host, OutputFormat::kJsonSchema, kSchema);
  const auto [of_device, few] = passes(pair.device, OutputFormat::kJsonSchema, kSchema);
  EXPECT_EQ(none, 0);
  EXPECT_LT(of_device, 1.4 * of_host);
  EXPECT_GT(few, 0);  // it begins so, and tries again
  const auto [wide_of_host, nil] = passes(pair.host, OutputFormat::kRegex, "[^#]{1,4000}");
  const auto [wide_of_device, most] = passes(pair.device, OutputFormat::kRegex, "[^#]{1,4000}");
  EXPECT_EQ(nil, 0);
  EXPECT_LT(wide_of_device, 1.1 * wide_of_host);
  EXPECT_LT(few / of_device, 0.6 * most / wide_of_device);
}

// Counts and biases, once a request has any: as many bytes as the plan says, in one piece.
TEST(DeviceChoiceMemory, TokenCountsTakeWhatIsPlanned) {
  EngineOptions options = tiny_options(kDraftings[0], 16);
  Pair pair(options);
  std::vector<Request> requests = plain_requests(90, 6);
  ModelOptions on_device = options;
  on_device.device = "cuda";
  const uint64_t planned = plan_memory(pair.host.config(), on_device, true).token_term_bytes;
  EXPECT_GT(planned, 0u);
  pair.expect_equal(options, requests);
  EXPECT_EQ(pair.kernels->allocations_of(planned), 0);
  add_terms(requests);
  pair.expect_equal(options, requests);
  EXPECT_EQ(pair.kernels->allocations_of(planned), 1);
}

// A device without memory for the counts: the host draws for who needs them, and nobody fails.
TEST(DeviceChoiceMemory, WithoutTokenCountsTheHostDraws) {
  for (const bool ahead : {false, true}) {
    EngineOptions options = tiny_options(kDraftings[0], 16);
    options.speculative.steps = 3;
    options.late_results = ahead;
    std::vector<std::string> warnings;
    options.log = [&](LogLevel level, const std::string& message) {
      if (level == LogLevel::kWarning) warnings.push_back(message);
    };
    Pair pair(options);
    std::vector<Request> requests = plain_requests(95, 6);
    add_terms(requests);
    // Its first token is drawn by the host, so nothing asks for the table before decoding.
    requests[0].prompt_top_logprobs = 2;
    // Alone in the end, and the kernels draw again where only its least length asked for the table.
    requests[5] = plain_requests(96, 1)[0];
    requests[5].max_tokens = 60;
    requests[5].ignore_eos = true;
    requests[5].min_tokens = 4;
    ModelOptions on_device = options;
    on_device.device = "cuda";
    const uint64_t table = plan_memory(pair.host.config(), on_device, true).token_term_bytes;
    pair.kernels->refuse_allocations_of(table);
    pair.expect_equal(options, requests, ahead);
    const auto& choices = pair.device.iteration().host_choices();
    EXPECT_GT(choices[static_cast<size_t>(HostChoice::kMemory)], 0);
    EXPECT_GT(choices[static_cast<size_t>(HostChoice::kNone)], 0);
    ASSERT_FALSE(warnings.empty());
    EXPECT_TRUE(warnings[0].starts_with("the host draws for a request with ")) << warnings[0];
    // At most once for every request and slot that it has, not for every step.
    EXPECT_LE(pair.kernels->allocations_of(table), 2 * std::ssize(requests));
    // Whoever comes when there is memory has them.
    pair.kernels->refuse_allocations_of(0);
    pair.expect_equal(options, requests, ahead);
    EXPECT_GT(pair.kernels->allocations_of(table), 0);
  }
}

TEST(DeviceChoiceFallback, SimulatedAcceptanceEqualsTheHosts) {
  for (int index = 0; index < kHeadDraftings; ++index) {
    const Drafting& drafting = kDraftings[index];
    EngineOptions options = tiny_options(drafting, 16);
    options.speculative.steps = 3;
    options.speculative.simulate_accept_length = 2.6;
    Pair pair(options);
    std::vector<Request> requests = plain_requests(80 + index, 6);
    pair.expect_equal(options, requests);
    add_terms(requests);
    pair.expect_equal(options, requests);
    EXPECT_GT(pair.kernels->linked_passes(), 0);
  }
}

}  // namespace
}  // namespace foresail
