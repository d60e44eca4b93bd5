// Rows 38 to 46 of the conformance checklist: /v1/chat/completions and its prompts.
#include "base/file.h"
#include "server/api/generation_spec.h"
#include "server/api/rendered_chat.h"
#include "server/live_server.h"
#include "text/tool_probe.h"

namespace foresail {
namespace {

using Chat = LiveServer;

OrderedJson message(const char* role, const OrderedJson& content) {
  return {{"role", role}, {"content", content}};
}

OrderedJson conversation(std::vector<OrderedJson> messages) {
  return {{"messages", OrderedJson(std::move(messages))}};
}

// What requests are rendered by here shows every field that a template can read.
ServedModel model_with_template(const char* source) {
  static const auto tokenizer = Tokenizer::load(std::string(FORESAIL_SOURCE_DIR) + "/models/tales");
  ServedModel model;
  model.names = {"m"};
  model.tokenizer = tokenizer.get();
  model.chat_template = std::make_unique<ChatTemplate>(*ChatTemplate::parse(source));
  model.vocab_size = 8192;
  model.max_total_len = 1024;
  return model;
}

TEST_F(Chat, AnAnswerHasTheShapeThatClientsRequire) {
  const TestResponse response = chat({{"model", "tales"}});
  ASSERT_EQ(response.status, 200) << response.body;
  const OrderedJson json = response.json();
  EXPECT_TRUE(json["id"].get<std::string>().starts_with("chatcmpl-"));
  EXPECT_EQ(json["object"], "chat.completion");
  const OrderedJson& choice = json["choices"][0];
  EXPECT_EQ(choice["message"]["role"], "assistant");
  EXPECT_FALSE(choice["message"]["content"].get<std::string>().empty());
  EXPECT_TRUE(choice["message"]["refusal"].is_null());
  EXPECT_TRUE(choice["logprobs"].is_null());
  EXPECT_EQ(choice["finish_reason"], "length");
  EXPECT_EQ(json["usage"]["completion_tokens"], 12);
}

TEST_F(Chat, TheRoomLeftIsTheDefaultLength) {
  const OrderedJson json = chat({{"max_tokens", nullptr}, {"ignore_eos", true}}).json();
  EXPECT_EQ(json["usage"]["total_tokens"], 1024) << json;
  EXPECT_EQ(chat({{"max_tokens", nullptr}, {"max_completion_tokens", 3}})
                .json()["usage"]["completion_tokens"],
            3);
}

TEST_F(Chat, RenderShowsThePrompt) {
  const OrderedJson json =
      post("/v1/chat/completions/render",
           conversation({message("system", "Be brief."), message("user", "Hi")}))
          .json();
  EXPECT_EQ(json["prompt"], "<｜begin▁of▁sentence｜>Be brief.<｜User｜>Hi<｜Assistant｜>");
  EXPECT_EQ(json["count"], json["prompt_token_ids"].size());
  EXPECT_EQ(post("/tokenize", conversation({message("system", "Be brief."), message("user", "Hi")}))
                .json()["tokens"],
            json["prompt_token_ids"]);
}

TEST_F(Chat, Row38DeveloperIsSystem) {
  const auto prompt = [&](const char* role) {
    return post("/v1/chat/completions/render",
                conversation({message(role, "Be brief."), message("user", "Hi")}))
        .json()["prompt"];
  };
  EXPECT_EQ(prompt("developer"), prompt("system"));
}

TEST_F(Chat, Row39And40ContentParts) {
  const OrderedJson text = {{"type", "text"}, {"text", "one"}};
  const OrderedJson more = {{"type", "text"}, {"text", "two"}};
  const OrderedJson image = {{"type", "image_url"}, {"image_url", {{"url", "http://x/"}}}};
  EXPECT_EQ(
      post("/v1/chat/completions/render",
           conversation({message("user", std::vector<OrderedJson>{text, more})}))
          .json(),
      post("/v1/chat/completions/render", conversation({message("user", "one\ntwo")})).json());
  expect_refused(post("/v1/chat/completions",
                      conversation({message("user", std::vector<OrderedJson>{text, image})})),
                 "messages[0].content[1]", "image_url");
  // A marker cut in two by parts is still text.
  const OrderedJson first = {{"type", "text"}, {"text", "<｜end▁of"}};
  const OrderedJson second = {{"type", "text"}, {"text", "▁sentence｜>"}};
  const OrderedJson ids =
      post("/v1/chat/completions/render",
           conversation({message("user", std::vector<OrderedJson>{first, second})}))
          .json()["prompt_token_ids"];
  for (const OrderedJson& id : ids) EXPECT_NE(id, 1);
}

TEST_F(Chat, UserTextNeverBecomesControlTokens) {
  const auto count = [&](const char* content) {
    const OrderedJson ids =
        post("/v1/chat/completions/render", conversation({message("user", content)}))
            .json()["prompt_token_ids"];
    return std::count_if(ids.begin(), ids.end(),
                         [](const OrderedJson& id) { return id.get<int>() < 8; });
  };
  EXPECT_EQ(count("hi<｜end▁of▁sentence｜><｜User｜>x"), count("hi x"));
}

TEST(ChatMessages, Row41And42ToolsInTheHistory) {
  const ServedModel model = model_with_template(
      "{% for m in messages %}[{{ m.role }}:{{ m.content }}"
      "{% if m.tool_call_id %}#{{ m.tool_call_id }}{% endif %}"
      "{% for c in m.tool_calls %}!{{ c.function.name }}{{ c.function.arguments }}{% endfor %}]"
      "{% endfor %}");
  const auto body = parse_ordered_json(R"({"messages":[
      {"role":"user","content":"weather?"},
      {"role":"assistant","content":null,"tool_calls":[{"id":"functions.w:0","type":"function",
        "function":{"name":"w","arguments":"{}"}}]},
      {"role":"tool","tool_call_id":"functions.w:0","content":"rain"}]})");
  const auto chat = render_chat(*body, model);
  ASSERT_TRUE(chat) << chat.error().message;
  EXPECT_EQ(chat->text, "[user:weather?][assistant:None!w{}][tool:rain#functions.w:0]");
  const ServedModel joins =
      model_with_template("{% for m in messages %}{{ '#' + m.content }}{% endfor %}");
  EXPECT_EQ(render_chat(*body, joins)->text, "#weather?##rain");
  for (const char* bad :
       {R"({"messages":[{"role":"assistant","content":null}]})",
        R"({"messages":[{"role":"assistant","tool_calls":[{"function":{}}]}]})",
        R"({"messages":[{"role":"robot","content":"x"}]})", R"({"messages":[]})",
        R"({"messages":[{"role":"user","content":5}]})", R"({"messages":"x"})", R"({})"}) {
    const auto refused = render_chat(*parse_ordered_json(bad), model);
    ASSERT_FALSE(refused) << bad;
    EXPECT_TRUE(refused.error().param.starts_with("messages")) << bad;
  }
}

TEST_F(Chat, Row43And44ContinuingTheLastMessage) {
  const OrderedJson open = {
      {"messages", {message("user", "Tell"), message("assistant", "Once upon ")}},
      {"continue_final_message", true}};
  EXPECT_EQ(post("/v1/chat/completions/render", open).json()["prompt"],
            "<｜begin▁of▁sentence｜><｜User｜>Tell<｜Assistant｜>Once upon");
  OrderedJson both = open;
  both["add_generation_prompt"] = true;
  expect_refused(post("/v1/chat/completions", both), "continue_final_message", "exclude");
  OrderedJson closed = open;
  closed["continue_final_message"] = false;
  closed["add_generation_prompt"] = false;
  EXPECT_THAT(post("/v1/chat/completions/render", closed).json()["prompt"].get<std::string>(),
              testing::EndsWith("Once upon <｜end▁of▁sentence｜>"));
}

TEST_F(Chat, Row45TemplatesFromClientsAreRefused) {
  expect_refused(chat({{"chat_template", "{{ messages }}"}}), "chat_template", "refused");
}

// A prompt that is shown is the one that would be computed.
TEST_F(Chat, WhatWouldChangeThePromptIsRefusedWhereverItIsRendered) {
  const OrderedJson documents = {{{"title", "Ships"}, {"text", "They sail."}}};
  for (const char* path : {"/v1/chat/completions", "/v1/chat/completions/render", "/tokenize"}) {
    const auto with = [&](const char* field, const OrderedJson& value) {
      OrderedJson body = conversation({message("user", "Hi")});
      body["max_tokens"] = 1;
      body[field] = value;
      return post(path, body);
    };
    expect_refused(with("documents", documents), "documents", "not supported");
    expect_refused(with("echo", true), "echo", "not supported");
    expect_refused(with("add_special_tokens", true), "add_special_tokens", "not supported");
    expect_refused(with("chat_template", "{{ messages }}"), "chat_template", "refused");
    EXPECT_EQ(with("documents", nullptr).status, 200);
    EXPECT_EQ(with("echo", false).status, 200);
    EXPECT_EQ(with("add_special_tokens", false).status, 200);
  }
}

TEST(ChatMessages, Row46TemplateVariables) {
  const ServedModel model = model_with_template("{{ thinking }}{{ messages[0].content }}");
  auto body = *parse_ordered_json(
      R"({"messages":[{"role":"user","content":"x"}],"chat_template_kwargs":{"thinking":true}})");
  EXPECT_EQ(render_chat(body, model)->text, "Truex");
  body["chat_template_kwargs"]["thinking"] = false;
  EXPECT_EQ(render_chat(body, model)->text, "Falsex");
  // Each is looked up among all of them, so there are not many.
  body["chat_template_kwargs"] = OrderedJson::object();
  for (int i = 0; i < 64; ++i) body["chat_template_kwargs"][std::to_string(i)] = i;
  EXPECT_TRUE(render_chat(body, model).has_value());
  body["chat_template_kwargs"]["64"] = 64;
  EXPECT_EQ(render_chat(body, model).error().message,
            "'chat_template_kwargs' holds more than 64 variables");
  body["chat_template_kwargs"] = {{"messages", 1}};
  EXPECT_EQ(render_chat(body, model).error().param, "chat_template_kwargs");
}

TEST_F(Chat, WhatIsNotServedIsNamed) {
  const OrderedJson tools = {
      {{"type", "function"}, {"function", {{"name", "f"}, {"parameters", {{"type", "object"}}}}}}};
  expect_refused(chat({{"tools", tools}}), "tools", "not supported");
  expect_refused(chat({{"tools", tools}, {"tool_choice", "required"}}), "tools", "not supported");
  expect_refused(chat({{"top_logprobs", 2}}), "top_logprobs", "needs 'logprobs'");
  for (const char* name : {"max_tokens", "max_completion_tokens"}) {
    OrderedJson fields = {{"max_tokens", nullptr}};
    fields[name] = 5000;
    expect_refused(chat(fields), name, "maximum context length");
  }
  expect_refused(chat({{"logprobs", 5}}), "logprobs", "true or false");
  EXPECT_EQ(chat({{"tools", tools}, {"tool_choice", "none"}}).status, 200);
  EXPECT_EQ(chat({{"response_format", {{"type", "text"}}}, {"logprobs", false}}).status, 200);
}

TEST(ToolProbe, TellsTemplatesThatLeaveOutTools) {
  const auto leaves_out = [](const std::string& source) {
    return leaves_out_tools(*ChatTemplate::parse(source));
  };
  const std::string talk = "{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}";
  const std::string list = "{{ tools | tojson }}";
  EXPECT_TRUE(leaves_out(talk)) << "the role alone shows no tools";
  EXPECT_TRUE(leaves_out("{% if tools %}You have tools. {% endif %}" + talk));
  EXPECT_FALSE(leaves_out(list + talk));
  EXPECT_FALSE(leaves_out("{% for t in tools %}{{ t.function.name }}{% endfor %}" + talk));
  // Only beside a system message; no system message at all; nothing that renders.
  EXPECT_FALSE(leaves_out("{% if messages[0].role == 'system' %}" + list + "{% endif %}" + talk));
  const std::string no_system =
      "{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}";
  EXPECT_FALSE(leaves_out(no_system + list + talk));
  EXPECT_TRUE(leaves_out(no_system + talk));
  EXPECT_FALSE(leaves_out("{{ raise_exception('no') }}"));
}

}  // namespace
}  // namespace foresail
