// How the `indexed` backend takes one chunk of cached prefixes: query rows and keys of all requests
// laid out one after the other, a request without keys in the chunk being an empty range.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "attention/attention_plan.h"

namespace foresail {

struct RaggedPlan {
  std::vector<int32_t> qo_indptr;  // [requests + 1]
  std::vector<int32_t> kv_indptr;  // [requests + 1] into the keys of the chunk
  std::vector<int32_t> kv_begin;   // [requests] first key of the chunk in the request
};

RaggedPlan build_ragged_plan(const PrefixChunk& chunk, std::span<const PassLengths> requests);
// What the plan says to attend to; the parts of the chunk it was made from.
std::vector<PrefixPart> ragged_parts(const RaggedPlan& plan);

}  // namespace foresail
