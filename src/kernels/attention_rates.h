// How fast a device is at what either form of attention asks of it, for the choice between them
// (attention/attention_path.h). Plain values in the device's own unit of time: only how they
// compare matters. The defaults count multiply-adds, which is what the CPU's choice goes by.
#pragma once

#include <cstdint>
#include <limits>

namespace foresail {

struct AttentionRates {
  // Multiply-adds in a unit of time.
  double absorbed = 1.0;  // of attention over latents
  double up_projection =
      1.0;                // to and from latents: of rows where absorbed, of keys where expanded
  double expanded = 1.0;  // of attention over up-projected keys, rows rounded to bf16
  double exact_expanded = 1.0;  // the same in passes of too few rows to be rounded
  // Expanded attention takes so many rows of one head at a time, and is no faster at them than
  // this, however little else it has to do.
  int64_t block_rows = 1;
  double block = std::numeric_limits<double>::infinity();
  double exact_block = std::numeric_limits<double>::infinity();
  // What rounding its rows to bf16 spares an expanded pass: the products of their second terms.
  double second_term = std::numeric_limits<double>::infinity();
  // The time that each list of keys takes that expanded attention is over, however short: its own
  // rows' and each chunk of cached ones.
  double key_list = 0.0;
  // Share of the pairs of rows and their own keys that is computed; half of them are masked.
  double own_pairs = 1.0;
};

}  // namespace foresail
