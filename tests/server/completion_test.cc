// Rows 11 to 36 of the conformance checklist: /v1/completions.
#include <cmath>
#include <limits>
#include <set>

#include "base/utf8.h"
#include "server/api/logprobs.h"
#include "server/live_server.h"

namespace foresail {
namespace {

using Completions = LiveServer;

OrderedJson tokens_of(int port, const std::string& text) {
  return TestClient(port).post("/tokenize", {{"prompt", text}}).json()["tokens"];
}

TEST_F(Completions, Row11StringPrompt) {
  const TestResponse response = complete({{"model", "tales"}});
  ASSERT_EQ(response.status, 200) << response.body;
  const OrderedJson json = response.json();
  EXPECT_TRUE(json["id"].get<std::string>().starts_with("cmpl-"));
  EXPECT_EQ(json["object"], "text_completion");
  EXPECT_EQ(json["model"], "tales");
  EXPECT_TRUE(json["created"].is_number_integer());
  ASSERT_EQ(json["choices"].size(), 1u);
  EXPECT_EQ(json["choices"][0]["index"], 0);
  EXPECT_TRUE(json["choices"][0]["logprobs"].is_null());
  const OrderedJson& usage = json["usage"];
  EXPECT_EQ(usage["completion_tokens"], 12);
  EXPECT_EQ(usage["total_tokens"].get<int>(), usage["prompt_tokens"].get<int>() + 12);
  EXPECT_TRUE(usage["prompt_tokens_details"]["cached_tokens"].is_number_integer());
}

TEST_F(Completions, Row12To14EveryKindOfPromptGivesTheSame) {
  const std::string one = text({}), other = text({{"prompt", "The old captain"}});
  const OrderedJson ids = tokens_of(port(), "Once upon a time");
  EXPECT_EQ(text({{"prompt", ids}}), one);
  EXPECT_EQ(text({{"prompt", {ids}}}), one);
  const OrderedJson both =
      complete({{"prompt", {"Once upon a time", "The old captain"}}, {"n", 2}}).json();
  ASSERT_EQ(both["choices"].size(), 4u);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(both["choices"][i]["index"], i);
    EXPECT_EQ(both["choices"][i]["text"], i < 2 ? one : other);
  }
  const OrderedJson mixed = complete({{"prompt", {"The old captain", ids}}}).json();
  EXPECT_EQ(mixed["choices"][1]["text"], one);
}

TEST_F(Completions, Row15AnEmptyPromptStartsFromTheBeginToken) {
  const OrderedJson json = complete({{"prompt", ""}}).json();
  EXPECT_EQ(json["usage"]["prompt_tokens"], 1) << json;
  expect_refused(complete({{"prompt", OrderedJson::array()}}), "prompt", "empty");
  expect_refused(complete({{"prompt", {OrderedJson::array()}}}), "prompt", "is an empty list");
  // No text is a text, and begins as every text does.
  EXPECT_EQ(text({{"prompt", ""}}), text({{"prompt", OrderedJson::array({0})}}));
  EXPECT_EQ(post("/tokenize", {{"prompt", ""}}).json()["tokens"], OrderedJson::array({0}));
}

TEST_F(Completions, Row16NDistinctChoices) {
  const OrderedJson json =
      complete({{"n", 3}, {"temperature", 1.0}, {"seed", 5}, {"max_tokens", 16}}).json();
  ASSERT_EQ(json["choices"].size(), 3u) << json;
  for (int i = 0; i < 3; ++i) EXPECT_EQ(json["choices"][i]["index"], i);
  EXPECT_NE(json["choices"][0]["text"], json["choices"][1]["text"]);
  expect_refused(complete({{"n", 0}}), "n", "from 1 to 8");
  expect_refused(complete({{"n", 9}}), "n", "from 1 to 8");
  expect_refused(complete({{"n", 16384000000}}), "n", "from 1 to 8");
}

TEST_F(Completions, Row17And18LengthAndEndToken) {
  OrderedJson json = complete({{"max_tokens", 3}}).json();
  EXPECT_EQ(json["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(json["usage"]["completion_tokens"], 3);
  json = complete({{"logit_bias", {{"1", 100}}}}).json();  // the end token
  EXPECT_EQ(json["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(json["choices"][0]["text"], "");
  EXPECT_EQ(json["usage"]["completion_tokens"], 1);
  EXPECT_EQ(json["choices"][0]["matched_stop"], 1);
}

TEST_F(Completions, Row19And20IgnoreEosAndMinTokens) {
  OrderedJson json =
      complete({{"logit_bias", {{"1", 100}}}, {"ignore_eos", true}, {"max_tokens", 5}}).json();
  EXPECT_EQ(json["usage"]["completion_tokens"], 5);
  EXPECT_EQ(json["choices"][0]["finish_reason"], "length");
  json = complete({{"logit_bias", {{"1", 100}}}, {"min_tokens", 4}}).json();
  EXPECT_EQ(json["usage"]["completion_tokens"], 5);  // four others, then the end token
  EXPECT_EQ(json["choices"][0]["finish_reason"], "stop");
  expect_refused(complete({{"min_tokens", 20}}), "min_tokens",
                 "'min_tokens' 20 is more than the 12 tokens that the output may have");
  expect_refused(complete({{"min_tokens", 1}, {"max_tokens", 0}, {"echo", true}}), "min_tokens",
                 "1 is more than the 0 tokens");
}

TEST_F(Completions, Row21And24StopStrings) {
  const std::string whole = text({{"max_tokens", 24}});
  const std::string stop = whole.substr(9, 4);
  const std::string before = whole.substr(0, whole.find(stop));
  const OrderedJson json = complete({{"max_tokens", 24}, {"stop", stop}}).json();
  EXPECT_EQ(json["choices"][0]["text"], before);
  EXPECT_EQ(json["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(json["choices"][0]["matched_stop"], stop);
  EXPECT_EQ(text({{"max_tokens", 24}, {"stop", {"never there", stop}}}), before);
  EXPECT_EQ(text({{"max_tokens", 24}, {"stop", stop}, {"include_stop_str_in_output", true}}),
            before + stop);
  expect_refused(complete({{"stop", ""}}), "stop", "empty");
  expect_refused(complete({{"stop", OrderedJson(std::vector<std::string>(17, "a"))}}), "stop",
                 "more than 16");
}

TEST_F(Completions, Row22AStopAcrossChunksNeverLeaks) {
  const std::string whole = text({{"max_tokens", 24}});
  for (size_t at = 3; at + 6 < whole.size(); at += 7) {
    const std::string stop = whole.substr(at, 6);
    const TestResponse response = complete({{"max_tokens", 24}, {"stop", stop}, {"stream", true}});
    std::string streamed;
    for (const OrderedJson& chunk : response.chunks())
      streamed += chunk["choices"][0]["text"].get<std::string>();
    EXPECT_EQ(streamed, whole.substr(0, whole.find(stop))) << stop;
  }
}

TEST_F(Completions, Row23StopTokenIds) {
  const OrderedJson plain = complete({{"return_token_ids", true}}).json();
  const OrderedJson ids = plain["choices"][0]["token_ids"];
  ASSERT_EQ(ids.size(), 12u);
  EXPECT_EQ(plain["choices"][0]["prompt_token_ids"], tokens_of(port(), "Once upon a time"));
  const OrderedJson json = complete({{"stop_token_ids", {ids[5]}}}).json();
  size_t first = 0;
  while (ids[first] != ids[5]) ++first;
  EXPECT_EQ(json["usage"]["completion_tokens"], first + 1);
  EXPECT_EQ(json["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(json["choices"][0]["matched_stop"], ids[5]);
  expect_refused(complete({{"stop_token_ids", {151645}}}), "stop_token_ids", "151645");
}

// What ends a text is not looked for before the minimum, whatever it is; in it, it is text.
TEST_F(Completions, NoStopBeforeTheMinimum) {
  const OrderedJson plain = complete({{"return_token_ids", true}}).json()["choices"][0];
  const std::string whole = plain["text"];
  const auto ended = [&](OrderedJson fields) {
    const OrderedJson json = complete(fields).json();
    EXPECT_EQ(json["choices"][0]["text"], whole);
    EXPECT_EQ(json["choices"][0]["finish_reason"], "length");
    return json["usage"]["completion_tokens"].get<int>();
  };
  const std::string stop = whole.substr(9, 4);
  EXPECT_EQ(ended({{"stop", stop}, {"min_tokens", 12}}), 12);
  EXPECT_EQ(ended({{"stop_token_ids", {plain["token_ids"][5]}}, {"min_tokens", 12}}), 12);
  const OrderedJson last =
      complete({{"stop_token_ids", {plain["token_ids"][11]}}, {"min_tokens", 11}}).json();
  EXPECT_EQ(last["usage"]["completion_tokens"], 12);
  EXPECT_EQ(last["choices"][0]["finish_reason"], "stop");
  const OrderedJson native =
      post("/generate",
           {{"text", "Once upon a time"},
            {"sampling_params",
             {{"temperature", 0}, {"max_new_tokens", 12}, {"min_new_tokens", 12}, {"stop", stop}}}})
          .json();
  EXPECT_EQ(native["text"], whole);
  // Each API has names of its own for it.
  const auto refused = [&](OrderedJson params, const std::string& name) {
    expect_refused(post("/generate", {{"text", "Once"}, {"sampling_params", std::move(params)}}),
                   name, "");
  };
  refused({{"max_new_tokens", 12}, {"min_new_tokens", 13}}, "sampling_params.min_new_tokens");
  refused({{"max_new_tokens", 5000}}, "sampling_params.max_new_tokens");
}

TEST_F(Completions, Row25Echo) {
  const std::string prompt = "Once upon a time", continuation = text({});
  EXPECT_EQ(text({{"echo", true}}), prompt + continuation);
  const OrderedJson only = complete({{"echo", true}, {"max_tokens", 0}}).json();
  EXPECT_EQ(only["choices"][0]["text"], prompt);
  EXPECT_EQ(only["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(only["usage"]["completion_tokens"], 0);
  expect_refused(complete({{"max_tokens", 0}}), "max_tokens", "from 1");
  std::string streamed;
  for (const OrderedJson& chunk : complete({{"echo", true}, {"stream", true}}).chunks())
    streamed += chunk["choices"][0]["text"].get<std::string>();
  EXPECT_EQ(streamed, prompt + continuation);
}

TEST_F(Completions, Row26Logprobs) {
  const OrderedJson plain = complete({{"return_token_ids", true}}).json()["choices"][0];
  for (const int count : {0, 5}) {
    const OrderedJson choice = complete({{"logprobs", count}}).json()["choices"][0];
    EXPECT_EQ(choice["text"], plain["text"]);
    const OrderedJson& logprobs = choice["logprobs"];
    std::string joined;
    for (size_t i = 0; i < 12; ++i) {
      const std::string token = logprobs["tokens"][i];
      EXPECT_EQ(logprobs["text_offset"][i], joined.size());
      joined += token;
      const double chosen = logprobs["token_logprobs"][i];
      EXPECT_LE(chosen, 0.0);
      // Greedy: the chosen token is the best one, and is there when none was asked for.
      EXPECT_EQ(logprobs["top_logprobs"][i].size(), static_cast<size_t>(std::max(count, 1)));
      EXPECT_EQ(logprobs["top_logprobs"][i][token], chosen);
    }
    EXPECT_EQ(joined, plain["text"].get<std::string>());
    EXPECT_EQ(logprobs["tokens"].size(), 12u);
  }
  expect_refused(complete({{"logprobs", 21}}), "logprobs", "0 to 20");
  expect_refused(complete({{"logprobs", true}}), "logprobs", "integer, not a boolean");
}

// What harnesses that score given texts send and read: the prompt's tokens, then the output's.
TEST_F(Completions, Row27EchoWithLogprobsBeginsWithNull) {
  const OrderedJson ids = tokens_of(port(), "Once upon a time");
  const OrderedJson output = complete({{"logprobs", 2}}).json()["choices"][0]["logprobs"];
  for (const int max_tokens : {0, 1, 12}) {
    SCOPED_TRACE(max_tokens);
    const OrderedJson fields = {
        {"prompt", {ids, ids}}, {"echo", true}, {"logprobs", 2}, {"max_tokens", max_tokens}};
    const OrderedJson whole = complete(fields).json();
    ASSERT_EQ(whole["choices"].size(), 2u) << whole;
    EXPECT_EQ(whole["usage"]["completion_tokens"], 2 * max_tokens);
    EXPECT_EQ(whole["choices"][0]["logprobs"], whole["choices"][1]["logprobs"]);
    const OrderedJson& choice = whole["choices"][0];
    EXPECT_EQ(choice["finish_reason"], "length");
    const OrderedJson& logprobs = choice["logprobs"];
    for (const char* list : {"tokens", "token_logprobs", "top_logprobs", "text_offset"})
      ASSERT_EQ(logprobs[list].size(), ids.size() + max_tokens) << list;
    EXPECT_TRUE(logprobs["token_logprobs"][0].is_null());
    EXPECT_TRUE(logprobs["top_logprobs"][0].is_null());
    std::string joined;
    for (size_t i = 0; i < ids.size() + max_tokens; ++i) {
      EXPECT_EQ(logprobs["text_offset"][i], count_characters(joined));
      joined += logprobs["tokens"][i].get<std::string>();
      if (i == 0) continue;
      EXPECT_LE(logprobs["token_logprobs"][i].get<double>(), 0.0);
      EXPECT_GE(logprobs["top_logprobs"][i].size(), 2u);
    }
    EXPECT_EQ(choice["text"], joined);
    for (int i = 0; i < max_tokens; ++i)
      EXPECT_EQ(logprobs["token_logprobs"][ids.size() + i], output["token_logprobs"][i]);

    OrderedJson streaming = fields;
    streaming["stream"] = true;
    OrderedJson tokens = OrderedJson::array();
    std::string streamed;
    for (const OrderedJson& chunk : complete(streaming).chunks()) {
      const OrderedJson& piece = chunk["choices"][0];
      if (piece["index"] != 0) continue;
      streamed += piece["text"].get<std::string>();
      if (piece["logprobs"].is_null()) continue;
      for (const OrderedJson& token : piece["logprobs"]["tokens"]) tokens.push_back(token);
    }
    EXPECT_EQ(streamed, joined);
    EXPECT_EQ(tokens, logprobs["tokens"]);
  }
}

TEST_F(Completions, EchoWithLogprobsAtTheBorders) {
  const OrderedJson whole = OrderedJson(std::vector<int>(1024, 5));
  const OrderedJson fields = {{"echo", true}, {"logprobs", 0}, {"max_tokens", 0}};
  OrderedJson full = fields;
  full["prompt"] = whole;
  const TestResponse refused = complete(full);
  EXPECT_EQ(refused.json()["error"]["code"], "context_length_exceeded") << refused.body;
  full.erase("logprobs");
  EXPECT_EQ(complete(full).status, 200);
  // A byte that ends no character: what stands before it keeps its place.
  OrderedJson stray = fields;
  stray["prompt"] = {492, 225, 639};
  const OrderedJson choice = complete(stray).json()["choices"][0];
  EXPECT_EQ(choice["logprobs"]["text_offset"][0], 0) << choice;
  expect_refused(complete({{"prompt", {-5}}}), "prompt", "'prompt' holds");
}

// The begin token that a text gets is scored like any other, and takes no room in the echo.
TEST_F(Completions, EchoWithLogprobsOfAText) {
  const OrderedJson choice =
      complete({{"echo", true}, {"logprobs", 0}, {"max_tokens", 1}}).json()["choices"][0];
  const OrderedJson& logprobs = choice["logprobs"];
  const size_t count = logprobs["tokens"].size();
  ASSERT_GE(count, 3u) << choice;
  EXPECT_EQ(logprobs["text_offset"][0], 0);
  EXPECT_EQ(logprobs["text_offset"][1], 0);
  EXPECT_EQ(logprobs["text_offset"][count - 1], std::string("Once upon a time").size());
  EXPECT_TRUE(choice["text"].get<std::string>().starts_with("Once upon a time"));
}

TEST_F(Completions, Row28SeedsRepeat) {
  const auto draw = [&](int64_t seed) {
    return text({{"temperature", 1.0}, {"seed", seed}, {"max_tokens", 16}});
  };
  EXPECT_EQ(draw(7), draw(7));
  EXPECT_NE(draw(7), draw(8));
  EXPECT_EQ(draw(-3), draw(-3));
  const auto unseeded = [&] { return text({{"temperature", 1.0}, {"max_tokens", 16}}); };
  EXPECT_NE(unseeded(), unseeded());
}

// A client's seed gives each prompt of a list what it gives alone; without one no two are alike.
TEST_F(Completions, PromptsOfOneRequestShareNoNoiseUnasked) {
  const std::vector<std::string> same(3, "The old captain");
  const auto texts_of = [&](OrderedJson fields) {
    fields.update({{"prompt", same}, {"temperature", 1.0}, {"max_tokens", 16}, {"n", 2}});
    const OrderedJson json = complete(fields).json();
    std::vector<std::string> texts;
    for (const OrderedJson& choice : json["choices"]) texts.push_back(choice["text"]);
    return texts;
  };
  const auto distinct = [](const auto& texts) {
    return std::set<std::string>(texts.begin(), texts.end()).size();
  };
  EXPECT_EQ(distinct(texts_of({})), 6u);
  const std::vector<std::string> seeded = texts_of({{"seed", 5}});
  ASSERT_EQ(seeded.size(), 6u);
  EXPECT_EQ(distinct(seeded), 2u);
  const auto alone = [&](int seed) {
    return text({{"prompt", same[0]}, {"temperature", 1.0}, {"max_tokens", 16}, {"seed", seed}});
  };
  for (size_t i = 0; i < seeded.size(); ++i) EXPECT_EQ(seeded[i], alone(5 + i % 2)) << i;

  const auto generated = [&](OrderedJson params) {
    params.update({{"temperature", 1.0}, {"max_new_tokens", 16}});
    std::vector<std::string> texts;
    for (const OrderedJson& one :
         post("/generate", {{"text", same}, {"sampling_params", params}}).json())
      texts.push_back(one["text"]);
    return texts;
  };
  EXPECT_EQ(distinct(generated(OrderedJson::object())), 3u);
  EXPECT_EQ(generated({{"sampling_seed", 5}}), std::vector<std::string>(3, seeded[0]));
}

TEST_F(Completions, Row29To32GreedyByAnyName) {
  Request request{.prompt = "Once upon a time", .max_tokens = 12};
  request.sampling.temperature = 0;
  const std::string greedy = text({});
  EXPECT_EQ(greedy, plain_text(request));
  EXPECT_EQ(text({{"temperature", 1}, {"top_k", 1}}), greedy);
  EXPECT_EQ(text({{"temperature", 1}, {"top_p", 1e-6}}), greedy);
  EXPECT_EQ(text({{"temperature", 1}, {"min_p", 1}, {"top_p", 1}}), greedy);
  EXPECT_EQ(text({{"temperature", 0}, {"top_k", -1}}), greedy);
}

TEST_F(Completions, Row33LogitBias) {
  const OrderedJson ids = complete({{"return_token_ids", true}}).json()["choices"][0]["token_ids"];
  const std::string first = std::to_string(ids[0].get<int>());
  const OrderedJson banned =
      complete({{"logit_bias", {{first, -100}}}, {"return_token_ids", true}}).json();
  for (const OrderedJson& id : banned["choices"][0]["token_ids"]) EXPECT_NE(id, ids[0]);
  const OrderedJson forced =
      complete({{"logit_bias", {{first, 100}}}, {"return_token_ids", true}}).json();
  for (const OrderedJson& id : forced["choices"][0]["token_ids"]) EXPECT_EQ(id, ids[0]);
  expect_refused(complete({{"logit_bias", {{"8192", 1}}}}), "logit_bias", "8192");
  expect_refused(complete({{"logit_bias", {{"-1", 1}}}}), "logit_bias", "-1");
  expect_refused(complete({{"logit_bias", {{"5", 101}}}}), "logit_bias", "-100 to 100");
  // One token must not have two biases.
  for (const char* name : {"05", "-0", "+5", " 5", "5 ", "0x5", "5.0", "", "5e0"})
    expect_refused(complete({{"logit_bias", {{"5", 1}, {name, 1}}}}), "logit_bias", "no token id");
  EXPECT_EQ(complete({{"logit_bias", {{"8191", 1}}}}).status, 200);
}

TEST_F(Completions, Row34And79PenaltiesReachTheEngineAndHoldUnderSpeculation) {
  Request request{.prompt = "Once upon a time", .max_tokens = 24};
  request.sampling.temperature = 0;
  request.sampling.frequency_penalty = 1.5f;
  request.sampling.presence_penalty = 0.5f;
  request.sampling.repetition_penalty = 1.3f;
  const OrderedJson fields = {{"frequency_penalty", 1.5},
                              {"presence_penalty", 0.5},
                              {"repetition_penalty", 1.3},
                              {"max_tokens", 24}};
  EXPECT_EQ(text(fields), plain_text(request));
  EXPECT_NE(text(fields), text({{"max_tokens", 24}}));
  expect_refused(complete({{"repetition_penalty", 0}}), "repetition_penalty", "0.001");
  expect_refused(complete({{"presence_penalty", 2.5}}), "presence_penalty", "-2 to 2");
}

TEST_F(Completions, Row35And36WhatIsNotServedIsNamed) {
  expect_refused(complete({{"suffix", "x"}}), "suffix", "not supported");
  expect_refused(complete({{"best_of", 1}, {"n", 2}}), "best_of", "must equal 'n' (2), not 1");
  expect_refused(complete({{"best_of", 3}}), "best_of", "must equal 'n' (1), not 3");
  EXPECT_EQ(complete({{"best_of", 2}, {"n", 2}}).status, 200);
  EXPECT_EQ(complete({{"suffix", nullptr}, {"logprobs", nullptr}}).status, 200);
}

// Fields of vLLM and SGLang, which a client may send to any of the three.
TEST_F(Completions, WhatIsServedNowhereIsNamedEverywhere) {
  const auto ask = [&](const std::string& path, OrderedJson fields) {
    if (path == "/v1/completions") return complete(std::move(fields));
    if (path == "/v1/chat/completions") return chat(std::move(fields));
    fields["text"] = "Once";
    if (!fields.contains("sampling_params")) fields["sampling_params"] = OrderedJson::object();
    fields["sampling_params"]["max_new_tokens"] = 1;
    return post(path, fields);
  };
  for (const char* path : {"/v1/completions", "/v1/chat/completions", "/generate"}) {
    SCOPED_TRACE(path);
    for (const char* field :
         {"prompt_logprobs", "guided_grammar", "ebnf", "allowed_token_ids", "bad_words",
          "custom_logit_processor", "return_hidden_states", "return_tokens_as_token_ids",
          "lora_path", "session_params", "prompt_embeds", "input_embeds", "image_data"})
      expect_refused(ask(path, {{field, {{"x", 1}}}}), field, "not supported");
    // What 0 asks for.
    expect_refused(ask(path, {{"prompt_logprobs", 0}}), "prompt_logprobs", "not supported");
    expect_refused(ask(path, {{"thinking_token_budget", 0}}), "thinking_token_budget",
                   "not supported");
    expect_refused(ask(path, {{"truncate_prompt_tokens", 5}}), "truncate_prompt_tokens",
                   "not supported");
    EXPECT_EQ(ask(path, {{"thinking_token_budget", -1},
                         {"truncate_prompt_tokens", -1},
                         {"prompt_logprobs", nullptr},
                         {"bad_words", OrderedJson::array()},
                         {"lora_path", nullptr},
                         {"return_hidden_states", false}})
                  .status,
              200);
  }
  expect_refused(ask("/generate", {{"sampling_params", {{"bad_words", {"x"}}}}}),
                 "sampling_params.bad_words", "not supported");
}

TEST_F(Completions, TheBeginTokenCanBeLeftOut) {
  const OrderedJson bare =
      post("/tokenize", {{"prompt", "Once upon"}, {"add_special_tokens", false}}).json()["tokens"];
  const auto prompt_of = [&](const OrderedJson& fields) {
    OrderedJson body = {{"prompt", "Once upon"}, {"max_tokens", 1}, {"return_token_ids", true}};
    body.update(fields);
    return complete(body).json()["choices"][0]["prompt_token_ids"];
  };
  EXPECT_EQ(prompt_of({{"add_special_tokens", false}}), bare);
  EXPECT_EQ(prompt_of({{"add_special_tokens", nullptr}}).size(), bare.size() + 1);
  EXPECT_EQ(prompt_of({{"add_special_tokens", true}}), prompt_of({{"n", 1}}));
  expect_refused(complete({{"prompt", ""}, {"add_special_tokens", false}}), "prompt",
                 "'add_special_tokens' is false");
}

// Whoever sends a salt must not be left without one, whichever way it comes.
TEST_F(Completions, SaltsKeepPrefixesApartInEveryApi) {
  std::vector<int32_t> ids;
  for (int i = 0; i < 200; ++i) ids.push_back(100 + i % 50);
  const auto cached = [&](OrderedJson fields) {
    OrderedJson body = {{"prompt", ids}, {"max_tokens", 1}};
    OrderedJson native = {{"input_ids", ids}, {"sampling_params", {{"max_new_tokens", 1}}}};
    body.update(fields);
    native.update(fields);
    const OrderedJson one = post("/v1/completions", body).json();
    const OrderedJson two = post("/generate", native).json();
    return std::pair(one["usage"]["prompt_tokens_details"]["cached_tokens"].get<int>(),
                     two["meta_info"]["cached_tokens"].get<int>());
  };
  for (const char* name : {"cache_salt", "extra_key"}) {
    const OrderedJson fields = {{name, std::string("of ") + name}};
    const auto first = cached(fields), again = cached(fields);
    EXPECT_EQ(first.first, 0) << name;
    EXPECT_GT(first.second, 0) << name << ": the same salt through the other API";
    EXPECT_GT(again.first, 0) << name;
  }
  const auto alone = [&](const OrderedJson& fields) {
    OrderedJson native = {{"input_ids", ids}, {"sampling_params", {{"max_new_tokens", 1}}}};
    native.update(fields);
    return post("/generate", native).json()["meta_info"]["cached_tokens"].get<int>();
  };
  EXPECT_EQ(alone({{"cache_salt", "a new one"}}), 0);
  EXPECT_EQ(alone({{"extra_key", "another new one"}}), 0);
  EXPECT_EQ(complete({{"cache_salt", "a"}, {"extra_key", ""}}).status, 200);
  expect_refused(complete({{"cache_salt", "a"}, {"extra_key", "b"}}), "extra_key", "exclude");
}

TEST_F(Completions, TheNativeShapeTakesPriorityAndDrafts) {
  const OrderedJson body = {{"text", "Once upon a time"},
                            {"sampling_params", {{"temperature", 0}, {"max_new_tokens", 12}}},
                            {"priority", 3},
                            {"speculative_num_steps", 0}};
  const OrderedJson meta = post("/generate", body).json()["meta_info"];
  EXPECT_FALSE(meta.contains("spec_verify_ct")) << meta << ": nothing was drafted";
  OrderedJson wrong = body;
  wrong["priority"] = "high";
  expect_refused(post("/generate", wrong), "priority", "integer");
  wrong = body;
  wrong["speculative_num_steps"] = -1;
  expect_refused(post("/generate", wrong), "speculative_num_steps", "from 0");
}

TEST_F(Completions, TheNativeShapeOfLoadTools) {
  const OrderedJson params = {{"temperature", 0}, {"max_new_tokens", 12}};
  const OrderedJson one =
      post("/generate", {{"text", "Once upon a time"}, {"sampling_params", params}}).json();
  EXPECT_EQ(one["text"], text({})) << one;
  EXPECT_EQ(one["output_ids"].size(), 12u);
  EXPECT_EQ(one["meta_info"]["finish_reason"], (OrderedJson{{"type", "length"}, {"length", 12}}));
  EXPECT_EQ(one["meta_info"]["completion_tokens"], 12);
  EXPECT_GT(one["meta_info"]["e2e_latency"], 0.0);
  const OrderedJson ids = tokens_of(port(), "Once upon a time");
  const OrderedJson two =
      post("/generate", {{"input_ids", {ids, ids}}, {"sampling_params", params}}).json();
  ASSERT_EQ(two.size(), 2u);
  EXPECT_EQ(two[1]["text"], one["text"]);
  const TestResponse stream = post(
      "/generate", {{"text", "Once upon a time"}, {"sampling_params", params}, {"stream", true}});
  EXPECT_EQ(stream.chunks().back()["text"], one["text"]);
  EXPECT_EQ(stream.events().back(), "[DONE]");
  expect_refused(post("/generate", {{"sampling_params", params}}), "text", "must be given");
  expect_refused(post("/generate", {{"text", "a"}, {"token_ids_logprob", {1}}}),
                 "token_ids_logprob", "not supported");
  expect_refused(post("/generate", {{"text", "a"}, {"sampling_params", {{"top_p", 2}}}}),
                 "sampling_params.top_p", "not 2");
}

TEST_F(Completions, LogprobsInTheNativeShape) {
  const OrderedJson ids = tokens_of(port(), "Once upon a time");
  const OrderedJson body = {
      {"input_ids", ids},       {"sampling_params", {{"temperature", 0}, {"max_new_tokens", 4}}},
      {"return_logprob", true}, {"top_logprobs_num", 2},
      {"logprob_start_len", 0}, {"return_text_in_logprobs", true}};
  const OrderedJson answer = post("/generate", body).json();
  const OrderedJson& meta = answer["meta_info"];
  const OrderedJson same =
      complete({{"prompt", ids}, {"max_tokens", 4}, {"echo", true}, {"logprobs", 2}})
          .json()["choices"][0]["logprobs"];
  const auto expect_same = [&](const OrderedJson& entry, const OrderedJson& top, size_t place) {
    const OrderedJson& logprob = same["token_logprobs"][place];
    EXPECT_EQ(entry[2], same["tokens"][place]);
    if (logprob.is_null()) {
      EXPECT_TRUE(entry[0].is_null() && top.is_null());
      return;
    }
    EXPECT_FLOAT_EQ(entry[0].get<float>(), logprob.get<float>());
    ASSERT_EQ(top.size(), 2u);
    for (const OrderedJson& best : top)
      EXPECT_FLOAT_EQ(best[0].get<float>(),
                      same["top_logprobs"][place][best[2].get<std::string>()].get<float>());
  };
  ASSERT_EQ(meta["input_token_logprobs"].size(), ids.size());
  ASSERT_EQ(meta["output_token_logprobs"].size(), 4u);
  for (size_t i = 0; i < ids.size(); ++i) {
    EXPECT_EQ(meta["input_token_logprobs"][i][1], ids[i]);
    expect_same(meta["input_token_logprobs"][i], meta["input_top_logprobs"][i], i);
  }
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(meta["output_token_logprobs"][i][1], answer["output_ids"][i]);
    expect_same(meta["output_token_logprobs"][i], meta["output_top_logprobs"][i], ids.size() + i);
  }

  OrderedJson other = body;
  other["logprob_start_len"] = 2;  // what is told begins there
  other["return_text_in_logprobs"] = false;
  const OrderedJson later = post("/generate", other).json()["meta_info"]["input_token_logprobs"];
  ASSERT_EQ(later.size(), ids.size() - 2);
  EXPECT_EQ(later[0], OrderedJson::array({nullptr, ids[2], nullptr}));
  EXPECT_EQ(later[1][0], meta["input_token_logprobs"][3][0]);
  EXPECT_TRUE(later[1][2].is_null());

  other = body;
  other["logprob_start_len"] = -1;  // of the output alone, without the best ones
  other["top_logprobs_num"] = 0;
  other["stream"] = true;
  const OrderedJson last = post("/generate", other).chunks().back()["meta_info"];
  EXPECT_EQ(last["input_token_logprobs"].size(), 0u);
  EXPECT_EQ(last["output_token_logprobs"], meta["output_token_logprobs"]);
  EXPECT_FALSE(last.contains("output_top_logprobs"));

  other = body;  // the prompt's are not repeated by every event
  other["stream"] = true;
  const auto events = post("/generate", other).chunks();
  for (size_t i = 0; i < events.size(); ++i) {
    const OrderedJson& told = events[i]["meta_info"];
    const bool at_an_end = i == 0 || i + 1 == events.size();
    EXPECT_EQ(told["input_token_logprobs"].size(), at_an_end ? ids.size() : 0u) << i;
    EXPECT_EQ(told["input_top_logprobs"].size(), at_an_end ? ids.size() : 0u) << i;
  }
  EXPECT_EQ(events.back()["meta_info"]["input_top_logprobs"], meta["input_top_logprobs"]);

  for (const bool stream : {false, true}) {  // a prompt scored and nothing written
    other = body;
    other["sampling_params"]["max_new_tokens"] = 0;
    other["stream"] = stream;
    const TestResponse response = post("/generate", other);
    const OrderedJson scored = stream ? response.chunks().back() : response.json();
    EXPECT_EQ(scored["meta_info"]["input_token_logprobs"], meta["input_token_logprobs"]);
    EXPECT_EQ(scored["meta_info"]["output_token_logprobs"].size(), 0u);
    EXPECT_EQ(scored["meta_info"]["finish_reason"]["type"], "length");
    other["return_logprob"] = false;
    const TestResponse nothing = post("/generate", other);
    EXPECT_EQ((stream ? nothing.chunks().back() : nothing.json())["text"], "");
  }
  other = body;
  other["logprob_start_len"] = ids.size();
  expect_refused(post("/generate", other), "logprob_start_len", "a prompt has");
  other["logprob_start_len"] = -2;
  expect_refused(post("/generate", other), "logprob_start_len", "from -1");
}

// SGLang's clients cut off what they have had of each event; its flag spares them and us that.
// JSON has neither: every shape tells the least there is, as OpenAI does.
TEST(Logprobs, WhatHasNoLogarithmIsToldAsTheLeast) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const TokenLogprobs logprobs = {.chosen = -kInf, .top = {{5, 0.0f}, {6, NAN}, {7, -kInf}}};
  const std::vector<int32_t> ids = {4};
  Choice choice;
  choice.ids = ids;
  std::string of_completion, of_chat;
  append_completion_logprobs(of_completion, nullptr, choice, {}, ids, {&logprobs, 1});
  append_chat_logprobs(of_chat, nullptr, ids, {&logprobs, 1});
  const OrderedJson completion = OrderedJson::parse(of_completion);
  EXPECT_EQ(completion["token_logprobs"], OrderedJson::parse("[-9999.0]"));
  EXPECT_EQ(
      completion["top_logprobs"][0],
      OrderedJson::parse(
          R"({"token_id:5":0.0,"token_id:6":-9999.0,"token_id:7":-9999.0,"token_id:4":-9999.0})"));
  const OrderedJson chat = OrderedJson::parse(of_chat)["content"][0];
  EXPECT_EQ(chat["logprob"], -9999.0);
  EXPECT_EQ(chat["top_logprobs"][1]["logprob"], -9999.0);
  EXPECT_EQ(native_logprob(nullptr, 4, &logprobs).dump(), "[-9999.0,4,null]");
  EXPECT_EQ(native_top_logprobs(nullptr, &logprobs).dump(),
            "[[0.0,5,null],[-9999.0,6,null],[-9999.0,7,null]]");
}

TEST(GenerateServer, EventsTellAllSoFarOrWhatIsNew) {
  ServeOptions options = tales_options();
  Server all(options);
  all.load();
  options.incremental_generate = true;
  Server only_new(options);
  only_new.load();
  OrderedJson body = {{"text", {"Once upon a time", "The old captain"}},
                      {"sampling_params", {{"temperature", 0}, {"max_new_tokens", 60}, {"n", 2}}},
                      {"return_logprob", true},
                      {"top_logprobs_num", 2},
                      {"stream", true}};
  const auto streamed = [&](int port) {
    std::map<int, std::vector<OrderedJson>> events;  // of each choice
    for (const OrderedJson& event : TestClient(port).post("/generate", body).chunks())
      events[event["index"].get<int>()].push_back(event);
    return events;
  };
  auto sofar = streamed(all.port()), fresh = streamed(only_new.port());
  body["stream"] = false;
  const OrderedJson whole = TestClient(only_new.port()).post("/generate", body).json();
  ASSERT_EQ(whole.size(), 4u);
  // A choice that ends before its stream begins is one event.
  EXPECT_GT(fresh[0].size() + fresh[1].size() + fresh[2].size() + fresh[3].size(), 4u);
  for (int choice = 0; choice < 4; ++choice) {
    const OrderedJson& answer = whole[static_cast<size_t>(choice)];
    for (const OrderedJson& event : sofar[choice]) {
      const OrderedJson& meta = event["meta_info"];
      const size_t count = meta["completion_tokens"].get<size_t>();
      EXPECT_EQ(event["output_ids"].size(), count);
      EXPECT_EQ(meta["output_token_logprobs"].size(), count);
      EXPECT_TRUE(answer["text"].get<std::string>().starts_with(event["text"].get<std::string>()));
    }
    EXPECT_EQ(sofar[choice].back()["text"], answer["text"]);
    EXPECT_EQ(sofar[choice].back()["meta_info"]["output_top_logprobs"],
              answer["meta_info"]["output_top_logprobs"]);
    std::string text;
    OrderedJson ids = OrderedJson::array(), logprobs = ids, top = ids;
    for (const OrderedJson& event : fresh[choice]) {
      text += event["text"].get<std::string>();
      for (const OrderedJson& id : event["output_ids"]) ids.push_back(id);
      for (const OrderedJson& entry : event["meta_info"]["output_token_logprobs"])
        logprobs.push_back(entry);
      for (const OrderedJson& entry : event["meta_info"]["output_top_logprobs"])
        top.push_back(entry);
      EXPECT_EQ(event["meta_info"]["completion_tokens"], ids.size());
    }
    EXPECT_EQ(text, answer["text"].get<std::string>());
    EXPECT_EQ(ids, answer["output_ids"]);
    EXPECT_EQ(logprobs, answer["meta_info"]["output_token_logprobs"]);
    EXPECT_EQ(top, answer["meta_info"]["output_top_logprobs"]);
  }
}

}  // namespace
}  // namespace foresail
