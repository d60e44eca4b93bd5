// Signals that ask for an end, taken note of instead of ending the program; a second one does that.
// One at a time.
#pragma once

#include <signal.h>

#include <initializer_list>
#include <utility>
#include <vector>

namespace foresail {

class StopKey {
 public:
  explicit StopKey(std::initializer_list<int> signals);
  ~StopKey();
  StopKey(const StopKey&) = delete;
  StopKey& operator=(const StopKey&) = delete;

  bool was_pressed() const { return signal() != 0; }
  int signal() const;  // which one, 0: none

 private:
  std::vector<std::pair<int, struct sigaction>> before_;
};

}  // namespace foresail
