// Which device runs a model: the names of --device, what each refuses, and the kernels it brings.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/thread_pool.h"
#include "foresail/options.h"
#include "kernels/kernel_set.h"

namespace foresail {

// "cpu", "cuda" or "ref": auto is cuda where there is a usable GPU and cpu elsewhere. Throws
// Error{kUsage} naming the choices.
std::string resolve_device(const std::string& name);
// Of the resolved device, 0 where that is not known.
uint64_t device_memory_bytes(const std::string& device);
// options.device is resolved. Throws Error{kUsage} for options that the device does not have and
// Error{kDevice} when it cannot be used. The pool outlives the set.
std::unique_ptr<KernelSet> create_kernels(const ModelOptions& options, DType dtype,
                                          ThreadPool& threads);

}  // namespace foresail
