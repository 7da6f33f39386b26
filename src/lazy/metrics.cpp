// The tables behind the counts and times.
#include "lazy/metrics.h"

namespace magneto::lazy {

namespace {
constexpr size_t kKept = 1000;
}

void Metrics::count(const std::string& name, int64_t by) {
  std::lock_guard lock(lock_);
  counters_[name] += by;
}

void Metrics::time(const std::string& name, double us) {
  std::lock_guard lock(lock_);
  Timer& timer = timers_[name];
  if (timer.last_us.size() < kKept)
    timer.last_us.push_back(us);
  else
    timer.last_us[static_cast<size_t>(timer.count) % kKept] = us;
  ++timer.count;
  timer.total_us += us;
}

std::map<std::string, int64_t> Metrics::counters() const {
  std::lock_guard lock(lock_);
  return counters_;
}

std::map<std::string, Metrics::Timer> Metrics::timers() const {
  std::lock_guard lock(lock_);
  return timers_;
}

void Metrics::clear() {
  std::lock_guard lock(lock_);
  counters_.clear();
  timers_.clear();
}

}  // namespace magneto::lazy
