#include "bench/serve/load_prompts.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/error.h"
#include "base/file.h"

namespace foresail {
namespace {

constexpr size_t kMostBytes = size_t{1} << 30;

int64_t draw_length(int64_t most, double ratio, std::mt19937_64& engine) {
  const auto least = std::max<int64_t>(1, static_cast<int64_t>(static_cast<double>(most) * ratio));
  return std::uniform_int_distribution<int64_t>(std::min(least, most), most)(engine);
}

// Empty: the line is of no such format.
std::string read_text(const OrderedJson& line, const std::string& format) {
  const auto text_at = [](const OrderedJson& value) {
    return value.is_string() ? value.get<std::string>() : std::string();
  };
  if (format == "custom") return text_at(line.value("prompt", OrderedJson()));
  const char* const name = format == "mtbench" ? "turns" : "conversations";
  const OrderedJson turns = line.value(name, OrderedJson::array());
  if (!turns.is_array() || turns.empty()) return {};
  if (format == "mtbench") return text_at(turns[0]);
  return turns[0].is_object() ? text_at(turns[0].value("value", OrderedJson())) : std::string();
}

std::vector<OrderedJson> read_lines(const std::string& path) {
  const std::string text = read_input(path, kMostBytes);
  const size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin != text.npos && text[begin] == '[') {
    const OrderedJson list = OrderedJson::parse(text, nullptr, false);
    if (!list.is_array()) throw_error(ErrorCode::kUsage, "{}: is no JSON list", path);
    return list.get<std::vector<OrderedJson>>();
  }
  std::vector<OrderedJson> lines;
  int number = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string line = text.substr(at, end - at);
    at = end + 1;
    ++number;
    if (line.find_first_not_of(" \t\r") == line.npos) continue;
    lines.push_back(OrderedJson::parse(line, nullptr, false));
    if (!lines.back().is_object())
      throw_error(ErrorCode::kUsage, "{}: line {} is no JSON object", path, number);
  }
  return lines;
}

}  // namespace

std::vector<LoadPrompt> random_prompts(const RandomPromptOptions& options) {
  std::mt19937_64 engine(options.seed);
  std::uniform_int_distribution<int32_t> token(static_cast<int32_t>(options.vocab_size / 8),
                                               static_cast<int32_t>(options.vocab_size * 3 / 4));
  std::vector<LoadPrompt> prompts(static_cast<size_t>(options.count));
  for (LoadPrompt& prompt : prompts) {
    prompt.ids.resize(
        static_cast<size_t>(draw_length(options.input_tokens, options.range_ratio, engine)));
    for (int32_t& id : prompt.ids) id = token(engine);
    prompt.output_tokens = draw_length(options.output_tokens, options.range_ratio, engine);
  }
  return prompts;
}

std::vector<LoadPrompt> read_prompts(const std::string& path, const std::string& format,
                                     int64_t output_tokens) {
  std::vector<LoadPrompt> prompts;
  int number = 0;
  for (const OrderedJson& line : read_lines(path)) {
    ++number;
    LoadPrompt prompt;
    if (format == "openai" && line.is_object())
      prompt.messages = line.value("messages", OrderedJson());
    else if (line.is_object())
      prompt.text = read_text(line, format);
    if (prompt.text.empty() && !(prompt.messages.is_array() && !prompt.messages.empty()))
      throw_error(ErrorCode::kUsage, "{}: entry {} is not in the format \"{}\"", path, number,
                  format);
    prompt.output_tokens = output_tokens;
    for (const char* name : {"output_tokens", "max_tokens"})
      if (const auto asked = line.find(name); asked != line.end() && asked->is_number_integer())
        prompt.output_tokens = std::max<int64_t>(1, asked->get<int64_t>());
    prompts.push_back(std::move(prompt));
  }
  if (prompts.empty()) throw_error(ErrorCode::kUsage, "{}: holds no prompt", path);
  return prompts;
}

}  // namespace foresail
