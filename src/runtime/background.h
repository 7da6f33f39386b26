// Work beside the program, on a thread of its own.
#pragma once
#include <atomic>
#include <functional>
#include <memory>

namespace magneto::runtime {

class Job {
 public:
  // `work` throws nothing, and takes the GIL itself where it needs it.
  static std::shared_ptr<Job> start(std::function<void()> work);

  bool is_done() const { return done_.load(std::memory_order_acquire); }
  // GIL held, and given up meanwhile.
  void wait() const;

 private:
  std::atomic<bool> done_{false};
};

// For the end of the process: returns when nothing is under way. In the child of a fork there is nothing. GIL held.
void wait_for_jobs();

}  // namespace magneto::runtime
