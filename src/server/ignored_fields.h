// Names of request fields that nothing reads, so that each is told once and not for every request.
// Any thread.
#pragma once

#include <mutex>
#include <set>
#include <string>

namespace foresail {

class IgnoredFields {
 public:
  // True the first time; never for more names than a log should fill with.
  bool is_new(const std::string& name) {
    constexpr size_t kMostNames = 50;
    const std::lock_guard lock(mutex_);
    return names_.size() < kMostNames && names_.insert(name).second;
  }

 private:
  std::mutex mutex_;
  std::set<std::string> names_;
};

}  // namespace foresail
