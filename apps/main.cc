#include "apps/command.h"
#include "apps/program.h"

namespace foresail {
namespace {

constexpr const char* kExamples =
    "examples:\n"
    "  foresail run models/tales -p \"Once upon a time\"\n"
    "  foresail serve models/tales --speculative-algorithm MTP\n"
    "  foresail inspect models/tales\n"
    "  foresail make-model /tmp/tiny --preset tiny-mla\n";

int run(int argc, char** argv) {
  CommandLine line(
      "foresail",
      "Foresail serves latent-attention (MLA) language models with speculative decoding.",
      version_line());
  Command& app = line.root();
  add_run_command(app);
  add_chat_command(app);
  add_serve_command(app);
  add_generate_command(app);
  add_eval_command(app);
  add_inspect_command(app);
  add_text_commands(app);
  add_make_model_command(app);
  add_bench_command(app);
  add_env_command(app);
  add_version_command(app);
  app.footer(kExamples);  // last, or every command would inherit it
  return run_program(line, argc, argv);
}

}  // namespace
}  // namespace foresail

int main(int argc, char** argv) {
  return foresail::run(argc, argv);
}
