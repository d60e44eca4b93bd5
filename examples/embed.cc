// The engine inside a program: embed MODEL [PROMPT].
#include <foresail/engine.h>

#include <cstdio>
#include <cstring>
#include <exception>
#include <string>
#include <vector>

int main(int argc, char** argv) try {
  if (argc > 1 && std::strcmp(argv[1], "--help") == 0) {
    std::puts("usage: embed [MODEL [PROMPT]]");
    return 0;
  }
  foresail::EngineOptions options;
  options.model_path = argc > 1 ? argv[1] : "models/tales";
  options.speculative.algorithm = foresail::SpeculativeAlgorithm::kMtp;
  options.log = [](foresail::LogLevel, const std::string& message) {
    std::fprintf(stderr, "%s\n", message.c_str());
  };
  foresail::Engine engine(options);

  // Drawn as the model's generation_config.json asks. Equal seeds draw equal texts, so each request
  // has one of its own.
  foresail::Request request{.prompt = argc > 2 ? argv[2] : "Once upon a time",
                            .max_tokens = 32,
                            .sampling = engine.default_sampling()};
  // Of a conversation instead:
  //   auto ids = engine.encode_chat({{{"user", "Tell me a story."}}});  // refused: ids.error()
  //   if (ids) request.input_ids = *ids;
  std::vector<foresail::Request> requests(2, request);
  requests[1].sampling.seed = 1;
  for (auto& stream : engine.submit(requests)) {
    if (!stream) {
      std::fprintf(stderr, "error: %s\n", stream.error().message.c_str());
      return 1;
    }
    for (const foresail::Event& event : *stream) std::fputs(event.text.c_str(), stdout);
    std::printf("\naccept length %.2f\n", stream->stats().accept_length());
  }
} catch (const std::exception& error) {
  std::fprintf(stderr, "error: %s\n", error.what());
  return 1;
}
