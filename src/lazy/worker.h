// Runs ended steps one after the other, on a thread of its own or on the one that waits for them.
#pragma once
#include <cfenv>
#include <condition_variable>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "lazy/metrics.h"
#include "lazy/steps.h"

namespace magneto::lazy {

// What comes into a step: contents that earlier steps made, or a tensor from elsewhere.
struct Input {
  ContentsPtr contents;
  at::Tensor tensor;
};

// An ended step.
struct Run {
  uint64_t number = 0;  // of the step
  std::shared_ptr<Compiled> compiled;
  std::vector<Input> inputs;
  std::vector<int64_t> numbers;      // what was left open in it
  std::vector<ContentsPtr> outputs;  // parallel to the outputs of the graph
  std::fenv_t floats;                // how the program wants floats to be treated (torch.set_flush_denormal)

  // Owned by the worker's lock.
  bool is_done = false;
  std::exception_ptr error;
};

class Worker {
 public:
  explicit Worker(Metrics& metrics) : metrics_(metrics) {}

  // It will run behind all that were given earlier. `waits`: the caller comes back for it at once.
  void add(std::shared_ptr<Run> run, bool waits);
  // Runs it, and those before it, if nobody else does. Throws what a signal handler raises meanwhile.
  void wait_for(const Run& run);
  // Throws what it threw, each time.
  [[noreturn]] void rethrow(const Run& run);
  // Until nothing is under way.
  void wait();
  // Throws what a run threw, if nobody has seen it yet.
  void rethrow_unseen();
  // For fork() and the end of the process: the thread ends when all is done, and another one is made when it is needed.
  void stop();
  // Keeps others out while the process forks.
  std::mutex& mutex() { return lock_; }

 private:
  void work();
  void execute(Run& run);
  void run_next(std::unique_lock<std::mutex>& lock);
  template <class Condition>
  void wait_until(Condition condition);

  Metrics& metrics_;
  std::mutex lock_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Run>> runs_;  // the first one may be under way
  bool is_running_ = false;
  bool is_stopping_ = false;
  std::exception_ptr unseen_error_;
  std::thread thread_;
};

}  // namespace magneto::lazy
