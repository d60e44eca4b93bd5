#include "kernels/cuda/attention_rates.h"

namespace foresail::cuda {
namespace {

// Multiply-adds of one multiprocessor in one clock, fitted to passes of a layer on an H200 (132
// multiprocessors at 1.98 GHz): docs/measurements/2026-11-30-attention-path-h200.md has the passes,
// what each number stands for and how well they fit. For other devices they are a guess: what runs
// there are the same kernels, and what counts is how these numbers compare.
constexpr double kTensorCores = 1230, kFixedCut = 390, kGeneral = 15;
constexpr double kUpProjection = 270, kOrderedUpProjection = 180;
// mma.sync with two blocks on a multiprocessor, and what one gets that is alone there. Two terms of
// every number take three products, and shared memory then holds one block.
constexpr double kExpanded = 310, kLoneBlock = 188, kExact = 112;
constexpr double kSecondTerm = 1150, kOrderedSecondTerm = 820;
constexpr int kBlockRows = 128;
// Clocks: five or six launches.
constexpr double kKeyList = 42000;

}  // namespace

AttentionRates attention_rates(AbsorbedKernel absorbed, int multiprocessors) {
  // The wide products of sm90/ add in another order, which the fixed cut is not for, and the
  // general kernel mostly runs where they do not exist.
  const bool wide_products = absorbed == AbsorbedKernel::kTensorCores;
  const double all = multiprocessors;
  AttentionRates rates;
  rates.absorbed = all * (absorbed == AbsorbedKernel::kTensorCores ? kTensorCores
                          : absorbed == AbsorbedKernel::kFixedCut  ? kFixedCut
                                                                   : kGeneral);
  rates.up_projection = all * (wide_products ? kUpProjection : kOrderedUpProjection);
  rates.expanded = all * kExpanded;
  rates.exact_expanded = all * kExact;
  rates.block_rows = kBlockRows;
  rates.block = kLoneBlock;
  rates.exact_block = kExact;
  rates.second_term = all * (wide_products ? kSecondTerm : kOrderedSecondTerm);
  rates.key_list = kKeyList;
  rates.own_pairs = 0.5;
  return rates;
}

}  // namespace foresail::cuda
