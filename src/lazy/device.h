// The lazy device: records what programs do with its tensors, and runs it step by step.
#pragma once
#include <ATen/core/Generator.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "lazy/describe.h"
#include "lazy/metrics.h"
#include "lazy/steps.h"
#include "lazy/worker.h"

namespace magneto::lazy {

// What a step consists of so far. Owned by the lock of the device.
struct Step {
  struct Value {
    c10::weak_intrusive_ptr<Contents> contents;  // of an input from elsewhere nothing
    Memory memory;
  };

  uint64_t number = 1;
  Node* at = nullptr;  // the last call
  size_t op_count = 0;
  bool writes_inputs = false;
  std::vector<Input> inputs;
  std::vector<Layout> new_inputs;  // that have come since the last call
  std::vector<int64_t> numbers;
  std::vector<Value> values;
};

class Device {
 public:
  explicit Device(c10::Device backing);

  c10::Device backing() const { return backing_; }
  Metrics& metrics() { return metrics_; }

  // In the place of the lazy device, the one below it.
  void replace_device(c10::IValue& argument) const;

  // Adds a call to the step: its results take the place of its arguments on the stack. False: it cannot be recorded,
  // and nothing has happened.
  bool record(const c10::OperatorHandle& op, c10::Stack* stack);

  // What a lazy tensor holds, on the backing device: ends the step if need be, and waits. `to_write`: others may see it
  // change.
  at::Tensor real(const at::Tensor& lazy, bool to_write = false);
  // Ends the step, if it has begun. `wait`: as wait().
  void end_step(bool wait);
  // Until all that was ended has run. Throws what a step threw, if nobody has seen it yet.
  void wait();
  void stop() { worker_.stop(); }
  // Around fork(): nothing is under way, and nobody has a lock.
  void before_fork();
  void after_fork(bool in_child);

  // Names of operators that are never recorded.
  void set_forced(std::set<std::string> names);
  std::set<std::string> forced();
  bool is_forced(const std::string& name);

  void seed(uint64_t seed);
  at::Tensor random_state();
  void set_random_state(const at::Tensor& state);
  void clear_cache();
  void set_reuse(bool on);
  // What the step does so far, with these tensors as outputs, or with all that are alive; and its inputs.
  std::pair<graph::Graph, std::vector<at::Tensor>> pending(const std::vector<at::Tensor>* tensors);
  // Its operators, each with the Python frames that called it if config.lazy_frames was on, innermost first.
  std::vector<std::pair<std::string, std::vector<std::string>>> pending_frames();
  // The last one that was ended.
  std::shared_ptr<Compiled> latest();
  // The last few that were made.
  std::vector<std::shared_ptr<Compiled>> recent();
  // The calls of all steps that were seen, for Graphviz.
  std::string cache_dot();
  int64_t tensor_id(const at::Tensor& lazy);

 private:
  using Lock = std::unique_lock<std::mutex>;
  using Args = c10::ArrayRef<c10::IValue>;
  using Results = c10::SmallVector<c10::IValue, 3>;

  uint32_t bind(const at::Tensor& tensor);
  Operands bind(Args args);
  Node* find(const c10::OperatorHandle& op, Args args, const Operands& operands);
  Node* add(Call call);
  Results follow(Node& node, Args args);
  std::vector<uint32_t> live(std::vector<ContentsPtr>* contents) const;
  std::shared_ptr<Compiled> compiled(Node& end, const std::vector<uint32_t>& outputs);
  void begin_step();
  std::shared_ptr<Run> finish_step();

  const c10::Device backing_;
  bool is_lost_ = false;  // a GPU that the parent process has
  at::Generator generator_;
  Metrics metrics_;
  Worker worker_{metrics_, backing_};

  // Of all below. Nobody who has it waits for the GIL, or drops a tensor that Python may have.
  std::mutex lock_;
  Step step_;
  std::unique_ptr<Node> root_;
  size_t node_count_ = 0;
  bool reuses_ = true;
  std::shared_ptr<Compiled> latest_;
  std::deque<std::shared_ptr<Compiled>> recent_;
  std::shared_ptr<Run> last_writer_;  // the last run that changes what was there before it
  std::set<std::string> forced_;
  std::atomic<bool> has_forced_ = false;

  CallLines lines_;  // has nothing to do with the lock
};

// The one that magneto.lazy.init() has made. Null: none.
Device* device();

}  // namespace magneto::lazy
