#include "server/generation.h"

namespace foresail {

bool OpenRequests::reserve(int64_t streams) {
  int64_t seen = streams_;
  do {
    if (seen + streams > limit_) return false;
  } while (!streams_.compare_exchange_weak(seen, seen + streams));
  return true;
}

void OpenRequests::release(int64_t streams) {
  streams_ -= streams;
}

void OpenRequests::add(std::shared_ptr<Generation> generation) {
  const std::lock_guard lock(mutex_);
  open_.insert(std::move(generation));
}

void OpenRequests::remove(const std::shared_ptr<Generation>& generation) {
  const std::lock_guard lock(mutex_);
  open_.erase(generation);
}

int OpenRequests::abort(const std::string& name) {
  const std::lock_guard lock(mutex_);
  int count = 0;
  for (const std::shared_ptr<Generation>& generation : open_) {
    if (!name.empty() && !generation->is_called(name)) continue;
    generation->abort();
    ++count;
  }
  return count;
}

std::vector<std::string> OpenRequests::names() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> names;
  for (const std::shared_ptr<Generation>& generation : open_) names.push_back(generation->name());
  return names;
}

bool OpenRequests::empty() const {
  const std::lock_guard lock(mutex_);
  return open_.empty();
}

}  // namespace foresail
