#include "apps/model_probe.h"

#include <cmath>
#include <thread>

#include "kernels/cuda/cuda_kernels.h"

namespace foresail {

ModelProbe::ModelProbe(LoadedModel& model)
    : model_(model),
      pool_(model.options().threads > 0 ? model.options().threads
                                        : static_cast<int>(std::thread::hardware_concurrency())) {
  run_.threads = pool_.thread_count();
  run_.kernels = model.kernels().name();
  run_.before = probe();
}

void ModelProbe::probe_again() {
  run_.after = probe();
}

Floors ModelProbe::probe() {
  // Of a GPU only memory is probed: its arithmetic share is not shown.
  if (!model_.kernels().memory().is_host())
    return {.bytes_per_s = probe_cuda_copy(), .operations_per_s = NAN};
  return probe_floors(pool_, model_.options().cpu_isa,
                      model_.kernels().act_dtype() == DType::kBF16);
}

void ModelProbe::print(bool json, bool has_shares) const {
  print_probes(run_, json, has_shares);
}

}  // namespace foresail
