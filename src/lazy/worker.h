// Runs ended steps one after the other, on a thread of its own or on the one that waits for them.
#pragma once
#include <c10/core/Device.h>

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
  bool writes_inputs = false;
  std::fenv_t floats;  // how the program wants floats to be treated (torch.set_flush_denormal)
  int threads = 1;     // that it gives to one operator (torch.set_num_threads); libraries see what their caller has

  // Owned by the worker's lock.
  bool is_done = false;
  std::exception_ptr error;
};

class Worker {
 public:
  Worker(Metrics& metrics, c10::Device device) : metrics_(metrics), device_(device) {}

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
  // The same, if it was this run or was to change what was there before: no other tensor would tell.
  void rethrow_unseen_of(const Run* run);
  // For fork() and the end of the process: the thread ends when all is done, and another one is made when it is needed.
  void stop();
  // Around fork(): keeps everybody out, and has no thread. False: something is under way.
  bool hold_idle();
  void let_go() { lock_.unlock(); }

 private:
  void work();
  void start();
  void end_thread(std::unique_lock<std::mutex>& lock);
  void execute(Run& run);
  void run_next(std::unique_lock<std::mutex>& lock);
  template <class Condition>
  void wait_until(Condition condition);
  bool runs_here() const;

  Metrics& metrics_;
  const c10::Device device_;
  std::mutex lock_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Run>> runs_;  // the first one may be under way
  bool is_running_ = false;
  bool is_stopping_ = false;
  std::shared_ptr<Run> unseen_;  // threw, and nobody knows
  std::thread thread_;
  const std::thread::id main_thread_ = std::this_thread::get_id();
};

}  // namespace magneto::lazy
