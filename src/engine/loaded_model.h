// A model ready to run: kernels, weights, caches, drafter, one iteration object over them.
// Owner: a command or the engine. Thread rule: one caller.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "attention/pass_planner.h"
#include "base/thread_pool.h"
#include "engine/memory_plan.h"
#include "foresail/options.h"
#include "model/mla_model.h"
#include "runtime/latent_store.h"
#include "speculative/drafter.h"
#include "speculative/iteration.h"

namespace foresail {

constexpr int kMostRunningRequests = 4096;

// Throws Error{kUsage} for what LoadedModel refuses before it has read anything.
void check_model_options(const ModelOptions& options);

class LoadedModel {
 public:
  // Throws Error for anything wrong with the model, the options or the machine.
  // kernels: instead of the set that the options name.
  explicit LoadedModel(ModelOptions options, LoadProgress progress = {},
                       std::unique_ptr<KernelSet> kernels = nullptr);

  const ModelOptions& options() const { return options_; }
  const ModelConfig& config() const { return model_->config(); }
  const MemoryPlan& memory_plan() const { return plan_; }
  int64_t context_length() const { return plan_.context_length; }
  KernelSet& kernels() { return *kernels_; }
  MlaModel& model() { return *model_; }
  const LatentStore& store() const { return *store_; }
  PassPlanner& planner() { return *planner_; }
  Drafter* drafter() { return drafter_.get(); }
  Iteration& iteration() { return *iteration_; }
  uint64_t packed_bytes() const { return packed_bytes_; }
  int64_t pages_per_slot() const { return pages_per_slot_; }
  int64_t page_count() const { return page_count_; }  // the sink included
  // Instead of the one that was loaded, at rest only.
  void use_drafter(std::unique_ptr<Drafter> drafter);

 private:
  void load_drafter(WeightLoader& loader, CacheFormat cache_format);

  ModelOptions options_;
  MemoryPlan plan_;
  std::unique_ptr<ThreadPool> threads_;
  std::unique_ptr<KernelSet> kernels_;
  std::unique_ptr<MlaModel> model_;
  std::unique_ptr<LatentStore> store_;
  std::unique_ptr<PassPlanner> planner_;
  std::unique_ptr<Drafter> drafter_;
  std::unique_ptr<Iteration> iteration_;
  int64_t pages_per_slot_ = 0;
  int64_t page_count_ = 0;
  uint64_t packed_bytes_ = 0;
};

}  // namespace foresail
