// Counts and times of the lazy device, by name.
#pragma once
#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace magneto::lazy {

class Metrics {
 public:
  struct Timer {
    int64_t count = 0;
    double total_us = 0;
    std::vector<double> last_us;  // the last thousand, in a ring
  };

  void count(const std::string& name, int64_t by = 1);
  void time(const std::string& name, double us);
  std::map<std::string, int64_t> counters() const;
  std::map<std::string, Timer> timers() const;
  void clear();

  // Keeps others out while the process forks.
  void hold() { lock_.lock(); }
  void let_go() { lock_.unlock(); }

 private:
  mutable std::mutex lock_;
  std::map<std::string, int64_t> counters_;
  std::map<std::string, Timer> timers_;
};

// Times a block.
class Timed {
 public:
  Timed(Metrics& metrics, const char* name) : metrics_(metrics), name_(name) {}
  ~Timed() { metrics_.time(name_, std::chrono::duration<double, std::micro>(Clock::now() - start_).count()); }
  Timed(const Timed&) = delete;
  Timed& operator=(const Timed&) = delete;

 private:
  using Clock = std::chrono::steady_clock;
  Metrics& metrics_;
  const char* name_;
  Clock::time_point start_ = Clock::now();
};

}  // namespace magneto::lazy
