// Schemas at random from the keywords that are kept, always with values. Pure.
#pragma once

#include <random>

#include "base/json_types.h"

namespace foresail {

class SchemaSamples {
 public:
  // `bounded`: every value is short.
  explicit SchemaSamples(uint32_t seed, bool bounded = false) : random_(seed), bounded_(bounded) {}

  OrderedJson draw();

 private:
  int pick(int count) { return static_cast<int>(random_() % count); }

  OrderedJson of_object(int depth);
  OrderedJson of_array(int depth);
  OrderedJson of_number();
  OrderedJson of_string();
  OrderedJson any(int depth);

  std::mt19937 random_;
  bool bounded_;
};

}  // namespace foresail
