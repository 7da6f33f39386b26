// How a call becomes the next operator of the step, and how a step ends.
#include "lazy/device.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "lazy/describe.h"
#include "runtime/config.h"
#include "runtime/state.h"

namespace magneto::lazy {

using c10::IValue;
using c10::OperatorHandle;
using c10::Stack;
using graph::TensorRef;

namespace {
constexpr size_t kRecent = 16;
}

Device* device() { return runtime::process_state().lazy_device; }

Device::Device(c10::Device backing)
    : backing_(backing),
      generator_(at::globalContext().defaultGenerator(backing).clone()),
      root_(std::make_unique<Node>()) {
  step_.at = root_.get();
}

// ---- a call and its operands

// The value that stands for a tensor in this step.
uint32_t Device::bind(const at::Tensor& tensor) {
  auto id = static_cast<uint32_t>(step_.values.size());
  ContentsPtr contents;
  if (is_lazy(tensor)) {
    contents = share_contents(tensor);
    if (contents->step == step_.number) return contents->id;
    contents->step = step_.number;
    contents->id = id;
    step_.inputs.push_back({contents, {}});
  } else {
    // A number that was wrapped for this call is nobody else's; others may change before the step runs.
    bool is_ours = tensor.unsafeGetTensorImpl()->is_wrapped_number();
    step_.inputs.push_back({{}, is_ours ? tensor : tensor.detach().clone()});
  }
  step_.new_inputs.emplace_back(tensor);
  step_.values.push_back({c10::weak_intrusive_ptr<Contents>(contents), {id, true}});
  return id;
}

Operands Device::bind(Args args) {
  Operands operands;
  for (uint32_t i = 0; i < args.size(); ++i) {
    if (args[i].isTensor()) {
      const at::Tensor& tensor = args[i].toTensor();
      if (tensor.defined()) operands.tensors.push_back({i, TensorRef::kWhole, bind(tensor)});
    } else if (is_tensor_list(args[i])) {
      c10::ArrayRef<IValue> items = args[i].toListRef();
      operands.lists.push_back({i, static_cast<uint32_t>(items.size()), args[i].isOptionalTensorList()});
      for (uint32_t k = 0; k < items.size(); ++k) {
        if (items[k].isTensor() && items[k].toTensor().defined())
          operands.tensors.push_back({i, static_cast<int32_t>(k), bind(items[k].toTensor())});
      }
    }
  }
  return operands;
}

Node* Device::find(const OperatorHandle& op, Args args, const Operands& operands) {
  c10::SmallVector<uint32_t, 4> differ, to_open;
  Node* similar = nullptr;
  for (const std::unique_ptr<Node>& child : step_.at->children) {
    bool is_same = matches(*child, op, args, operands, &differ);
    if ((!is_same && differ.empty()) || child->inputs != step_.new_inputs) continue;
    if (is_same) return child.get();
    if (!similar) {
      similar = child.get();
      to_open = differ;
    }
  }
  if (!similar) return nullptr;
  // The same but for numbers: from now on each step gives them.
  similar->open.append(to_open.begin(), to_open.end());
  std::ranges::sort(similar->open);
  return similar;
}

Node* Device::add(Call call) {
  ++node_count_;
  return step_.at->children.emplace_back(std::make_unique<Node>(std::move(call), step_.at)).get();
}

// ---- recording

void Device::replace_device(IValue& argument) const {
  if (!argument.isDevice() || !argument.toDevice().is_lazy()) return;
  TORCH_CHECK(argument.toDevice().index() <= 0, "there is one lazy device, lazy:0, and no ", argument.toDevice());
  argument = backing_;
}

bool Device::record(const OperatorHandle& op, Stack* stack) {
  size_t count = op.schema().arguments().size();
  for (size_t i = stack->size() - count; i < stack->size(); ++i) {
    replace_device((*stack)[i]);
    if ((*stack)[i].isGenerator()) return false;  // somebody else may draw from it meanwhile
  }
  Args args(stack->data() + stack->size() - count, count);
  Results results;
  Lock lock(lock_);
  for (;;) {
    Operands operands = bind(args);
    Node* next = find(op, args, operands);
    if (!next) {
      uint64_t number = step_.number;
      size_t op_count = step_.op_count, value_count = step_.values.size();
      std::vector<Memory> memories;
      for (const TensorRef& ref : operands.tensors) memories.push_back(step_.values[ref.value].memory);
      lock.unlock();  // others may be asked in Python
      auto call = describe(op, args, operands, memories, static_cast<uint32_t>(value_count), backing_);
      if (!call) return false;
      lines_.note(*call);
      lock.lock();
      // Another thread may have been faster.
      if (step_.number != number || step_.op_count != op_count || step_.values.size() != value_count) continue;
      call->inputs = step_.new_inputs;
      next = add(std::move(*call));
    }
    results = follow(*next, args);
    break;
  }
  bool is_long = static_cast<int64_t>(step_.op_count) >= runtime::config().lazy_graph_limit;
  lock.unlock();
  torch::jit::drop(*stack, count);  // which may wait for the GIL
  for (IValue& result : results) stack->push_back(std::move(result));
  if (is_long) {
    metrics_.count("steps ended at the limit");
    end_step(false);
  }
  return true;
}

// The step goes on to `node`. What it returns.
Device::Results Device::follow(Node& node, Args args) {
  for (uint32_t position : node.open) {
    each_number(args[position], [this](const IValue& number) {
      step_.numbers.push_back(number.isDouble() ? graph::bits_of(number.toDouble()) : number.toInt());
    });
  }
  c10::SmallVector<at::Tensor, 4> made;
  for (const Call::Result& result : node.results) {
    if (!result.layout) {
      auto ref = std::ranges::find(node.operands.tensors, result.id, &TensorRef::value);
      made.push_back(operand(args, *ref));
      continue;
    }
    auto contents = c10::make_intrusive<Contents>();
    contents->step = step_.number;
    contents->id = result.id;
    step_.values.push_back({c10::weak_intrusive_ptr<Contents>(contents), result.memory});
    made.push_back(make_lazy(std::move(contents), *result.layout));
  }
  step_.at = &node;
  ++step_.op_count;
  step_.new_inputs.clear();
  step_.writes_inputs |= node.writes_inputs;
  Results results;
  for (size_t i = node.op->schema().returns().size(); i > 0; --i) results.emplace_back(at::Tensor());
  for (auto [position, length] : node.result_lists) {
    c10::List<at::Tensor> list;
    list.resize(length);
    results[position] = std::move(list);
  }
  for (size_t i = 0; i < made.size(); ++i) {
    auto [position, item] = std::pair(node.results[i].position, node.results[i].item);
    if (item == TensorRef::kWhole)
      results[position] = std::move(made[i]);
    else
      results[position].toTensorList().set(static_cast<size_t>(item), std::move(made[i]));
  }
  return results;
}

// ---- the end of a step

std::vector<uint32_t> Device::live(std::vector<ContentsPtr>* contents) const {
  std::vector<uint32_t> ids;
  for (uint32_t id = 0; id < step_.values.size(); ++id) {
    ContentsPtr alive = step_.values[id].contents.lock();
    if (!alive || alive->run || alive->real.defined()) continue;
    ids.push_back(id);
    contents->push_back(std::move(alive));
  }
  return ids;
}

std::shared_ptr<Compiled> Device::compiled(Node& end, const std::vector<uint32_t>& outputs) {
  size_t number_count = step_.numbers.size();
  auto found = std::ranges::find(end.ends, outputs, &Node::End::outputs);
  if (found != end.ends.end() && found->number_count == number_count) {
    metrics_.count("graphs found");
    return found->compiled;
  }
  if (found != end.ends.end()) end.ends.erase(found);
  Timed timed(metrics_, "compile");
  metrics_.count("graphs made");
  auto made = std::make_shared<Compiled>(build_graph(end, outputs, generator_, backing_));
  recent_.push_back(made);
  if (recent_.size() > kRecent) recent_.pop_front();
  end.ends.push_back({outputs, number_count, made});
  return made;
}

void Device::begin_step() {
  ++step_.number;
  step_.at = root_.get();
  step_.op_count = 0;
  step_.writes_inputs = false;
  step_.inputs.clear();
  step_.new_inputs.clear();
  step_.numbers.clear();
  step_.values.clear();
  if (static_cast<int64_t>(node_count_) > runtime::config().lazy_cache_limit || !reuses_) {
    if (reuses_) metrics_.count("caches dropped");
    root_ = std::make_unique<Node>();
    step_.at = root_.get();
    node_count_ = 0;
  }
}

// The run of the step that has ended; null if nothing was recorded in it.
std::shared_ptr<Run> Device::finish_step() {
  std::shared_ptr<Run> run;
  if (step_.op_count > 0) {
    Timed timed(metrics_, "end of step");
    run = std::make_shared<Run>();
    run->number = step_.number;
    std::fegetenv(&run->floats);
    run->threads = at::get_num_threads();
    std::vector<uint32_t> outputs = live(&run->outputs);
    latest_ = run->compiled = compiled(*step_.at, outputs);
    run->inputs = std::move(step_.inputs);
    run->inputs.resize(run->inputs.size() - step_.new_inputs.size());  // of calls that came to nothing
    run->numbers = std::move(step_.numbers);
    for (const ContentsPtr& output : run->outputs) output->run = run;
    run->writes_inputs = step_.writes_inputs;
    if (run->writes_inputs) last_writer_ = run;
    metrics_.count("steps");
    metrics_.count("operators recorded", static_cast<int64_t>(step_.op_count));
  }
  begin_step();
  return run;
}

void Device::end_step(bool wait) {
  std::shared_ptr<Run> run;
  bool waits = wait || !runtime::config().lazy_async;
  {
    Lock lock(lock_);  // so that nobody overtakes on the way to the queue
    run = finish_step();
    if (run) worker_.add(run, waits);
  }
  if (wait) return Device::wait();
  if (run && waits) worker_.wait_for(*run);
}

void Device::wait() {
  worker_.wait();
  worker_.rethrow_unseen();
}

at::Tensor Device::real(const at::Tensor& lazy, bool to_write) {
  ContentsPtr contents = share_contents(lazy);
  std::shared_ptr<Run> maker, last;
  {
    Lock lock(lock_);
    bool is_pending = !contents->run && !contents->real.defined();
    if (is_pending || step_.writes_inputs || (to_write && step_.op_count > 0)) {
      last = finish_step();
      if (last) worker_.add(last, true);
    }
    maker = contents->run;
    // Whichever is the last that makes or changes it; those before it have run by then.
    for (const auto& other : {maker, last_writer_})
      if (other && (!last || other->number > last->number)) last = other;
  }
  if (to_write)
    worker_.wait();  // nobody may be reading it
  else if (last)
    worker_.wait_for(*last);
  Lock lock(lock_);
  if (!contents->real.defined()) {
    lock.unlock();
    worker_.rethrow(*maker);
  }
  contents->run.reset();
  if (last_writer_ == last) last_writer_.reset();
  lock.unlock();
  worker_.rethrow_unseen_of(maker.get());
  return contents->real;
}

void Device::before_fork() {
  constexpr int kTries = 10'000;
  for (;;) {
    lock_.lock();  // so that nothing is added to what is under way
    for (int i = 0; i < kTries; ++i) {
      if (worker_.hold_idle()) return metrics_.hold();
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    lock_.unlock();
    worker_.wait();  // without the GIL, which somebody seems to need
  }
}

void Device::after_fork(bool in_child) {
  is_lost_ |= in_child && !backing_.is_cpu();
  worker_.let_go();
  metrics_.let_go();
  lock_.unlock();
}

// ---- for people

void Device::set_forced(std::set<std::string> names) {
  Lock lock(lock_);
  has_forced_ = !names.empty();
  forced_ = std::move(names);
}

std::set<std::string> Device::forced() {
  Lock lock(lock_);
  return forced_;
}

bool Device::is_forced(const std::string& name) {
  if (!has_forced_) return false;
  Lock lock(lock_);
  return forced_.contains(name);
}

void Device::seed(uint64_t seed) {
  if (is_lost_) return;  // as torch does with the generators of such devices
  end_step(true);
  std::lock_guard lock(generator_.mutex());
  generator_.set_current_seed(seed);
}

at::Tensor Device::random_state() {
  end_step(true);
  std::lock_guard lock(generator_.mutex());
  return generator_.get_state();
}

void Device::set_random_state(const at::Tensor& state) {
  end_step(true);
  std::lock_guard lock(generator_.mutex());
  generator_.set_state(state);
}

void Device::clear_cache() {
  Lock lock(lock_);
  if (auto run = finish_step()) worker_.add(run, false);
  root_ = std::make_unique<Node>();
  node_count_ = 0;
  step_.at = root_.get();
}

void Device::set_reuse(bool on) {
  clear_cache();
  Lock lock(lock_);
  reuses_ = on;
}

std::pair<graph::Graph, std::vector<at::Tensor>> Device::pending(const std::vector<at::Tensor>* tensors) {
  wait();  // inputs may still be on their way
  Lock lock(lock_);
  std::vector<ContentsPtr> contents;
  std::vector<uint32_t> outputs = live(&contents);
  if (tensors) {
    outputs.clear();
    for (const at::Tensor& tensor : *tensors) {
      const Contents& held = contents_of(tensor);
      if (held.step == step_.number) outputs.push_back(held.id);
    }
  }
  graph::Graph graph = build_graph(*step_.at, outputs, IValue(), backing_, &step_.numbers);
  graph::remove_dead_ops(graph);
  std::vector<bool> is_used(graph.values.size());
  for (const graph::Op& op : graph.ops)
    for (const TensorRef& ref : op.tensors) is_used[ref.value] = true;
  for (uint32_t output : outputs) is_used[output] = true;
  std::vector<at::Tensor> inputs;
  std::vector<graph::ValueId> used;
  for (size_t i = 0; i < graph.inputs.size(); ++i) {
    if (!is_used[graph.inputs[i]]) continue;
    const auto& [held, tensor] = step_.inputs[i];
    used.push_back(graph.inputs[i]);
    inputs.push_back(held ? held->real : tensor);
  }
  graph.inputs = std::move(used);
  return {std::move(graph), std::move(inputs)};
}

std::vector<std::pair<std::string, std::vector<std::string>>> Device::pending_frames() {
  Lock lock(lock_);
  std::vector<std::pair<std::string, std::vector<std::string>>> found;
  for (const Node* node = step_.at; node->parent; node = node->parent)
    found.emplace_back(node->info->name, node->frames);
  std::ranges::reverse(found);
  return found;
}

std::shared_ptr<Compiled> Device::latest() {
  Lock lock(lock_);
  return latest_;
}

std::vector<std::shared_ptr<Compiled>> Device::recent() {
  Lock lock(lock_);
  return {recent_.begin(), recent_.end()};
}

std::string Device::cache_dot() {
  Lock lock(lock_);
  std::string text = "digraph steps {\n  node [shape=box];\n  n0 [label=\"begin\"];\n";
  std::vector<std::pair<const Node*, size_t>> todo{{root_.get(), 0}};
  size_t count = 0;
  while (!todo.empty()) {
    auto [node, number] = todo.back();
    todo.pop_back();
    for (const auto& child : node->children) {
      std::string name = "n" + std::to_string(++count);
      std::string ends = child->ends.empty() ? "" : "\\n" + std::to_string(child->ends.size()) + " ends";
      text += "  " + name + " [label=\"" + child->info->name + ends + "\"];\n";
      text += "  n" + std::to_string(number) + " -> " + name + ";\n";
      todo.emplace_back(child.get(), count);
    }
  }
  return text + "}\n";
}

int64_t Device::tensor_id(const at::Tensor& lazy) { return reinterpret_cast<int64_t>(&contents_of(lazy)); }

}  // namespace magneto::lazy
