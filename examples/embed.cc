// The engine inside a program: embed MODEL [PROMPT].
#include <foresail/engine.h>

#include <cstdio>
#include <cstring>
#include <exception>

int main(int argc, char** argv) try {
  if (argc > 1 && std::strcmp(argv[1], "--help") == 0) {
    std::puts("usage: embed [MODEL [PROMPT]]");
    return 0;
  }
  foresail::EngineOptions options;
  options.model_path = argc > 1 ? argv[1] : "models/tales";
  options.speculative.algorithm = foresail::SpeculativeAlgorithm::kMtp;
  foresail::Engine engine(options);
  auto stream = engine.submit({.prompt = argc > 2 ? argv[2] : "Once upon a time",
                               .max_tokens = 32,
                               .sampling = {.temperature = 0}});
  if (!stream) {
    std::fprintf(stderr, "error: %s\n", stream.error().message.c_str());
    return 1;
  }
  for (const foresail::Event& event : *stream) std::fputs(event.text.c_str(), stdout);
  std::printf("\naccept length %.2f\n", stream->stats().accept_length());
} catch (const std::exception& error) {
  std::fprintf(stderr, "error: %s\n", error.what());
  return 1;
}
