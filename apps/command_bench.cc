#include "apps/bench_commands.h"

namespace foresail {

void add_bench_command(Command& app) {
  Command* bench = app.add_subcommand("bench", "Measure speed beside its floors");
  bench->require_subcommand();
  add_bench_kernels(*bench);
  add_bench_latency(*bench);
  add_bench_depth(*bench);
  add_bench_ab(*bench);
  add_bench_serve(*bench);
}

}  // namespace foresail
