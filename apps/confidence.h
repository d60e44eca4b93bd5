// How well a mean of repeated measurements is known.
#pragma once

#include <vector>

namespace foresail {

struct Confidence {
  double mean = 0.0;
  double half_width = 0.0;  // of the 95 % interval by Student's t; infinite for a single value
};

Confidence confidence_of(const std::vector<double>& values);  // one value at least

}  // namespace foresail
