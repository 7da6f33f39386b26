// Threads, and how the end of the process waits for them.
#include "runtime/background.h"

#include <Python.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "runtime/daemon_threads.h"
#include "runtime/state.h"

namespace magneto::runtime {
namespace {

template <class Condition>
void wait_until(Condition condition) {
  if (condition()) return;
  PyThreadState* thread = PyEval_SaveThread();
  while (!condition()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  run_python([&] { PyEval_RestoreThread(thread); });
}

}  // namespace

std::shared_ptr<Job> Job::start(std::function<void()> work) {
  ProcessState& state = process_state();
  if (state.jobs_process != getpid()) state.jobs = 0;
  state.jobs_process = getpid();
  ++state.jobs;
  auto job = std::make_shared<Job>();
  std::thread([job, work = std::move(work)]() mutable {
    work();
    work = nullptr;
    job->done_.store(true, std::memory_order_release);
    --process_state().jobs;
  }).detach();
  return job;
}

void Job::wait() const {
  wait_until([this] { return is_done(); });
}

void wait_for_jobs() {
  ProcessState& state = process_state();
  wait_until([&] { return state.jobs_process != getpid() || state.jobs == 0; });
}

}  // namespace magneto::runtime
