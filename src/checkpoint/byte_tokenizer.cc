#include "checkpoint/byte_tokenizer.h"

#include <iterator>

#include "base/json.h"
#include "base/utf8.h"

namespace foresail {
namespace {

constexpr int64_t kFirstByteId = 3;
constexpr int64_t kByteCount = 256;

struct ControlToken {
  const char* content;
  bool special;
};

constexpr ControlToken kLeading[] = {
    {"<｜begin▁of▁sentence｜>", true}, {"<｜end▁of▁sentence｜>", true}, {"<｜▁pad▁｜>", true}};

// As in DeepSeek-V3's tokenizer: roles and tools are matched in text but are not special.
constexpr ControlToken kTrailing[] = {{"<｜fim▁hole｜>", false},
                                      {"<｜fim▁begin｜>", false},
                                      {"<｜fim▁end｜>", false},
                                      {"<｜User｜>", false},
                                      {"<｜Assistant｜>", false},
                                      {"<|EOT|>", true},
                                      {"<｜tool▁calls▁begin｜>", false},
                                      {"<｜tool▁calls▁end｜>", false},
                                      {"<｜tool▁call▁begin｜>", false},
                                      {"<｜tool▁call▁end｜>", false},
                                      {"<｜tool▁outputs▁begin｜>", false},
                                      {"<｜tool▁outputs▁end｜>", false},
                                      {"<｜tool▁output▁begin｜>", false},
                                      {"<｜tool▁output▁end｜>", false},
                                      {"<｜tool▁sep｜>", false},
                                      {"<think>", false},
                                      {"</think>", false}};

// GPT-2's printable stand-in for a byte: itself when printable, else the next free code point
// from U+0100.
std::string byte_symbol(int byte) {
  const auto printable = [](int b) {
    return (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || (b >= 0xAE && b <= 0xFF);
  };
  char32_t code = static_cast<char32_t>(byte);
  if (!printable(byte)) {
    code = 0x100;
    for (int b = 0; b < byte; ++b) code += printable(b) ? 0 : 1;
  }
  std::string out;
  append_utf8(out, code);
  return out;
}

OrderedJson added_token(int64_t id, const ControlToken& token) {
  return {
      {"id", id},        {"content", token.content}, {"single_word", false},    {"lstrip", false},
      {"rstrip", false}, {"normalized", false},      {"special", token.special}};
}

OrderedJson split(const char* pattern) {
  return {{"type", "Split"},
          {"pattern", {{"Regex", pattern}}},
          {"behavior", "Isolated"},
          {"invert", false}};
}

OrderedJson byte_level(bool use_regex) {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", false},
          {"trim_offsets", true},
          {"use_regex", use_regex}};
}

constexpr const char* kChatTemplate =
    "{%- if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif "
    "%}"
    "{{ bos_token }}"
    "{%- for message in messages %}"
    "{%- if message['role'] == 'system' %}{{ message['content'] }}"
    "{%- elif message['role'] == 'user' %}{{ '<｜User｜>' + message['content'] }}"
    "{%- elif message['role'] == 'assistant' %}"
    "{{ '<｜Assistant｜>' + message['content'] + '<｜end▁of▁sentence｜>' }}"
    "{%- endif %}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<｜Assistant｜>' }}{% endif %}";

}  // namespace

int64_t byte_tokenizer_size() {
  return kFirstByteId + kByteCount + static_cast<int64_t>(std::size(kTrailing));
}

std::string byte_tokenizer_json() {
  OrderedJson added = OrderedJson::array();
  OrderedJson vocab = OrderedJson::object();
  int64_t id = 0;
  const auto add_control = [&](const ControlToken& token) {
    vocab[token.content] = id;
    added.push_back(added_token(id++, token));
  };
  for (const ControlToken& token : kLeading) add_control(token);
  for (int byte = 0; byte < kByteCount; ++byte) vocab[byte_symbol(byte)] = id++;
  for (const ControlToken& token : kTrailing) add_control(token);

  OrderedJson splits = OrderedJson::array();
  splits.push_back(split(R"(\p{N}{1,3})"));
  splits.push_back(split("[一-龥぀-ゟ゠-ヿ]+"));
  splits.push_back(
      split("[!\"#$%&'()*+,\\-./"
            ":;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+|"
            " ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"));
  splits.push_back(byte_level(false));

  OrderedJson out;
  out["version"] = "1.0";
  out["truncation"] = nullptr;
  out["padding"] = nullptr;
  out["added_tokens"] = added;
  out["normalizer"] = {{"type", "Sequence"}, {"normalizers", OrderedJson::array()}};
  out["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", splits}};
  out["post_processor"] = byte_level(true);
  out["decoder"] = byte_level(true);
  out["model"] = {{"type", "BPE"},
                  {"dropout", nullptr},
                  {"unk_token", nullptr},
                  {"continuing_subword_prefix", nullptr},
                  {"end_of_word_suffix", nullptr},
                  {"fuse_unk", false},
                  {"byte_fallback", false},
                  {"vocab", vocab},
                  {"merges", OrderedJson::array()}};
  return json_text(out, 1) + "\n";
}

std::string byte_tokenizer_config_json(int64_t max_positions) {
  OrderedJson out;
  out["add_bos_token"] = true;
  out["add_eos_token"] = false;
  out["bos_token"] = kLeading[0].content;
  out["eos_token"] = kLeading[1].content;
  out["pad_token"] = kLeading[2].content;
  out["unk_token"] = nullptr;
  out["clean_up_tokenization_spaces"] = false;
  out["model_max_length"] = max_positions;
  out["tokenizer_class"] = "LlamaTokenizerFast";
  out["chat_template"] = kChatTemplate;
  return json_text(out, 2) + "\n";
}

}  // namespace foresail
