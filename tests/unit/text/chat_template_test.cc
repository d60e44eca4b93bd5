// What goldens cannot show: origin of every byte, limits, error lines, files.
#include "text/chat_template.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <ctime>
#include <filesystem>

#include "base/error.h"
#include "base/file.h"
#include "colliding_keys.h"
#include "text/render_input.h"

namespace foresail {
namespace {

namespace fs = std::filesystem;

std::string tag_pieces(const std::vector<TemplatePiece>& pieces) {
  std::string out;
  for (const TemplatePiece& piece : pieces)
    out += piece.from_template ? piece.text : "«" + piece.text + "»";
  return out;
}

// The output with conversation text in «»; errors as "error: ...".
std::string marked(const std::string& source, const std::string& content = "U<|x|>",
                   const jinja::Limits& limits = {}) {
  RenderInput input;
  input.messages = OrderedJson::array({{{"role", "user"}, {"content", content}, {"n", 5}}});
  input.bos_token = "<s>";
  const auto chat = ChatTemplate::parse(source, limits);
  if (!chat) return "error: " + chat.error().message;
  const auto pieces = chat->render_pieces(input);
  return pieces ? tag_pieces(*pieces) : "error: " + pieces.error().message;
}

TEST(ChatTemplateTaint, SurvivesEveryStringOperation) {
  const std::string c = "{% set c = messages[0].content %}";
  EXPECT_EQ(marked(c + "<a>{{ c }}<b>"), "<a>«U<|x|>»<b>");
  EXPECT_EQ(marked(c + "{{ bos_token + c ~ '!' }}"), "<s>«U<|x|>»!");
  EXPECT_EQ(marked(c + "{{ ('<' + c + '>')[1:-1] }}"), "«U<|x|>»");
  EXPECT_EQ(marked(c + "{{ ('ab' + c)[::-1] }}"), "«>|x|<U»ba");
  EXPECT_EQ(marked(c + "{{ (' ' + c + ' ') | trim }}|{{ ('x' + c).strip('x') }}"),
            "«U<|x|>»|«U<|x|>»");
  EXPECT_EQ(marked(c + "{{ 'a#b' | replace('#', c) }}{{ c.replace('U', '_') }}"),
            "a«U<|x|>»b_«<|x|>»");
  EXPECT_EQ(marked(c + "{{ ['a', c] | join(c) }}"), "a«U<|x|>U<|x|>»");
  EXPECT_EQ(marked(c + "{{ c.split('|') | join('+') }}"), "«U<»+«x»+«>»");
  EXPECT_EQ(marked(c + "{{ c | upper }}{{ ('a' + c) | lower }}"), "«U<|X|>»a«u<|x|>»");
  EXPECT_EQ(marked(c + "{{ '%s=%s' | format('k', c) }}{{ '{}:{}'.format(c, 1) }}"),
            "k=«U<|x|>U<|x|>»:1");
  EXPECT_EQ(marked(c + "{{ [c, 1] | tojson }}{{ ['a'] | tojson }}"), "«[\"U<|x|>\", 1]»[\"a\"]");
  EXPECT_EQ(marked(c + "{{ [c] }}{{ [1] }}"), "«['U<|x|>']»[1]");
  EXPECT_EQ(marked(c + "{% for x in c %}{{ x }}.{% endfor %}", "<a"), "«<».«a».");
  EXPECT_EQ(marked(c + "{% set b %}<{{ c }}>{% endset %}{{ b }}"), "<«U<|x|>»>");
  EXPECT_EQ(marked(c + "{% macro m(a) %}<{{ a }}>{% endmacro %}{{ m(c) }}"), "<«U<|x|>»>");
  EXPECT_EQ(marked(c + "{{ c | indent(2, true) }}", "a\nb"), "  «a»\n  «b»");
  EXPECT_EQ(marked("{{ messages[0].n }}{{ messages[0].n + 1 }}{{ messages | length }}"), "«56»1");
  EXPECT_EQ(marked("{% for k in messages[0] %}{{ k }}{% endfor %}"), "«rolecontentn»");
  EXPECT_EQ(marked(c + "{{ c * 2 }}{{ c.title() }}{{ c.center(9) }}", "ab"), "«ababAb»    «ab»   ");
}

TEST(ChatTemplateTaint, UsualRolesAreTemplateText) {
  EXPECT_EQ(marked("<{{ messages[0].role }}>"), "<user>");
  RenderInput input;
  input.messages = OrderedJson::array({{{"role", "<|im_start|>"}}});
  EXPECT_EQ(tag_pieces(*ChatTemplate::parse("{{ messages[0].role }}")->render_pieces(input)),
            "«<|im_start|>»");
}

TEST(ChatTemplateLimits, AreNamed) {
  const auto fails = [](const std::string& source, const std::string& what) {
    const std::string out = marked(source);
    EXPECT_EQ(out.rfind("error: chat template", 0), 0u) << out.substr(0, 200);
    EXPECT_NE(out.find(what), std::string::npos) << out.substr(0, 200);
  };
  for (const auto& [open, close] : {std::pair{'(', ')'}, std::pair{'[', ']'}}) {
    fails("{{ " + std::string(100'000, open) + "1" + std::string(100'000, close) + " }}",
          "max_parse_depth");
    EXPECT_EQ(marked("{{ " + std::string(100'000, open)).rfind("error: ", 0), 0u);
  }
  fails("{{ " + std::string(100'000, '-') + "1 }}", "max_parse_depth");
  std::string nots, sum = "1", dots = "a", ifs, conditionals;
  for (int i = 0; i < 50'000; ++i) nots += "not ", sum += "+1", dots += ".a", ifs += "{% if 1 %}";
  for (int i = 0; i < 50'000; ++i) conditionals += "1 if 1 else ";
  fails("{{ " + nots + "1 }}", "max_parse_depth");
  fails("{{ " + sum + " }}", "max_tree_depth");
  fails("{{ " + dots + " }}", "max_tree_depth");
  fails(ifs, "max_parse_depth");
  fails("{{ " + conditionals + "1 }}", "max_parse_depth");
  fails(std::string(2 << 20, 'x'), "max_source_bytes");
  fails("{{ 'a' * 10**9 }}", "max_string_bytes");
  fails("{{ [1] * 10**9 }}", "max_items");
  fails("{{ range(10**9) }}", "max_range");
  fails("{{ 10 ** 100 }}", "overflow");
  fails("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "max_call_depth");
  fails("{% for a in range(10**5) %}{% for b in range(10**5) %}{% endfor %}{% endfor %}",
        "max_steps");
  fails(
      "{% set s = namespace(v='aaaaaaaa') %}{% for i in range(99) %}{% set s.v = s.v + s.v %}{% "
      "endfor %}",
      "max_string_bytes");
  fails("{% set s = 'a' * 9000000 %}{% for i in range(99) %}{{ s }}{% endfor %}",
        "max_output_bytes");
  fails("{% set l = [] %}{% for i in range(9) %}{% set _ = l.append(l) %}{% endfor %}{{ l }}",
        "max_value_depth");
  fails("{% set l = [] %}{% set _ = l.append(l) %}{{ l | tojson }}", "max_value_depth");
  fails(
      "{% set l = [] %}{% set m = [] %}{% set _ = l.append(m) %}{% set _ = m.append(l) %}{{ l == m "
      "}}",
      "max_value_depth");
  fails("{% set l = [1] %}{% for x in l %}{% set _ = l.append(x) %}{% endfor %}", "limit");
  fails("{{ '%99999999d' % 1 }}", "format width");
}

// Each takes seconds to years of work for a few steps, unless what it works on counts too.
TEST(ChatTemplateLimits, LongTextsAndNestedValuesCountAsManySteps) {
  const std::string texts =
      "{% set s = 'a' * 2000000 %}{% set t = 'a' * 1999999 + 'b' %}{% set u = 'b' + s %}";
  const std::string nested =
      "{% set n = namespace(x=[1], y=[1], t=(1,), u=(1,)) %}{% for i in range(60) %}"
      "{% set n.x = [n.x, n.x] %}{% set n.y = [n.y, n.y] %}{% set n.t = (n.t, n.t) %}"
      "{% set n.u = (n.u, n.u) %}{% endfor %}";
  const std::string dicts =
      "{% set d = {} %}{% set n = namespace(d=d, l=[]) %}{% for i in range(9000) %}"
      "{% set _ = n.l.append((i, i)) %}{% endfor %}{% set d = dict(n.l) %}";
  const std::string loop = "{% for i in range(100000) %}{% set _ = ";
  const char* const of_texts[] = {"s == t",
                                  "s != t",
                                  "s < t",
                                  "s <= t",
                                  "s in [t]",
                                  "[s] == [t]",
                                  "[s] < [t]",
                                  "{1: s} == {1: t}",
                                  "s is eq(t)",
                                  "s is lt(t)",
                                  "s is sameas(t)",
                                  "{s: 1, t: 2}",
                                  "{s: 1}[t]",
                                  "{s: 1}.get(t)",
                                  "t in {s: 1}",
                                  "[t].count(s)",
                                  "s | length",
                                  "s | trim('ab')",
                                  "s.strip('a')",
                                  "t.strip(s)",
                                  "s.rfind(u)",
                                  "s.rfind('b' + s[:1000000])",
                                  "s.rsplit(u)",
                                  "s.rsplit('b' + s[:1000000])",
                                  "s.count(t)",
                                  "s.find(t)",
                                  "s.startswith(t)",
                                  "s.startswith((t, t, t))",
                                  "s.endswith((u, u, u))",
                                  "s ~ t",
                                  "s + t",
                                  "(s | safe) + t",
                                  "s | upper",
                                  "s.title()",
                                  "s is upper",
                                  "s.isalpha()",
                                  "s | int",
                                  "s | float",
                                  "'%.1s' % s",
                                  "'{:.1}'.format(s)",
                                  "[s, t] | sort",
                                  "[s, t] | min",
                                  "[s, s] | unique | list",
                                  "[s, t] | join('') | length",
                                  "s.split()",
                                  "s.splitlines()",
                                  "[s] | tojson",
                                  "[s] | string",
                                  "s | replace('c', '')",
                                  "s[1]",
                                  "s[::2]",
                                  "s | indent",
                                  "s | e",
                                  "{'a': t} | dictsort(by='value')"};
  const auto ends = [](const std::string& source) {
    const std::clock_t start = std::clock();
    const std::string out = marked(source, "", {.max_steps = 1'000'000});
    const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
    EXPECT_NE(out.find("exceeded"), std::string::npos) << source << "\n" << out.substr(0, 200);
    EXPECT_LT(seconds, 1.0) << source;
  };
  for (const std::string expression : of_texts) ends(texts + loop + expression + " %}{% endfor %}");
  for (const std::string expression :
       {"n.x == n.y", "n.x < n.y", "{n.t: 1}", "n.t == n.u", "n.t in {1: 2}"})
    ends(nested + loop + expression + " %}{% endfor %}");
  for (const std::string expression : {"d[9999]", "d.get(9999)", "9999 in d"})
    ends(dicts + loop + expression + " %}{% endfor %}");
}

// One within the other, which a search through them must not follow down the stack.
TEST(ChatTemplateLimits, DeepKeysAreRefused) {
  const std::string deep =
      "{% set n = namespace(t=()) %}{% for i in range(90000) %}{% set n.t = (n.t,) %}{% endfor %}";
  for (const char* use : {"{n.t: 1}", "{}.get(n.t)", "n.t in {}", "'a'.startswith(n.t)"})
    EXPECT_EQ(marked(deep + "{{ " + use + " }}").rfind("error: ", 0), 0u) << use;
}

TEST(ChatTemplateLimits, DeepChainsOfValuesAreFreedWithoutRecursion) {
  EXPECT_EQ(marked("{% set ns = namespace(l=[]) %}{% for i in range(90000) %}{% set ns.l = [ns.l] "
                   "%}{% endfor %}ok"),
            "ok");
}

TEST(ChatTemplateSandbox, NoAttributeReach) {
  EXPECT_EQ(marked("{{ ''.__class__ }}{{ [].__init__ }}{{ messages.__len__ }}"), "");
  for (const char* source :
       {"{{ ''.__class__.__mro__ }}", "{{ {}.update({}) }}", "{{ [].sort() }}", "{{ ''.encode() }}",
        "{{ '{0.__class__.__mro__}'.format(1) }}", "{{ messages.__class__() }}"}) {
    EXPECT_EQ(marked(source).rfind("error: chat template line 1: ", 0), 0u)
        << source << marked(source);
  }
}

TEST(ChatTemplateErrors, CarryTheLine) {
  EXPECT_EQ(marked("a\n\n{{ 1 +}}"),
            "error: chat template line 3: unexpected end of print statement");
  EXPECT_EQ(marked("a\n{% if x %}\n{{ x.y.z }}{% else %}\n\n{{ nope.z }}{% endif %}"),
            "error: chat template line 5: 'nope' is undefined");
  EXPECT_EQ(marked("\n{{ raise_exception('stop') }}"), "error: chat template line 2: stop");
  EXPECT_EQ(marked("{% if x %}"),
            "error: chat template line 1: Unexpected end of template, expected 'elif' or 'else' or "
            "'endif'");
  EXPECT_EQ(marked("\n{{ 1 | nope }}"), "error: chat template line 2: No filter named 'nope'.");
  EXPECT_NE(marked("\xff").find("UTF-8"), std::string::npos);
}

class ChatTemplateLoad : public ::testing::Test {
 protected:
  void SetUp() override {
    dir_ = fs::path(::testing::TempDir()) / "chat_template_load";
    fs::remove_all(dir_);
    fs::create_directories(dir_ / "additional_chat_templates");
  }
  void TearDown() override { fs::remove_all(dir_); }
  void write(const char* name, const std::string& text) { write_file(dir_ / name, text); }
  fs::path dir_;
};

TEST_F(ChatTemplateLoad, EveryPlace) {
  EXPECT_THROW(ChatTemplate::load(dir_), Error);
  write(
      "tokenizer_config.json",
      R"({"chat_template": "one {{ bos_token }}{{ eos_token }}", "bos_token": {"content": "<b>"}, "eos_token": null})");
  EXPECT_EQ(*ChatTemplate::load(dir_).render({}), "one <b>");
  write(
      "tokenizer_config.json",
      R"({"chat_template": [{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}]})");
  RenderInput with_tools;
  with_tools.tools = OrderedJson::array({1});
  EXPECT_EQ(*ChatTemplate::load(dir_).render({}), "d");
  EXPECT_EQ(*ChatTemplate::load(dir_).render(with_tools), "t");
  write("chat_template.jinja", "file {{ tools is none }}{{ documents is none }}");
  EXPECT_EQ(*ChatTemplate::load(dir_).render(with_tools), "file FalseTrue");
  write("additional_chat_templates/tool_use.jinja", "extra");
  EXPECT_EQ(*ChatTemplate::load(dir_).render(with_tools), "extra");
  EXPECT_EQ(ChatTemplate::load(dir_).names(), (std::vector<std::string>{"default", "tool_use"}));
  write("chat_template.jinja", "{% if %}");
  EXPECT_THROW(ChatTemplate::load(dir_), Error);
  fs::remove(dir_ / "chat_template.jinja");
  for (const char* bad :
       {R"({"chat_template": 5})", R"({"chat_template": [{"name": "x"}]})", "[1]", "{"}) {
    write("tokenizer_config.json", bad);
    EXPECT_THROW(ChatTemplate::load(dir_), Error) << bad;
  }
}

// What is there and can't be read is no file that is missing: it is named.
TEST_F(ChatTemplateLoad, OnlyWhatDoesNotExistIsAbsent) {
  fs::remove_all(dir_ / "additional_chat_templates");
  EXPECT_FALSE(ChatTemplate::find(dir_));
  for (const char* name : {"tokenizer_config.json", "chat_template.json", "chat_template.jinja",
                           "additional_chat_templates"})
    for (const char* target : {name, "gone"}) {
      fs::create_symlink(target, dir_ / name);
      try {
        ChatTemplate::find(dir_);
        ADD_FAILURE() << name;
      } catch (const Error& error) {
        EXPECT_THAT(error.what(), ::testing::HasSubstr(name));
      }
      fs::remove(dir_ / name);
    }
}

// A message's members were once found by a hash that everybody knows.
TEST(ChatTemplateLimits, MembersThatAreChosenToCollideCostNoMore) {
  RenderInput input;
  input.messages = OrderedJson::array({OrderedJson::object()});
  auto& members = input.messages[0].get_ref<OrderedJson::object_t&>();
  for (const std::string& key : CollidingKeys::all()) members.emplace_back(key, 0);
  members.emplace_back("content", "x");
  const auto chat = ChatTemplate::parse("{{ messages[0].content }}");
  const std::clock_t start = std::clock();
  EXPECT_EQ(tag_pieces(*chat->render_pieces(input)), "«x»");
  EXPECT_LT(std::clock() - start, 3 * CLOCKS_PER_SEC);
}

}  // namespace
}  // namespace foresail
