// The flags of every command that serves many requests at once.
#pragma once

#include "apps/model_flags.h"
#include "engine/engine_loop.h"

namespace foresail {

struct EngineFlags {
  ModelFlags model;
  EngineOptions engine;  // its model part is set by load_engine_model
};

// The model flags with the --speculative-* ones, and those of the scheduler.
void add_engine_flags(Command& command, EngineFlags& flags);

std::unique_ptr<LoadedModel> load_engine_model(EngineFlags& flags);

}  // namespace foresail
