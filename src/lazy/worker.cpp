// The queue of ended steps, the thread that works on it, and waiting with an ear for signals.
#include "lazy/worker.h"

#include <Python.h>

#include <ATen/Parallel.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include <chrono>
#include <utility>

#include "cpython/gil.h"
#include "runtime/config.h"
#include "runtime/torch_python.h"

namespace magneto::lazy {

namespace {

constexpr auto kBetweenSignals = std::chrono::milliseconds(50);
constexpr double kShortUs = 50'000;

// Gives the GIL up for a while, if the thread has it.
class WithoutGil {
 public:
  WithoutGil() : thread_(PyGILState_Check() ? PyEval_SaveThread() : nullptr) {}
  ~WithoutGil() {
    if (thread_) PyEval_RestoreThread(thread_);
  }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  PyThreadState* thread_;
};

std::string where(const graph::Graph& graph, const graph::Op& op) {
  std::string text = "in " + op.info->name + " of a step of the lazy device";
  if (op.line == graph::Op::kNoLine) return text;
  const graph::Line& line = graph.lines[op.line];
  return text + ", first recorded at " + line.file + ":" + std::to_string(line.number) + " in " + line.function;
}

// Libraries like cuBLAS want the thread to have used the device before.
void make_current(c10::Device device) {
  c10::impl::VirtualGuardImpl guard(device.type());
  try {
    guard.synchronizeStream(guard.getStream(device));
  } catch (const c10::Error&) {
    // The first operator will say so.
  }
}

void serve_signals() {
  if (!PyGILState_GetThisThreadState()) return;
  py::Gil gil;
  if (PyErr_CheckSignals() != 0) runtime::throw_set_error();
}

}  // namespace

void Worker::add(std::shared_ptr<Run> run, bool waits) {
  std::lock_guard lock(lock_);
  runs_.push_back(std::move(run));
  if (!waits) start();
}

void Worker::start() {
  if (!thread_.joinable()) thread_ = std::thread(&Worker::work, this);
  changed_.notify_all();
}

// Whoever runs it takes it from the front, so that nothing overtakes.
void Worker::run_next(std::unique_lock<std::mutex>& lock) {
  std::shared_ptr<Run> run = runs_.front();
  is_running_ = true;
  lock.unlock();
  execute(*run);
  lock.lock();
  runs_.pop_front();
  is_running_ = false;
  run->is_done = true;
  if (run->error) unseen_ = run;
  changed_.notify_all();
}

void Worker::work() {
  c10::OptionalDeviceGuard guard;
  if (!device_.is_cpu()) {
    guard.reset_device(device_);
    make_current(device_);
  }
  std::unique_lock lock(lock_);
  for (;;) {
    changed_.wait(lock, [this] { return runs_.empty() ? is_stopping_ : !is_running_; });
    if (runs_.empty()) return;
    run_next(lock);
  }
}

void Worker::execute(Run& run) {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  struct Floats {
    std::fenv_t before;
    explicit Floats(const std::fenv_t& wanted) {
      std::fegetenv(&before);
      std::fesetenv(&wanted);
    }
    ~Floats() { std::fesetenv(&before); }
  } floats(run.floats);
  if (at::get_num_threads() != run.threads) at::set_num_threads(run.threads);  // of the worker: see runs_here()
  const runtime::Executor& executor = run.compiled->executor;
  const graph::Op* failed = nullptr;
  runtime::Slots slots(executor.slot_count());
  std::exception_ptr error;
  try {
    std::vector<int64_t> given(run.inputs.size());
    given.insert(given.end(), run.numbers.begin(), run.numbers.end());
    for (size_t i = 0; i < run.inputs.size(); ++i) {
      auto& [contents, tensor] = run.inputs[i];
      if (contents && !contents->real.defined()) std::rethrow_exception(contents->run->error);
      bool is_ours = contents && contents.use_count() == 1;
      slots[i] = !contents ? std::move(tensor) : is_ours ? std::move(contents->real) : contents->real;
      contents.reset();
    }
    runtime::Numbers numbers;
    if (executor.has_symbols()) {
      auto problem = executor.bind(slots, given, numbers);
      TORCH_CHECK(!problem, *problem);
    }
    runtime::Executor::Sink sink = [&](size_t output, at::Tensor&& tensor) {
      run.outputs[output]->real = std::move(tensor);
    };
    executor.execute(slots, numbers, &sink, &failed);
  } catch (c10::Error& caught) {
    if (failed) caught.add_context(where(executor.graph(), *failed));
    error = std::current_exception();
  } catch (...) {
    error = std::current_exception();
  }
  for (size_t i = 0; error && i < run.outputs.size(); ++i) {  // eager would have made these by then
    at::Tensor& real = run.outputs[i]->real;
    if (!real.defined()) real = slots[executor.outputs()[i].index];
  }
  run.compiled->last_us = std::chrono::duration<double, std::micro>(Clock::now() - start).count();
  metrics_.time("execute", run.compiled->last_us);
  run.inputs.clear();
  run.outputs.clear();
  run.error = std::move(error);  // not looked at before it is done
}

// ---- waiting

// The thread that signals are for does not run steps that take long, or may; none does whose operators would have
// another number of threads.
bool Worker::runs_here() const {
  if (at::get_num_threads() != runs_.front()->threads) return false;
  double us = runs_.front()->compiled->last_us;
  return std::this_thread::get_id() != main_thread_ || (us > 0 && us < kShortUs) || !runtime::config().lazy_async;
}

template <class Condition>
void Worker::wait_until(Condition condition) {
  std::unique_lock lock(lock_);
  if (condition()) return;
  lock.unlock();
  WithoutGil without_gil;
  for (;;) {
    lock.lock();
    while (!condition() && !runs_.empty() && !is_running_ && runs_here()) run_next(lock);
    if (!runs_.empty() && !is_running_) start();
    bool is_over = changed_.wait_for(lock, kBetweenSignals, condition);
    lock.unlock();  // nobody waits for the GIL with it
    if (is_over) return;
    serve_signals();
  }
}

void Worker::wait_for(const Run& run) {
  wait_until([&] { return run.is_done; });
}

void Worker::wait() {
  wait_until([this] { return runs_.empty(); });
}

void Worker::rethrow(const Run& run) {
  {
    std::lock_guard lock(lock_);
    if (unseen_.get() == &run) unseen_.reset();
  }
  std::rethrow_exception(run.error);
}

void Worker::rethrow_unseen() {
  std::shared_ptr<Run> failed;
  {
    std::lock_guard lock(lock_);
    failed = std::move(unseen_);
  }
  if (failed) std::rethrow_exception(failed->error);
}

void Worker::rethrow_unseen_of(const Run* run) {
  std::shared_ptr<Run> failed;
  {
    std::lock_guard lock(lock_);
    if (unseen_ && (unseen_->writes_inputs || unseen_.get() == run)) failed = std::move(unseen_);
  }
  if (failed) std::rethrow_exception(failed->error);
}

bool Worker::hold_idle() {
  std::unique_lock lock(lock_);
  if (!runs_.empty()) {
    if (!is_running_) start();
    return false;
  }
  end_thread(lock);
  lock.release();  // held on
  return true;
}

// The lock is given up meanwhile; the thread first runs what there is.
void Worker::end_thread(std::unique_lock<std::mutex>& lock) {
  if (!thread_.joinable()) return;
  is_stopping_ = true;
  changed_.notify_all();
  lock.unlock();
  thread_.join();
  lock.lock();
  is_stopping_ = false;
}

void Worker::stop() {
  WithoutGil without_gil;
  std::unique_lock lock(lock_);
  end_thread(lock);
  lock.unlock();  // nobody waits for the GIL with it
}

}  // namespace magneto::lazy
