// Chat templates against jinja2, byte for byte.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <map>

#include "base/file.h"
#include "base/json.h"
#include "opt_in_test.h"
#include "text/chat_template.h"
#include "text/render_input.h"

namespace foresail {
namespace {

namespace fs = std::filesystem;

constexpr std::time_t kNow = 1700000000;  // as scripts/compare_templates.py
constexpr uint64_t kMaxGoldenBytes = 512ull << 20;

OrderedJson read_goldens(const fs::path& path) {
  return OrderedJson::parse(read_text_file(path, kMaxGoldenBytes));
}

// A context of goldens.json with its conversation and its tools in the place of their names.
OrderedJson context_of(const OrderedJson& goldens, const std::string& name) {
  OrderedJson context = goldens["contexts"][name];
  context["messages"] = goldens["conversations"][context["messages"].get<std::string>()];
  if (!context["tools"].is_null()) context["tools"] = goldens["tools"];
  return context;
}

RenderInput input_of(const OrderedJson& context) {
  RenderInput input;
  input.now = kNow;
  for (const auto& [key, value] : context.items()) {
    if (key == "messages")
      input.messages = value;
    else if (key == "tools")
      input.tools = value;
    else if (key == "documents")
      input.documents = value;
    else if (key == "add_generation_prompt")
      input.add_generation_prompt = value;
    else if (key == "bos_token")
      input.bos_token = value.get<std::string>();
    else if (key == "eos_token")
      input.eos_token = value.get<std::string>();
    else
      input.extra[key] = value;
  }
  return input;
}

// Empty when the golden holds.
std::string compare(const Result<ChatTemplate>& chat, const OrderedJson& golden,
                    const OrderedJson& context) {
  const bool fails = golden.contains("error");
  if (!chat) return fails ? "" : "refused: " + chat.error().message;
  const auto output = chat->render(input_of(context));
  if (!output) {
    if (!fails) return "error: " + output.error().message;
    EXPECT_EQ(output.error().message.find('\n'), std::string::npos) << output.error().message;
    return "";
  }
  if (fails)
    return "should fail with: " + golden["error"].get<std::string>() + "\n got: " + *output;
  const std::string want = golden["output"];
  if (*output == want) return "";
  size_t at = 0;
  while (at < want.size() && at < output->size() && want[at] == (*output)[at]) ++at;
  at = at < 20 ? 0 : at - 20;
  return "want: ..." + want.substr(at, 200) + "\n got: ..." + output->substr(at, 200);
}

void compare_folder(const fs::path& folder) {
  std::map<std::string, Result<ChatTemplate>> templates;
  std::map<std::string, int> cases, mismatches;
  const OrderedJson goldens = read_goldens(folder / "goldens.json");
  for (const OrderedJson& golden : goldens["cases"]) {
    const std::string name = golden["template"];
    auto it = templates.find(name);
    if (it == templates.end()) {
      it = templates.emplace(name, ChatTemplate::parse(read_text_file(folder / name, 1 << 22)))
               .first;
    }
    ++cases[name];
    const std::string difference =
        compare(it->second, golden, context_of(goldens, golden["case"].get<std::string>()));
    if (difference.empty()) continue;
    if (++mismatches[name] <= 3)
      ADD_FAILURE() << name << " " << golden["case"] << "\n" << difference;
  }
  for (const auto& [name, count] : cases) {
    std::printf("%-50s %d cases, %d mismatches\n", name.c_str(), count, mismatches[name]);
    EXPECT_EQ(mismatches[name], 0) << name;
  }
}

TEST(TemplateGolden, OwnTemplatesMatchJinja2) {
  setenv("TZ", "UTC", 1);
  compare_folder(fs::path(FORESAIL_SOURCE_DIR) / "tests/data/template");
}

// Folder made by scripts/compare_templates.py.
const bool kTemplateFolder = OptInTest::add(
    "TemplateFolder", "MatchesJinja2", "FORESAIL_TEMPLATES_DIR", [](const std::string& folder) {
      setenv("TZ", "UTC", 1);
      compare_folder(folder);
    });

TEST(TemplateGolden, ExpressionsMatchJinja2) {
  setenv("TZ", "UTC", 1);
  int cases = 0;
  const fs::path path = fs::path(FORESAIL_SOURCE_DIR) / "tests/data/template/expressions.json";
  const OrderedJson goldens = read_goldens(path);
  for (const OrderedJson& golden : goldens["cases"]) {
    ++cases;
    const std::string source = golden["template"];
    const std::string difference = compare(ChatTemplate::parse(source), golden, goldens["context"]);
    EXPECT_TRUE(difference.empty()) << source << "\n" << difference;
  }
  EXPECT_GT(cases, 300);
}

}  // namespace
}  // namespace foresail
