// Schemas as grammars: what comes out is valid, what is valid and spelled our way goes in, and what
// cannot be kept is refused by name. K16/40 among them.
#include <algorithm>
#include <ctime>
#include <span>

#include "base/json.h"
#include "schemas/schema_samples.h"
#include "schemas/schema_validator.h"
#include "unit/grammar/grammar_tools.h"

namespace foresail {
namespace {

using testing::HasSubstr;

std::string refusal(const std::string& schema) {
  const std::clock_t start = std::clock();
  const auto grammar = compile_schema_text(schema);
  EXPECT_LT(std::clock() - start, 1 * CLOCKS_PER_SEC);
  return grammar ? "" : grammar.error().message;
}

TEST(JsonSchema, RandomOutputsOfRandomSchemasAreValid) {
  std::mt19937 random(5);
  for (uint32_t seed = 0; seed < 300; ++seed) {
    const OrderedJson schema = SchemaSamples(seed).draw();
    GrammarMatcher matcher(schema_grammar(json_text(schema)), byte_tokens());
    for (int round = 0; round < 6; ++round) {
      const std::string text = draw_output(matcher, random, 20 * round);
      // Additional members may repeat a name of theirs, which this reads as one member.
      const OrderedJson json = OrderedJson::parse(text, nullptr, false);
      ASSERT_FALSE(json.is_discarded()) << text << "\n" << json_text(schema);
      EXPECT_TRUE(SchemaValidator(schema).valid(json)) << text << "\n" << json_text(schema);
    }
  }
}

TEST(JsonSchema, AnyObject) {
  std::mt19937 random(7);
  GrammarMatcher matcher(*compile_json_object(), byte_tokens());
  for (int round = 0; round < 200; ++round) {
    const std::string text = draw_output(matcher, random, round);
    const Json json = Json::parse(text, nullptr, false);
    EXPECT_TRUE(json.is_object()) << text;
  }
  EXPECT_TRUE(matches(matcher, R"({"a": [1, -2.5e+3, {}, []], "b": {"c":null}})"));
  EXPECT_TRUE(matches(matcher, "{\"\\ud83d\\ude0a\": \"\\u00E9\xF0\x9F\x98\x8A\\n\"}"));
  for (const char* bad : {"[1]", "{\"a\":01}", "{\"a\" :1}", "{\"a\":1,}", "{\"a\":+1}",
                          "{\"a\":.5}", "{\"a\":1.}", "{\"a\":\"\t\"}", "{\"a\":\"\\ud800\"}",
                          "{\"a\":\"\\udc00\\ud800\"}", "{\"a\":\"\xED\xA0\x80\"}",
                          "{\"a\":\"\xC0\x80\"}", "{\"a\":\"\\x\"}", "{\"a\":tru}", "{a:1}"})
    EXPECT_FALSE(matches(matcher, bad)) << bad;
  // Nothing may follow, and nothing goes on for ever.
  EXPECT_TRUE(matcher.must_end(state_after(matcher, "{}")));
  EXPECT_EQ(state_after(matcher, "{\"a\":  "), GrammarMatcher::kDead);
  EXPECT_EQ(state_after(matcher, " {"), GrammarMatcher::kDead);
  EXPECT_FALSE(is_allowed(matcher.allowed(matcher.start()), 256)) << "control tokens are no text";
}

TEST(JsonSchema, NumbersInRanges) {
  struct Range {
    const char* schema;
    std::vector<std::string> in, out;
  };
  const Range ranges[] = {
      {R"({"type":"integer","minimum":-3,"maximum":12})",
       {"-3", "-1", "0", "9", "12"},
       {"-4", "13", "-0", "00", "1.0", "120"}},
      {R"({"type":"integer","exclusiveMinimum":99,"exclusiveMaximum":1001})",
       {"100", "999", "1000"},
       {"99", "1001", "0100", "10000"}},
      {R"({"type":"number","minimum":0.05,"exclusiveMaximum":2})",
       {"0.05", "0.5", "1", "1.999999", "0.050"},
       {"0.04", "0", "2", "2.0", "0.0499", "1e1"}},
      {R"({"type":"number","minimum":-2.5,"maximum":-1e-3})",
       {"-2.5", "-0.001", "-1", "-2.50"},
       {"-2.51", "0", "-0.0009", "-0", "1"}},
      {R"({"type":"integer","minimum":1.5,"maximum":2.5})", {"2"}, {"1", "3"}},
      {R"({"minimum":1e14,"maximum":999999999999999})", {"100000000000000"}, {"99999999999999"}},
      {R"({"type":"integer","minimum":5,"exclusiveMinimum":5})", {"6"}, {"5"}},
      {R"({"type":"integer","maximum":0})", {"0", "-7"}, {"1", "-0"}},
      {R"({"type":"integer"})", {"0", "-123456789012345"}, {"1234567890123456", "1.5"}},
      {R"({"type":"number"})", {"0", "-1.5e-10", "7E3"}, {"1e400", "1e", "-"}}};
  for (const Range& range : ranges) {
    GrammarMatcher matcher(schema_grammar(range.schema), byte_tokens());
    for (const std::string& text : range.in)
      EXPECT_TRUE(matches(matcher, text)) << range.schema << text;
    for (const std::string& text : range.out)
      EXPECT_FALSE(matches(matcher, text)) << range.schema << text;
  }
}

TEST(JsonSchema, EveryIntegerOfARange) {
  std::mt19937 random(3);
  for (int round = 0; round < 60; ++round) {
    const int low = static_cast<int>(random() % 1500) - 800;
    const int high = low + static_cast<int>(random() % 700);
    GrammarMatcher matcher(
        schema_grammar(fmt::format(R"({{"type":"integer","minimum":{},"maximum":{}}})", low, high)),
        byte_tokens());
    for (int value = -1100; value < 1100; ++value)
      EXPECT_EQ(matches(matcher, std::to_string(value)), low <= value && value <= high) << value;
  }
}

TEST(JsonSchema, Texts) {
  struct Case {
    const char* schema;
    std::vector<std::string> in, out;
  };
  const Case cases[] = {
      {R"({"type":"object","properties":{"name":{"type":"string"}},"required":["name"]})",
       {R"({"name":"x"})", R"({"name": ""})"},
       {"{}", R"({"name":1})", R"({"nane":"x"})", R"({"name":"x","more":1})"}},
      {R"({"properties":{"a":{"const":1},"b":{"const":2},"c":{"const":3}},"required":["b"]})",
       {R"({"b":2})", R"({"a":1,"b":2})", R"({"b":2, "c":3})", R"({"a":1,"b":2,"c":3})"},
       {"{}", R"({"a":1})", R"({"b":2,"a":1})", R"({,"b":2})", R"({"b":2,})"}},
      {R"({"properties":{"ab":{"const":1}},"additionalProperties":{"type":"null"}})",
       {"{}", R"({"ab":1})", R"({"a":null})", R"({"ab":1,"abc":null,"x y":null})"},
       {R"({"ab":null})", R"({"ab":1,"ab":null})", R"({"a":1})"}},
      {R"({"type":"object","properties":{}})", {"{}"}, {R"({"a":1})"}},
      {R"({"type":"string","minLength":2,"maxLength":3})",
       {R"("ab")", R"("äöü")", R"("\u00e9x")", R"("\ud83d\ude0a\n")", "\"\xF0\x9F\x98\x8Ax\""},
       {R"("a")", R"("abcd")", R"("\u00e9")"}},
      {R"({"type":"string","pattern":"^a\\\"?\\n$"})", {R"("a\"\n")", R"("a\n")"}, {R"("a")"}},
      {R"({"pattern":"b"})", {R"("b")", R"("abc")", R"("\u0001b")"}, {R"("a")"}},
      {R"({"type":"string","pattern":"^x*$","maxLength":2})", {R"("")", R"("xx")"}, {R"("xxx")"}},
      {R"({"enum":["a","ab",1,null]})", {R"("a")", R"("ab")", "1", "null"}, {R"("b")", "11"}},
      {R"({"type":"string","enum":["a",1]})", {R"("a")"}, {"1"}},
      {R"({"type":"array","items":{"type":"integer"},"minItems":1,"maxItems":2})",
       {"[1]", "[1,2]", "[1, 2]"},
       {"[]", "[1,2,3]", "[1,]", "[,1]"}},
      {R"({"prefixItems":[{"const":1},{"const":2}],"minItems":1})",
       {"[1]", "[1,2]"},
       {"[]", "[2]", "[1,2,3]"}},
      {R"({"type":"array","items":{"$ref":"#"},"maxItems":1})",
       {"[]", "[[]]", "[[[]]]"},
       {"[[],[]]"}},
      {R"({"type":["integer","null"]})", {"4", "null"}, {"true"}},
      {R"({"anyOf":[{"type":"integer"},{"type":"string"}],"type":"string"})", {R"("a")"}, {"1"}},
      {R"({"$ref":"#/$defs/a~1b","$defs":{"a/b":{"const":"%"}}})", {R"("%")"}, {}},
      {R"({"type":"string","format":"date-time"})",
       {R"("2026-11-28T23:59:59Z")", R"("2026-02-01T00:00:00.5+01:00")"},
       {R"("2026-13-01T00:00:00Z")", R"("2026-11-28")"}},
      {R"({"oneOf":[{"properties":{"k":{"const":"a"},"x":{"type":"null"}},"required":["k"]},
           {"properties":{"k":{"const":"b"}},"required":["k"]}]})",
       {R"({"k":"a","x":null})", R"({"k":"b"})"},
       {R"({"k":"b","x":null})"}},
      {"true", {"1", "[{}]"}, {}},
      {"{}", {"\"a\"", "null"}, {}}};
  for (const Case& one : cases) {
    GrammarMatcher matcher(schema_grammar(one.schema), byte_tokens());
    for (const std::string& text : one.in)
      EXPECT_TRUE(matches(matcher, text)) << one.schema << " " << text;
    for (const std::string& text : one.out)
      EXPECT_FALSE(matches(matcher, text)) << one.schema << " " << text;
  }
}

TEST(JsonSchema, RefusesByName) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"properties":{"a":{"not":{}}}})", R"(at "#/properties/a": the keyword "not")"},
      {R"({"patternProperties":{}})", "patternProperties"},
      {R"({"uniqueItems":true})", "uniqueItems"},
      {R"({"multipleOf":2})", "multipleOf"},
      {R"({"if":{}})", "\"if\""},
      {R"({"zzz":1})", "zzz"},
      {R"({"type":"text"})", "\"type\" \"text\""},
      {R"({"type":[]})", "\"type\" is empty"},
      {R"({"enum":[]})", "\"enum\""},
      {R"({"anyOf":[]})", "\"anyOf\""},
      {R"({"$ref":"#"})", "comes back to itself"},
      {R"({"anyOf":[{"$ref":"#/$defs/a"}],"$defs":{"a":{"anyOf":[{"const":1},{"$ref":"#"}]}}})",
       "comes back to itself"},
      {R"({"$ref":"#/$defs/a"})", "leads nowhere"},
      {R"({"$ref":"http://x/y"})", "refer within"},
      {R"({"$ref":1})", "$ref"},
      {R"({"$ref":"#/a","minimum":1,"a":true})", "\"a\""},
      {R"({"anyOf":[true],"minimum":1})", R"("minimum" beside "anyOf")"},
      {R"({"oneOf":[{"type":"integer"},{"minimum":3}]})", "oneOf"},
      {R"({"allOf":[true,true]})", "allOf"},
      {"{\"pattern\":\"(?=a)\"}", "\"pattern\" has '(?='"},
      {R"({"pattern":"foo**"})", "quantifier"},
      {R"({"pattern":"a|b","maxLength":3})", "maxLength"},
      {R"({"format":"iri"})", "iri"},
      {R"({"type":"string","minLength":3,"maxLength":2})", "minLength"},
      {R"({"minItems":-1})", "minItems"},
      {R"({"maxItems":1.5})", "maxItems"},
      {R"({"maxLength":1e9})", "maxLength"},
      {R"({"minimum":"1"})", "minimum"},
      {R"({"minimum":1e300})", "minimum"},
      {R"({"minimum":3,"maximum":2})", "no output"},
      {R"({"type":"integer","minimum":0.1,"maximum":0.9})", "no output"},
      {"false", "no output"},
      {R"({"properties":{"a":{"$ref":"#"}},"required":["a"]})", "no output"},
      {R"({"properties":{"a":false},"required":["a"]})", "no output"},
      {R"({"properties":1})", "properties"},
      {R"({"required":"a"})", "required"},
      {R"({"type":"string","maxLength":199999})", "too large"},
      {"[1]", "must be an object"},
      {"{", "is no JSON"}};
  for (const auto& [schema, message] : cases)
    EXPECT_THAT(refusal(schema), HasSubstr(message)) << schema;
}

// Each within a second, without a deep stack.
TEST(JsonSchema, HostileSchemas) {
  std::string deep;
  for (int i = 0; i < 5000; ++i) deep += R"({"items":)";
  EXPECT_THAT(refusal(deep + "true" + std::string(5000, '}')), HasSubstr("nested deeper"));
  EXPECT_NE(refusal(R"({"pattern":")" + std::string(60'000, '(') + "\"}"), "");
  EXPECT_THAT(refusal(R"({"pattern":"a{1,1000000}"})"), HasSubstr("too large"));
  // What is repeated is stored once.
  EXPECT_EQ(refusal(R"({"pattern":"((a{1000}){1000}){1000}"})"), "");
  OrderedJson chain = {{"$ref", "#/$defs/0"}, {"$defs", OrderedJson::object()}};
  for (int i = 0; i < 5000; ++i)
    chain["$defs"][std::to_string(i)] = {{"$ref", "#/$defs/" + std::to_string((i + 1) % 5000)}};
  EXPECT_THAT(refusal(json_text(chain)), HasSubstr("comes back to itself"));
  EXPECT_NE(refusal(R"({"properties":{")" + std::string(250'000, 'a') +
                    R"(":true},"additionalProperties":true})"),
            "");
  EXPECT_THAT(refusal(std::string(300'000, ' ')), HasSubstr("longer than"));

  std::string nested = R"({"type":"string"})";
  for (int i = 0; i < 32; ++i) nested = R"({"items":)" + nested + "}";
  EXPECT_EQ(refusal(nested), "");
  OrderedJson wide = {{"properties", OrderedJson::object()}};
  for (int i = 0; i < 1000; ++i) wide["properties"][fmt::format("p{}", i)] = {{"type", "null"}};
  GrammarMatcher matcher(schema_grammar(json_text(wide)), byte_tokens());
  EXPECT_TRUE(matches(matcher, R"({"p3":null,"p999":null})"));
}

// A grammar whose states explode ends its own requests and nothing else.
TEST(GrammarMatcher, GivesUpOnExplodingGrammars) {
  const auto grammar = compile_regex("((a|b){0,400}a(a|b){400}c|(a|b){0,500}b(a|b){300}d)*");
  ASSERT_TRUE(grammar);
  GrammarMatcher matcher(*grammar, byte_tokens());
  std::mt19937 random(1);
  int32_t state = matcher.start();
  const std::clock_t start = std::clock();
  for (int i = 0; i < 100'000 && state != GrammarMatcher::kDead; ++i) {
    if (matcher.must_end(state)) break;
    matcher.allowed(state);
    const int32_t next = matcher.advance(state, random() % 2 == 0 ? 'a' : 'b');
    state =
        next == GrammarMatcher::kDead && !matcher.exhausted() ? matcher.advance(state, 'c') : next;
  }
  EXPECT_TRUE(matcher.exhausted());
  EXPECT_LT(std::clock() - start, 3 * CLOCKS_PER_SEC);
}

// It took what lay in front of its states for one of them.
TEST(GrammarMatcher, MayGiveUpBeforeItsFirstState) {
  const auto grammar = compile_regex("((a?){400}){200}");
  ASSERT_TRUE(grammar);
  GrammarMatcher matcher(*grammar, byte_tokens());
  EXPECT_TRUE(matcher.exhausted());
  ASSERT_EQ(matcher.start(), GrammarMatcher::kDead);
  const std::span<const uint64_t> allowed = matcher.allowed(GrammarMatcher::kDead);
  EXPECT_TRUE(std::all_of(allowed.begin(), allowed.end(), [](uint64_t bits) { return bits == 0; }));
  EXPECT_EQ(matcher.advance(GrammarMatcher::kDead, 'a'), GrammarMatcher::kDead);
  EXPECT_FALSE(matcher.can_end(GrammarMatcher::kDead));
  EXPECT_FALSE(matcher.must_end(GrammarMatcher::kDead));
}

}  // namespace
}  // namespace foresail
