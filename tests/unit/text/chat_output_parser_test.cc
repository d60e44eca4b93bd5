// K11/31, K12: reasoning and tool calls, the same however the output is cut.
#include "text/chat_output_parser.h"

#include <gtest/gtest.h>

#include <tuple>

#include "base/utf8.h"

namespace foresail {
namespace {

struct Parsed {
  std::string reasoning, content;
  std::vector<ToolCallDelta> calls;

  // What a client puts together. Ids and names come once, in the first delta.
  void add(const ChatDelta& delta) {
    EXPECT_TRUE(is_valid_utf8(delta.reasoning) && is_valid_utf8(delta.content));
    reasoning += delta.reasoning;
    content += delta.content;
    for (const ToolCallDelta& call : delta.calls) {
      EXPECT_LE(call.index, static_cast<int>(calls.size()));
      if (call.index == static_cast<int>(calls.size())) {
        EXPECT_FALSE(call.id.empty() || call.name.empty());
        calls.push_back(call);
        continue;
      }
      EXPECT_TRUE(call.id.empty() && call.name.empty());
      EXPECT_EQ(call.index, static_cast<int>(calls.size()) - 1);
      calls.back().arguments += call.arguments;
    }
  }
  std::string shown() const {
    std::string out = "think[" + reasoning + "] say[" + content + "]";
    for (const ToolCallDelta& call : calls)
      out += " " + call.id + "=" + call.name + "(" + call.arguments + ")";
    return out;
  }
};

ChatSyntax syntax_of(const char* reasoning, const char* tools, bool as_tokens) {
  ChatSyntax syntax;
  if (*reasoning != 0) syntax.reasoning = find_reasoning_syntax(reasoning);
  if (*tools != 0) syntax.tools = find_tool_syntax(tools);
  for (size_t i = 0; as_tokens && i < kChatMarkerCount; ++i)
    if (!syntax.text(static_cast<ChatMarker>(i)).empty())
      syntax.ids[i] = 1000 + static_cast<int>(i);
  return syntax;
}

// The text in pieces that end at `cuts`; markers are told as tokens where they are some.
Parsed parse(const ChatSyntax& syntax, std::string_view text, const std::vector<size_t>& cuts,
             ChatOutputParser::Options options) {
  options.call_id_prefix = "id";
  ChatOutputParser parser(syntax, options);
  Parsed parsed;
  const auto push = [&](std::string_view piece, int32_t token) {
    ChatDelta delta;
    parser.push(piece, token, delta);
    parsed.add(delta);
  };
  std::string pending;
  for (size_t at = 0; at < text.size();) {
    size_t marker = kChatMarkerCount;
    for (size_t i = 0; i < kChatMarkerCount; ++i) {
      const std::string_view word = syntax.text(static_cast<ChatMarker>(i));
      if (syntax.ids[i] && text.substr(at).starts_with(word)) marker = i;
    }
    if (marker < kChatMarkerCount) {
      push(std::exchange(pending, {}), *syntax.ids[marker]);
      at += syntax.text(static_cast<ChatMarker>(marker)).size();
      continue;
    }
    pending += text[at++];
    const bool whole = incomplete_utf8_tail(pending) == 0;  // as the engine tells text
    if (whole && std::find(cuts.begin(), cuts.end(), at) != cuts.end())
      push(std::exchange(pending, {}), 7);
  }
  push(pending, 7);
  ChatDelta delta;
  parser.finish(delta, false);
  parsed.add(delta);
  return parsed;
}

// Checks the text whole, in single bytes, and cut in two at every byte; markers as tokens and not.
void expect_parsed(const char* reasoning, const char* tools, const std::string& text,
                   const std::string& expected, ChatOutputParser::Options options = {}) {
  for (const bool as_tokens : {false, true}) {
    const ChatSyntax syntax = syntax_of(reasoning, tools, as_tokens);
    std::vector<size_t> every;
    for (size_t i = 0; i <= text.size(); ++i) every.push_back(i);
    EXPECT_EQ(parse(syntax, text, {}, options).shown(), expected) << as_tokens;
    EXPECT_EQ(parse(syntax, text, every, options).shown(), expected) << as_tokens;
    for (const size_t cut : every)
      ASSERT_EQ(parse(syntax, text, {cut}, options).shown(), expected) << as_tokens << " " << cut;
  }
}

constexpr const char* kV3Call =
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n"
    "{\"city\":\"Rome\"}\n```<｜tool▁call▁end｜>";

TEST(ChatOutputParser, DeepSeekV3) {
  const std::string call = kV3Call;
  expect_parsed("", "deepseek_v3", "Hej \xF0\x9F\x98\x8A ```json",
                "think[] say[Hej \xF0\x9F\x98\x8A ```json]");
  expect_parsed("", "deepseek_v3", call + "<｜tool▁calls▁end｜>",
                "think[] say[] id0=get_weather({\"city\":\"Rome\"})");
  expect_parsed(
      "", "deepseekv3",
      "Let me see." + call +
          "\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"a\":\"\\n```\"}\n```"
          "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
      "think[] say[Let me see.] id0=get_weather({\"city\":\"Rome\"}) "
      "id1=f({\"a\":\"\\n```\"})");
  // Cut inside: what has come is told, half of a fence is not.
  expect_parsed("", "deepseek_v3", call.substr(0, call.find("\"Rome")),
                "think[] say[] id0=get_weather({\"city\":)");
  expect_parsed("", "deepseek_v3", call.substr(0, call.find("``<｜tool▁call▁end")),
                "think[] say[] id0=get_weather({\"city\":\"Rome\"})");
  // No call: shown as it is.
  expect_parsed("", "deepseek_v3",
                "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>odd<｜tool▁call▁end｜>",
                "think[] say[odd]");
}

// Cut anywhere, a call is told as far as it came once its name is whole, and before that not at
// all; nowhere does a piece of it become content, or half of a marker an argument.
TEST(ChatOutputParser, CutAtEveryByteOfACall) {
  const std::string kimi =
      "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>"
      "{\"a\":\"<b>\"}<|tool_call_end|><|tool_calls_section_end|>";
  const std::string v31 =
      "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"a\":\"<b>\"}"
      "<｜tool▁call▁end｜><｜tool▁calls▁end｜>";
  const std::string v3 = std::string(kV3Call) + "<｜tool▁calls▁end｜>";
  for (const auto& [tools, text, whole] : {std::tuple("kimi_k2", kimi, "{\"a\":\"<b>\"}"),
                                           std::tuple("deepseek_v31", v31, "{\"a\":\"<b>\"}"),
                                           std::tuple("deepseek_v3", v3, "{\"city\":\"Rome\"}")}) {
    const ChatSyntax syntax = syntax_of("", tools, false);
    const size_t call_begin = syntax.text(ChatMarker::kCallsBegin).size();
    const size_t arguments_begin = text.find('{'), call_end = text.find('}') + 1;
    for (const bool only_calls : {false, true})
      for (size_t end = 0; end <= text.size(); ++end) {
        ChatOutputParser parser(syntax, {.only_calls = only_calls, .call_id_prefix = "id"});
        ChatDelta delta;
        // The engine tells a character that was cut as one that cannot be shown.
        const std::string part = text.substr(0, end);
        const size_t broken = incomplete_utf8_tail(part);
        parser.push(std::string_view(part).substr(0, end - broken), 7, delta);
        const bool unfinished = parser.in_unfinished_call();
        parser.finish(delta, true, broken > 0 ? "\xEF\xBF\xBD" : "");
        // Half of the first marker may be text, where text may come.
        if (only_calls || end >= call_begin) {
          EXPECT_EQ(delta.content, "") << end;
        }
        EXPECT_EQ(delta.calls.empty(), end < arguments_begin) << end;
        std::string arguments;
        for (const ToolCallDelta& call : delta.calls) arguments += call.arguments;
        EXPECT_TRUE(std::string_view(whole).starts_with(arguments)) << end << ": " << arguments;
        if (end >= call_end) {
          EXPECT_EQ(arguments, whole) << end;
        }
        EXPECT_EQ(unfinished, !delta.calls.empty() && end < call_end) << end;
      }
  }
}

// What the model itself left without a name is all that it said.
TEST(ChatOutputParser, ACallWithoutANameAtItsOwnEnd) {
  expect_parsed("", "deepseek_v31", "Hm<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f {}",
                "think[] say[Hmf {}]");
}

// A client can call nothing by an empty name.
TEST(ChatOutputParser, AnEmptyNameIsNone) {
  const std::string v31 = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>";
  const std::string v31_end = "<｜tool▁call▁end｜><｜tool▁calls▁end｜>";
  expect_parsed("", "deepseek_v31", v31 + "<｜tool▁sep｜>{\"a\":1}" + v31_end,
                "think[] say[{\"a\":1}]");
  expect_parsed("", "deepseek_v3", v31 + "function<｜tool▁sep｜> \n```json\n{}\n```" + v31_end,
                "think[] say[ \n```json\n{}\n```]");
  for (const std::string header : {"", " ", ":0", "functions.:0", "functions."}) {
    const std::string kimi =
        "<|tool_calls_section_begin|><|tool_call_begin|>" + header + "<|tool_call_argument_begin|>";
    expect_parsed("", "kimi_k2",
                  kimi +
                      "{}<|tool_call_end|><|tool_call_begin|>functions.f:1"
                      "<|tool_call_argument_begin|>{}<|tool_call_end|>",
                  "think[] say[" + header + "{}] functions.f:1=f({})");
  }
}

TEST(ChatOutputParser, DeepSeekV31) {
  expect_parsed("deepseek_v3", "deepseek_v31",
                "<think>\nHm </thin k> no\n</think>\n\nSure.<｜tool▁calls▁begin｜>"
                "<｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"ä\": [1,2]}<｜tool▁call▁end｜>"
                "<｜tool▁call▁begin｜>g<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
                "think[Hm </thin k> no] say[Sure.] id0=f({\"ä\": [1,2]}) id1=g({})");
}

TEST(ChatOutputParser, KimiK2) {
  expect_parsed("kimi_k2", "kimi_k2",
                "<think>why not</think><|tool_calls_section_begin|><|tool_call_begin|>"
                "functions.get_weather:3<|tool_call_argument_begin|>{\"city\": \"Oslo\"}"
                "<|tool_call_end|><|tool_call_begin|>functions.a.b:4<|tool_call_argument_begin|>{}"
                "<|tool_call_end|><|tool_calls_section_end|>",
                "think[why not] say[] functions.get_weather:3=get_weather({\"city\": \"Oslo\"}) "
                "functions.a.b:4=a.b({})");
}

TEST(ChatOutputParser, Reasoning) {
  const ChatOutputParser::Options inside{.starts_in_reasoning = true};
  expect_parsed("deepseek_r1", "", "\n I think.\n\n It is 4. \n</think>\n\n4 <b>",
                "think[I think.\n\n It is 4.] say[4 <b>]", inside);
  expect_parsed("deepseek_r1", "", "<think>So\n</think>4", "think[So] say[4]", inside);
  expect_parsed("deepseek_r1", "", "never ends \n", "think[never ends] say[]", inside);
  expect_parsed("deepseek_v3", "", "Text with </think> in it", "think[] say[Text with  in it]");
  expect_parsed("kimi_k2", "", "<think></think>x", "think[] say[x]");
  ChatOutputParser::Options at_once = inside;
  at_once.streams_reasoning = false;
  expect_parsed("deepseek_r1", "", "a b c</think>d", "think[a b c] say[d]", at_once);
}

// What only looks like a marker is text where markers are tokens.
TEST(ChatOutputParser, TextThatLooksLikeAMarker) {
  const ChatSyntax syntax = syntax_of("deepseek_r1", "deepseek_v3", true);
  ChatOutputParser parser(syntax, {.starts_in_reasoning = true});
  ChatDelta delta;
  parser.push("one </think> two", 5, delta);
  EXPECT_TRUE(parser.in_reasoning());
  parser.push(" three", 1001, delta);
  EXPECT_FALSE(parser.in_reasoning());
  parser.push("<｜tool▁calls▁begin｜>", 5, delta);
  parser.finish(delta, false);
  EXPECT_EQ(delta.reasoning, "one </think> two three");
  EXPECT_EQ(delta.content, "<｜tool▁calls▁begin｜>");
}

TEST(ChatSyntax, ByNameAndByTemplate) {
  EXPECT_EQ(find_tool_syntax("deepseekv3"), find_tool_syntax("DeepSeek-V3"));
  EXPECT_EQ(find_tool_syntax("kimik2"), find_tool_syntax("kimi_k2"));
  EXPECT_EQ(find_tool_syntax("deepseek_r1"), find_tool_syntax("deepseek_v3"));
  EXPECT_EQ(find_reasoning_syntax("deepseek-r1")->name, "deepseek_r1");
  EXPECT_EQ(find_tool_syntax("other"), nullptr);
  const auto tokenizer =
      Tokenizer::load(std::string(FORESAIL_SOURCE_DIR) + "/tests/data/tokenizer/deepseek-v3-small");
  const auto detect = [&](const char* chat_template) {
    return ChatSyntax::choose("auto", "auto", chat_template, *tokenizer);
  };
  const ChatSyntax v31 = detect("{% if thinking %}<think>{% else %}</think><｜tool▁calls▁begin｜>");
  EXPECT_EQ(v31.tools, find_tool_syntax("deepseek_v31"));
  EXPECT_EQ(v31.reasoning, find_reasoning_syntax("deepseek_v3"));
  EXPECT_TRUE(v31.id(ChatMarker::kThinkBegin)) << "a token of this tokenizer";
  EXPECT_FALSE(v31.id(ChatMarker::kThinkEnd)) << "none of it";
  EXPECT_FALSE(v31.only(false, true).id(ChatMarker::kThinkBegin));
  EXPECT_EQ(detect("split('</think>')[-1] <｜tool▁calls▁begin｜>\n```json").tools,
            find_tool_syntax("deepseek_v3"));
  EXPECT_EQ(detect("<|im_middle|></think><|tool_calls_section_begin|>").reasoning,
            find_reasoning_syntax("kimi_k2"));
  EXPECT_EQ(detect("{{ messages }}").tools, nullptr);
  EXPECT_THROW(ChatSyntax::choose("none", "other", "", *tokenizer), std::exception);
}

}  // namespace
}  // namespace foresail
