// The choice of experts, the order of the pairs, and the rows of each expert's tiles split into
// bf16 terms for wide_product, in one launch: to the bit what route_and_order() and wide_product
// make one after the other.
// Stateless; pointers are device memory; records into `stream`; may be captured in a CUDA graph.
#pragma once

#include "kernels/cuda/moe.h"

namespace foresail::cuda {

constexpr int kChosenRowsWords = 3;

struct ChosenRowsArgs {
  RouteArgs route;
  ExpertTables experts;
  PairLists lists;
  GemmArgs product;          // of the experts; is_wide()
  void* scratch = nullptr;   // of that product
  int32_t* words = nullptr;  // [kChosenRowsWords] zeros, which are zero again afterwards
};
// Whether there are so few rows that every block of the launch has a processor.
bool fits_chosen_rows(const RouteArgs& route);
// The device must be an sm_90.
void choose_and_split(cudaStream_t stream, const ChosenRowsArgs& args);

}  // namespace foresail::cuda
