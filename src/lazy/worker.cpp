// The queue of ended steps, the thread that works on it, and waiting with an ear for signals.
#include "lazy/worker.h"

#include <Python.h>

#include <c10/util/Exception.h>

#include <chrono>
#include <utility>

#include "cpython/gil.h"
#include "runtime/torch_python.h"

namespace magneto::lazy {

namespace {

constexpr auto kBetweenSignals = std::chrono::milliseconds(50);

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
  return text + ", recorded at " + line.file + ":" + std::to_string(line.number) + " in " + line.function;
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
  if (waits) return;
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
  if (run->error) unseen_error_ = run->error;
  changed_.notify_all();
}

void Worker::work() {
  std::unique_lock lock(lock_);
  for (;;) {
    changed_.wait(lock, [this] { return is_stopping_ || (!runs_.empty() && !is_running_); });
    if (runs_.empty()) return;
    if (!is_running_) run_next(lock);
  }
}

void Worker::execute(Run& run) {
  Timed timed(metrics_, "execute");
  struct Floats {
    std::fenv_t before;
    explicit Floats(const std::fenv_t& wanted) {
      std::fegetenv(&before);
      std::fesetenv(&wanted);
    }
    ~Floats() { std::fesetenv(&before); }
  } floats(run.floats);
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
  run.inputs.clear();
  run.outputs.clear();
  run.error = std::move(error);  // not looked at before it is done
}

// ---- waiting

template <class Condition>
void Worker::wait_until(Condition condition) {
  std::unique_lock lock(lock_);
  if (condition()) return;
  lock.unlock();
  WithoutGil without_gil;
  for (;;) {
    lock.lock();
    while (!condition() && !runs_.empty() && !is_running_) run_next(lock);
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
    if (run.error == unseen_error_) unseen_error_ = nullptr;
  }
  std::rethrow_exception(run.error);
}

void Worker::rethrow_unseen() {
  std::exception_ptr error;
  {
    std::lock_guard lock(lock_);
    error = std::exchange(unseen_error_, nullptr);
  }
  if (error) std::rethrow_exception(error);
}

void Worker::stop() {
  {
    std::lock_guard lock(lock_);
    is_stopping_ = true;
  }
  changed_.notify_all();
  WithoutGil without_gil;
  if (thread_.joinable()) thread_.join();
  is_stopping_ = false;
}

}  // namespace magneto::lazy
