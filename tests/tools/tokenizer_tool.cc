// tokenizer_tool MODEL_DIR: reads lines "plain HEX" or "control HEX" (text in hexadecimal), prints
// the ids of each, then " | " and the decoded text in hexadecimal. Driven by
// scripts/compare_tokenizer.py. tokenizer_tool MODEL_DIR FILE: prints encoding speed on a file.
#include <chrono>
#include <cstdio>
#include <iostream>
#include <string>

#include "base/error.h"
#include "base/file.h"
#include "text/detokenizer.h"

namespace {

std::string from_hex(std::string_view hex) {
  std::string out;
  for (size_t i = 0; i + 1 < hex.size(); i += 2)
    out += static_cast<char>(std::stoi(std::string(hex.substr(i, 2)), nullptr, 16));
  return out;
}

void answer_lines(const foresail::Tokenizer& tokenizer) {
  std::string line;
  while (std::getline(std::cin, line)) {
    const bool control = line.starts_with("control ");
    const std::string text = from_hex(std::string_view(line).substr(control ? 8 : 6));
    const std::vector<int32_t> ids = tokenizer.encode(text, {.allow_control = control});
    foresail::Detokenizer stream(tokenizer, false);
    std::string decoded;
    for (const int32_t id : ids) {
      std::printf("%d ", id);
      decoded += stream.push(id);
    }
    std::printf("|");
    for (const char byte : decoded + stream.flush())
      std::printf("%02x", static_cast<unsigned char>(byte));
    std::printf("\n");
  }
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc < 2) return 2;
  using Clock = std::chrono::steady_clock;
  const auto seconds_since = [](Clock::time_point begin) {
    return std::chrono::duration<double>(Clock::now() - begin).count();
  };
  const auto load_begin = Clock::now();
  const auto tokenizer = foresail::Tokenizer::load(argv[1]);
  if (argc == 2) {
    answer_lines(*tokenizer);
    return 0;
  }
  std::printf("load %.2f s\n", seconds_since(load_begin));
  const std::string text = foresail::read_text_file(argv[2], 1ull << 30);
  for (int repeat = 0; repeat < 5; ++repeat) {
    const auto begin = Clock::now();
    const size_t num_tokens = tokenizer->encode(text).size();
    const double seconds = seconds_since(begin);
    std::printf("%zu bytes, %zu tokens, %.3f s, %.1f MB/s\n", text.size(), num_tokens, seconds,
                static_cast<double>(text.size()) / 1e6 / seconds);
  }
} catch (const foresail::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return error.exit_status();
}
