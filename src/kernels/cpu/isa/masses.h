// What tokens weigh in top-p: the arithmetic of token_truncation.h, to the bit, over many at once.
#pragma once

namespace foresail {
namespace {

// Every call is inlined: those functions are shared with other objects.
__attribute__((flatten)) void token_masses(const float* logits, int64_t n, float largest,
                                           double inverse_temperature, uint64_t* __restrict masses,
                                           int32_t* __restrict bins) {
  double near[kMostMasses];
  for (int64_t i = 0; i < n; ++i)
    near[i] = (static_cast<double>(logits[i]) - static_cast<double>(largest)) * inverse_temperature;
  for (int64_t i = 0; i < n; ++i)
    near[i] = near[i] > -kMasslessDistance ? near[i] : -kMasslessDistance;
  for (int64_t i = 0; i < n; ++i) {
    bins[i] = static_cast<int32_t>(-near[i] * kMassBinsPerUnit);
    // token_mass() in two parts, which all sets convert in lanes.
    const double mass = plain_exp_near(near[i]) * 0x1p42;
    const auto high = static_cast<int32_t>(mass * 0x1p-22);
    const auto low = static_cast<int32_t>(mass - high * 0x1p22);
    masses[i] = (static_cast<uint64_t>(high) << 22) + static_cast<uint64_t>(low);
  }
}

}  // namespace
}  // namespace foresail
