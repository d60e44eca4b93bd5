#include "attention/ragged_plan.h"

namespace foresail {

RaggedPlan build_ragged_plan(const PrefixChunk& chunk, std::span<const PassLengths> requests) {
  RaggedPlan plan;
  plan.qo_indptr.assign(1, 0);
  plan.kv_indptr.assign(1, 0);
  auto part = chunk.parts.begin();
  for (size_t i = 0; i < requests.size(); ++i) {
    const bool present = part != chunk.parts.end() && part->sequence == static_cast<int32_t>(i);
    plan.qo_indptr.push_back(plan.qo_indptr.back() + requests[i].row_count);
    plan.kv_indptr.push_back(plan.kv_indptr.back() + (present ? part->key_count : 0));
    plan.kv_begin.push_back(present ? part->key_begin : 0);
    if (present) ++part;
  }
  return plan;
}

std::vector<PrefixPart> ragged_parts(const RaggedPlan& plan) {
  std::vector<PrefixPart> parts;
  for (size_t i = 0; i < plan.kv_begin.size(); ++i) {
    const int32_t key_count = plan.kv_indptr[i + 1] - plan.kv_indptr[i];
    if (key_count > 0) parts.push_back({static_cast<int32_t>(i), plan.kv_begin[i], key_count});
  }
  return parts;
}

}  // namespace foresail
