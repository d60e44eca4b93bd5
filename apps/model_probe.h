// Probes of the machine that a model runs on, before and after what a bench times there.
#pragma once

#include "apps/probe_line.h"
#include "engine/loaded_model.h"

namespace foresail {

class ModelProbe {
 public:
  explicit ModelProbe(LoadedModel& model);  // the first
  void probe_again();
  Floors fastest() const { return fastest_of(run_.before, run_.after); }
  void print(bool json, bool has_shares) const;

 private:
  Floors probe();

  LoadedModel& model_;
  ThreadPool pool_;
  ProbedRun run_;
};

}  // namespace foresail
