// Where every page is: each is free, cached, owned or in flight, and the four add up to the pool.
// A value; the four counts come from four owners, so that the sum is a check and not a definition.
// Any thread.
#pragma once

#include "base/check.h"
#include "base/ids.h"

namespace foresail {

struct Ledger {
  Pages free;       // in the pool, ready to be taken
  Pages cached;     // in the prefix tree, locked ones included
  Pages owned;      // private to a running request
  Pages in_flight;  // let go, waiting for the last step that may use them
  Pages total;      // usable pages of the pool

  bool balanced() const { return free + cached + owned + in_flight == total; }
  void check() const {
    FORESAIL_CHECK(balanced(), "free {} + cached {} + owned {} + in flight {} != total {}",
                   free.value, cached.value, owned.value, in_flight.value, total.value);
  }
  void check_idle() const {
    check();
    FORESAIL_CHECK(owned == Pages{0} && in_flight == Pages{0}, "idle with {} owned, {} in flight",
                   owned.value, in_flight.value);
  }
};

}  // namespace foresail
