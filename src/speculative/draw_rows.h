// The host's draws of several requests, on all of its threads.
#pragma once

#include <cstdint>
#include <exception>
#include <vector>

#include "base/thread_pool.h"

namespace foresail {

// body(i) for i in [0, count), each once. Those with is_alone(i) come one after the other, last:
// requests with one grammar share its automaton, which grows as it is asked. `threads` may be null.
template <typename IsAlone, typename Body>
void draw_rows(ThreadPool* threads, int64_t count, const IsAlone& is_alone, const Body& body) {
  std::vector<int64_t> together, alone;
  for (int64_t i = 0; i < count; ++i) (is_alone(i) ? alone : together).push_back(i);
  if (threads == nullptr || together.size() < 2) {
    for (const int64_t i : together) body(i);
  } else {
    std::vector<std::exception_ptr> errors(together.size());
    threads->parallel_for(std::ssize(together), [&](int64_t task, int) {
      try {
        body(together[task]);
      } catch (...) {
        errors[task] = std::current_exception();
      }
    });
    for (const std::exception_ptr& error : errors)
      if (error) std::rethrow_exception(error);
  }
  for (const int64_t i : alone) body(i);
}

}  // namespace foresail
