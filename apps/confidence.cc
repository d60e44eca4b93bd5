#include "apps/confidence.h"

#include <cmath>
#include <iterator>
#include <limits>

#include "engine/batch_bench.h"

namespace foresail {
namespace {

// Two-sided 95 % quantiles of Student's t: a table for 1 to 10 degrees of freedom, beyond it a fit
// that is right to 0.01.
double t_quantile(size_t degrees) {
  constexpr double kTable[] = {12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23};
  return degrees <= std::size(kTable) ? kTable[degrees - 1]
                                      : 1.96 + 2.6 / static_cast<double>(degrees);
}

}  // namespace

Confidence confidence_of(const std::vector<double>& values) {
  const double mean = mean_of(values);
  if (values.size() < 2) return {mean, std::numeric_limits<double>::infinity()};
  double squares = 0.0;
  for (const double value : values) squares += (value - mean) * (value - mean);
  const auto count = static_cast<double>(values.size());
  return {mean, t_quantile(values.size() - 1) * std::sqrt(squares / (count - 1) / count)};
}

}  // namespace foresail
