// How a graph is flattened into steps, and the loop that runs them.
#include "runtime/replay.h"

#include <ATen/core/List.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <optional>

#include "cpython/ref.h"
#include "cpython/text.h"
#include "graph/graph.h"
#include "graph/size_binding.h"
#include "runtime/cuda_graph.h"
#include "runtime/cuda_replay.h"
#include "runtime/daemon_threads.h"
#include "runtime/errors.h"
#include "runtime/state.h"
#include "runtime/torch_python.h"
#include "runtime/undo.h"

namespace magneto::runtime {
namespace {

using c10::IValue;
using graph::Role;
using graph::ValueId;

// Where a step finds a tensor. A slot belongs to one run, a constant to the segment.
struct Operand {
  enum Kind : uint8_t { Absent, Slot, LastUse, Constant };
  Kind kind = Absent;
  uint32_t index = 0;
};

struct ArgSource {
  enum Kind : uint8_t { Constant, Tensor, List, OptionalList, Sized };
  Kind kind = Constant;
  uint32_t index = 0;  // into constants_, operands_ or sized_
  uint32_t count = 0;  // of list items
};

// A number that depends on symbols, or a constant list with such numbers in it.
struct SizedArg {
  struct Item {
    int32_t index;  // in the list, or TensorRef::kWhole
    graph::ExprId expr;
    graph::Symbols::Type type;
  };
  uint32_t constant;  // into constants_
  std::vector<Item> items;
};

struct ResultTarget {
  uint32_t position;
  int32_t item;
  uint32_t slot;
};

struct Step {
  c10::OperatorHandle op;
  uint32_t args_end;     // in args_; the first one is where the step before ended
  uint32_t results_end;  // in results_
  bool grad_mode;
  bool below_inplace;
  bool autocast;
  bool inference;
  int32_t expected;  // in expected_: what it must return; -1 if nothing relies on that
};

struct Output {
  Role role;
  uint32_t index;   // of the input, or the slot, or the expression
  int32_t same_as;  // an earlier output that is the same tensor, or -1
};

using Slots = std::vector<at::Tensor>;
using Numbers = std::vector<graph::Number>;  // by expression; empty where nothing depends on symbols

constexpr int64_t kSmallUndo = 1 << 20;  // so many bytes are copied before a run just in case

constexpr c10::DispatchKeySet kBelowAutograd = c10::autograd_dispatch_keyset;

// Autocast as the caller has it, turned on and off around single operators.
class Autocast {
 public:
  Autocast() {
    for (c10::DispatchKey key : {c10::DispatchKey::AutocastCPU, c10::DispatchKey::AutocastCUDA})
      if (!c10::impl::tls_is_dispatch_key_excluded(key)) keys_.push_back(key);
  }
  ~Autocast() { set(true); }
  void set(bool on) {
    if (on == on_) return;
    on_ = on;
    for (c10::DispatchKey key : keys_) c10::impl::tls_set_dispatch_key_excluded(key, !on);
  }

 private:
  c10::SmallVector<c10::DispatchKey, 2> keys_;
  bool on_ = true;
};

class Replay final : public Segment {
 public:
  Replay(graph::Graph graph, std::vector<PyObject*> state_objects);

  bool run(PyObject* const* inputs, PyObject** outputs) override;
  std::string why_sizes_differ(PyObject* const* inputs) const override;
  bool rerunnable() const override { return rerunnable_ || undo_; }
  bool make_rerunnable() override {
    if (!rerunnable_ && !undo_) undo_ = Undo::of(graph_);
    return rerunnable();
  }
  size_t output_count() const override { return outputs_.size(); }
  size_t op_count() const override { return steps_.size(); }
  std::string text() const override { return graph::to_text(graph_, graph::Style::Short); }
  std::string fingerprint() const override {
    std::string print = graph::structural_hash(graph_);
    for (PyObject* state : state_objects_) print += " " + std::to_string(reinterpret_cast<uintptr_t>(state));
    return print;
  }
  bool lower(PyObject* backend) override;
  int traverse(visitproc visit, void* arg) const override {
    Py_VISIT(lowered_.get());
    return 0;
  }
  const graph::Graph& graph() const { return graph_; }
  bool derives() const { return derives_; }

 private:
  void place_values();
  void flatten(const graph::Op& op, size_t index);
  Operand operand(ValueId value, size_t index) const;
  void plan_outputs();

  void fill(Slots& slots, PyObject* const* inputs) const;
  // False: diverged.
  bool execute(Slots& slots, const Numbers& numbers) const;
  void push_arguments(const Step& step, uint32_t& next, Slots& slots, const Numbers& numbers, c10::Stack& stack) const;
  IValue make_sized(const SizedArg& arg, const Numbers& numbers) const;
  IValue make_list(const ArgSource& source, Slots& slots) const;
  // If the recording does not hold for the sizes of the inputs: why, in words.
  std::optional<std::string> bind_sizes(const Slots& slots, PyObject* const* inputs, Numbers& numbers) const;
  bool run_steps(Slots& slots, const Numbers& numbers) const;
  bool run_recorded(PyObject* const* inputs, PyObject** outputs);
  bool give_outputs(Slots& slots, const Numbers& numbers, PyObject* const* inputs, PyObject** outputs) const;
  bool run_lowered(PyObject* const* inputs, PyObject** outputs) const;
  PyObject* lowered_output(size_t index, PyObject* const* inputs, PyObject* made) const;
  PyObject* number_object(graph::ExprId expr, graph::Number number) const;

  graph::Graph graph_;
  std::vector<PyObject*> state_objects_;  // borrowed: guards vouch for them when a run starts
  py::Ref lowered_;                       // what a backend made of the graph, or null

  // Fixed after construction.
  std::vector<Step> steps_;
  std::vector<ArgSource> args_;
  std::vector<IValue> constants_;
  std::vector<IValue> expected_;
  std::vector<Operand> operands_;
  std::vector<SizedArg> sized_;
  std::optional<graph::SizeBinding> sizes_;
  std::vector<ResultTarget> results_;
  std::vector<Output> outputs_;
  std::vector<Operand> places_;    // by value
  std::vector<size_t> last_uses_;  // by value: index of the op, or kForever
  size_t slot_count_ = 0;
  size_t max_args_ = 0;
  bool derives_ = false;      // autograd takes part
  bool rerunnable_ = true;    // because a run changes nothing
  std::optional<Undo> undo_;  // or because its changes are undone
  static constexpr size_t kForever = SIZE_MAX;
  static constexpr size_t kNever = SIZE_MAX - 1;

  std::vector<Slots> free_slots_;  // owned by the GIL
};

// ---- construction

Replay::Replay(graph::Graph graph, std::vector<PyObject*> state_objects)
    : graph_(std::move(graph)), state_objects_(std::move(state_objects)) {
  graph::fold_constant_copies(graph_);
  graph::remove_dead_ops(graph_);
  graph::verify(graph_);
  MAGNETO_ASSERT(state_objects_.size() == graph_.states.size());
  place_values();
  steps_.reserve(graph_.ops.size());
  args_.reserve(4 * graph_.ops.size());
  constants_.reserve(4 * graph_.ops.size());
  operands_.reserve(2 * graph_.ops.size());
  results_.reserve(graph_.ops.size());
  for (size_t i = 0; i < graph_.ops.size(); ++i) flatten(graph_.ops[i], i);
  bool fails_late = false;  // what tensors hold may make an operator raise when something was changed already
  for (const graph::Op& op : graph_.ops) {
    rerunnable_ = rerunnable_ && !graph::has_effect(graph_, op);
    derives_ |= op.derives;
    fails_late |= !rerunnable_ && (op.info->may_raise || op.info->divides);
  }
  std::optional<Undo> undo = fails_late ? Undo::of(graph_) : std::nullopt;
  if (undo && undo->bytes() <= kSmallUndo) undo_ = std::move(undo);
  plan_outputs();
  if (graph_.symbols) sizes_.emplace(graph_);
}

// Inputs take the first slots, in order, then state; results that are used take the following ones.
void Replay::place_values() {
  places_.resize(graph_.values.size());
  last_uses_.assign(graph_.values.size(), kNever);
  for (ValueId input : graph_.inputs) places_[input] = {Operand::Slot, static_cast<uint32_t>(slot_count_++)};
  for (ValueId state : graph_.states) places_[state] = {Operand::Slot, static_cast<uint32_t>(slot_count_++)};
  uint32_t index = 0;
  for (ValueId constant : graph_.constants) places_[constant] = {Operand::Constant, index++};
  for (size_t i = 0; i < graph_.ops.size(); ++i) {
    for (const auto& tensor : graph_.ops[i].tensors) last_uses_[tensor.value] = i;
    for (const auto& result : graph_.ops[i].results) {
      if (places_[result.value].kind == Operand::Absent) {
        places_[result.value] = {Operand::Slot, static_cast<uint32_t>(slot_count_++)};
      }
    }
  }
  for (ValueId output : graph_.outputs) last_uses_[output] = kForever;
}

Operand Replay::operand(ValueId value, size_t index) const {
  Operand place = places_[value];
  // Inputs and state stay in their slots: dropping the last reference beside the Python object's takes the GIL.
  bool temporary = graph_.values[value].role == Role::Result;
  if (temporary && place.kind == Operand::Slot && last_uses_[value] == index) place.kind = Operand::LastUse;
  return place;
}

void Replay::flatten(const graph::Op& op, size_t index) {
  size_t first_arg = args_.size();
  for (const IValue& value : op.args) {
    const auto& type = op.handle.schema().arguments()[args_.size() - first_arg].type();
    bool undefined = value.isNone() && type->kind() == c10::TypeKind::TensorType;
    args_.push_back({ArgSource::Constant, static_cast<uint32_t>(constants_.size()), 0});
    constants_.push_back(undefined ? IValue(at::Tensor()) : value);
  }
  for (const graph::SizeRef& size : op.sizes) {
    ArgSource& arg = args_[first_arg + size.position];
    if (arg.kind != ArgSource::Sized) {
      sized_.push_back({arg.index, {}});
      arg = {ArgSource::Sized, static_cast<uint32_t>(sized_.size() - 1), 0};
    }
    sized_[arg.index].items.push_back({size.item, size.expr, graph_.symbols->type(size.expr)});
  }
  for (const graph::TensorList& list : op.lists) {
    args_[first_arg + list.position] = {list.optional ? ArgSource::OptionalList : ArgSource::List,
                                        static_cast<uint32_t>(operands_.size()), list.size};
    operands_.resize(operands_.size() + list.size);
  }
  c10::SmallVector<uint32_t, 4> seen;  // operands of this op that take the tensor out of its slot
  for (const graph::TensorRef& tensor : op.tensors) {
    Operand from = operand(tensor.value, index);
    // The tensor may be moved out of its slot only by the last of several uses in one operator; and not if the
    // operator returns it, which then fills the slot again.
    if (from.kind == Operand::LastUse) {
      for (uint32_t earlier : seen) {
        if (operands_[earlier].index == from.index) operands_[earlier].kind = Operand::Slot;
      }
    }
    ArgSource& arg = args_[first_arg + tensor.position];
    uint32_t position;
    if (tensor.item == graph::TensorRef::kWhole) {
      position = static_cast<uint32_t>(operands_.size());
      arg = {ArgSource::Tensor, position, 0};
      operands_.push_back(from);
    } else {
      position = arg.index + static_cast<uint32_t>(tensor.item);
      operands_[position] = from;
    }
    if (from.kind == Operand::LastUse) seen.push_back(position);
  }
  for (const graph::TensorRef& result : op.results) {
    const Operand& place = places_[result.value];
    if (place.kind != Operand::Slot) continue;  // a constant that was written and returned
    if (graph::is_state(graph_.values[result.value].role)) continue;
    if (last_uses_[result.value] == kNever) continue;
    if (last_uses_[result.value] != kForever && last_uses_[result.value] <= index) continue;
    results_.push_back({result.position, result.item, place.index});
  }
  max_args_ = std::max(max_args_, op.args.size());
  steps_.push_back({op.handle, static_cast<uint32_t>(args_.size()), static_cast<uint32_t>(results_.size()),
                    op.grad_mode, op.below_inplace, op.autocast, op.inference, -1});
  if (op.expected.isNone()) return;
  steps_.back().expected = static_cast<int32_t>(expected_.size());
  expected_.push_back(op.expected);
}

void Replay::plan_outputs() {
  for (size_t i = 0; i < graph_.outputs.size(); ++i) {
    ValueId value = graph_.outputs[i];
    Output output{graph_.values[value].role, places_[value].index, -1};
    if (output.role == Role::Size) output.index = graph_.values[value].shape[0];
    for (size_t k = 0; k < i; ++k) {
      if (graph_.outputs[k] == value) output.same_as = static_cast<int32_t>(k);
    }
    outputs_.push_back(output);
  }
}

// ---- running

IValue Replay::make_list(const ArgSource& source, Slots& slots) const {
  auto take = [&](const Operand& from) -> at::Tensor {
    switch (from.kind) {
      case Operand::Slot: return slots[from.index];
      case Operand::LastUse: return std::move(slots[from.index]);
      case Operand::Constant: return graph_.constant_tensors[from.index];
      case Operand::Absent: break;
    }
    return {};
  };
  if (source.kind == ArgSource::List) {
    c10::List<at::Tensor> list;
    list.reserve(source.count);
    for (uint32_t i = 0; i < source.count; ++i) list.push_back(take(operands_[source.index + i]));
    return list;
  }
  c10::List<std::optional<at::Tensor>> list;
  list.reserve(source.count);
  for (uint32_t i = 0; i < source.count; ++i) {
    const Operand& from = operands_[source.index + i];
    list.push_back(from.kind == Operand::Absent ? std::optional<at::Tensor>() : std::optional(take(from)));
  }
  return list;
}

IValue Replay::make_sized(const SizedArg& arg, const Numbers& numbers) const {
  auto number = [&](const SizedArg::Item& item) -> IValue {
    if (item.type == graph::Symbols::Type::Float) return numbers[item.expr].real;
    if (item.type == graph::Symbols::Type::Bool) return numbers[item.expr].integer != 0;
    return numbers[item.expr].integer;
  };
  if (arg.items[0].index == graph::TensorRef::kWhole) return number(arg.items[0]);
  c10::List<IValue> list = constants_[arg.constant].toList().copy();
  for (const SizedArg::Item& item : arg.items) list.set(static_cast<size_t>(item.index), number(item));
  return list;
}

void Replay::push_arguments(const Step& step, uint32_t& next, Slots& slots, const Numbers& numbers,
                            c10::Stack& stack) const {
  for (; next < step.args_end; ++next) {
    const ArgSource& source = args_[next];
    if (source.kind == ArgSource::Constant) {
      stack.push_back(constants_[source.index]);
    } else if (source.kind == ArgSource::Tensor) {
      const Operand& from = operands_[source.index];
      if (from.kind == Operand::Slot) {
        stack.emplace_back(slots[from.index]);
      } else if (from.kind == Operand::LastUse) {
        stack.emplace_back(std::move(slots[from.index]));
      } else {
        stack.emplace_back(graph_.constant_tensors[from.index]);
      }
    } else if (source.kind == ArgSource::Sized) {
      stack.push_back(make_sized(sized_[source.index], numbers));
    } else {
      stack.push_back(make_list(source, slots));
    }
  }
}

bool Replay::execute(Slots& slots, const Numbers& numbers) const {
  std::optional<c10::impl::ExcludeDispatchKeyGuard> below_autograd;  // puts back all keys, so it ends last
  if (!derives_) below_autograd.emplace(kBelowAutograd);
  Autocast autocast;
  autocast.set(false);
  c10::AutoGradMode restore_grad_mode(c10::GradMode::is_enabled());
  struct RestoreInplace {
    bool before = c10::impl::tls_is_dispatch_key_excluded(c10::DispatchKey::ADInplaceOrView);
    ~RestoreInplace() { c10::impl::tls_set_dispatch_key_excluded(c10::DispatchKey::ADInplaceOrView, before); }
  } inplace;
  bool grad_mode = c10::GradMode::is_enabled();
  bool below_inplace = inplace.before;
  auto set_modes = [&](bool grad, bool below, bool cast) {
    if (grad != grad_mode) c10::GradMode::set_enabled(grad_mode = grad);
    if (below != below_inplace) {
      c10::impl::tls_set_dispatch_key_excluded(c10::DispatchKey::ADInplaceOrView, below_inplace = below);
    }
    autocast.set(cast);
  };
  std::optional<c10::InferenceMode> inference;
  bool grad_outside = grad_mode;
  auto set_inference = [&](bool on) {
    set_modes(inference ? false : grad_outside, inplace.before, false);  // as it found them, and leaves them
    if (on)
      inference.emplace(true);
    else
      inference.reset();
    grad_mode = c10::GradMode::is_enabled();
  };
  c10::Stack stack;
  stack.reserve(max_args_);
  uint32_t next_arg = 0, next_result = 0;
  for (const Step& step : steps_) {
    push_arguments(step, next_arg, slots, numbers, stack);
    if (step.inference != inference.has_value()) set_inference(step.inference);
    set_modes(step.grad_mode, derives_ ? inplace.before : step.below_inplace, step.autocast);
    step.op.callBoxed(&stack);
    if (step.expected >= 0 && !graph::same_number(stack.back(), expected_[static_cast<size_t>(step.expected)])) {
      return false;
    }
    for (; next_result < step.results_end; ++next_result) {
      const ResultTarget& result = results_[next_result];
      if (result.item < 0) {
        slots[result.slot] = std::move(stack[result.position]).toTensor();
      } else {
        slots[result.slot] = stack[result.position].toListRef()[static_cast<size_t>(result.item)].toTensor();
      }
    }
    stack.clear();
  }
  return true;
}

// Asked anew at each run: torch.utils.swap_tensors gives a Python tensor another implementation. The references that
// the slots hold meanwhile also keep use counts from crossing one and back inside kernels, which would take the GIL.
void Replay::fill(Slots& slots, PyObject* const* inputs) const {
  size_t input_count = graph_.inputs.size();
  for (size_t i = 0; i < input_count; ++i) {
    if (graph_.values[graph_.inputs[i]].role != Role::Size) slots[i] = unpack_tensor(inputs[i]);
  }
  for (size_t i = 0; i < state_objects_.size(); ++i) slots[input_count + i] = unpack_tensor(state_objects_[i]);
}

PyObject* Replay::number_object(graph::ExprId expr, graph::Number number) const {
  switch (graph_.symbols->type(expr)) {
    case graph::Symbols::Type::Int: return PyLong_FromLongLong(number.integer);
    case graph::Symbols::Type::Bool: return PyBool_FromLong(number.integer != 0);
    case graph::Symbols::Type::Float: break;
  }
  return PyFloat_FromDouble(number.real);
}

bool Replay::give_outputs(Slots& slots, const Numbers& numbers, PyObject* const* inputs, PyObject** outputs) const {
  for (size_t i = 0; i < outputs_.size(); ++i) {
    const Output& output = outputs_[i];
    if (output.same_as >= 0) {
      outputs[i] = Py_NewRef(outputs[output.same_as]);
    } else if (output.role == Role::Argument) {
      outputs[i] = Py_NewRef(inputs[output.index]);
    } else if (output.role == Role::Size) {
      outputs[i] = number_object(output.index, numbers[output.index]);
    } else {
      outputs[i] = wrap_tensor(std::move(slots[output.index]));
    }
    if (!outputs[i]) {
      while (i-- > 0) Py_CLEAR(outputs[i]);
      return false;
    }
  }
  return true;
}

std::optional<std::string> Replay::bind_sizes(const Slots& slots, PyObject* const* inputs, Numbers& numbers) const {
  if (!sizes_) return std::nullopt;
  c10::SmallVector<int64_t, 8> given(graph_.inputs.size(), 0);
  for (size_t i = 0; i < given.size(); ++i) {
    const graph::Value& value = graph_.values[graph_.inputs[i]];
    if (value.role != Role::Size) continue;
    if (value.dtype == c10::kDouble)
      given[i] = graph::bits_of(PyFloat_AsDouble(inputs[i]));
    else
      given[i] = PyLong_AsLongLong(inputs[i]);
    if (PyErr_Occurred()) return py::take_error();
  }
  return sizes_->bind(slots, given, numbers);
}

std::string Replay::why_sizes_differ(PyObject* const* inputs) const {
  Slots slots(slot_count_);
  fill(slots, inputs);
  Numbers numbers;
  return bind_sizes(slots, inputs, numbers).value_or("");
}

// Without the GIL. False: diverged, or a Python error is set.
bool Replay::run_steps(Slots& slots, const Numbers& numbers) const {
  std::exception_ptr error;
  bool ok = true;
  {
    WarningScope warnings;
    PauseWatch pause;
    PyThreadState* thread = PyEval_SaveThread();
    try {
      ok = execute(slots, numbers);
    } catch (...) {
      error = std::current_exception();
    }
    run_python([&] { PyEval_RestoreThread(thread); });
    if (error) ok = false;
    if (ok) {
      ok = warnings.emit();
    } else if (!rerunnable()) {
      // Otherwise the function runs instead, and warns again. A warning that becomes an error comes first.
      if (!warnings.emit()) error = nullptr;
    }
  }
  if (error) set_python_error(error);
  return ok;
}

bool Replay::run_recorded(PyObject* const* inputs, PyObject** outputs) {
  Slots slots;
  if (free_slots_.empty()) {
    slots.resize(slot_count_);
  } else {
    slots = std::move(free_slots_.back());
    free_slots_.pop_back();
  }
  fill(slots, inputs);
  Numbers numbers;
  bool ok =
      !bind_sizes(slots, inputs, numbers) && run_steps(slots, numbers) && give_outputs(slots, numbers, inputs, outputs);
  for (at::Tensor& slot : slots) slot.reset();
  free_slots_.push_back(std::move(slots));
  return ok;
}

bool Replay::run(PyObject* const* inputs, PyObject** outputs) {
  std::optional<Saved> saved;
  try {
    if (undo_ && !is_capturing()) saved = undo_->save(inputs, state_objects_);  // a capture runs nothing
  } catch (...) {
    set_python_error(std::current_exception());
    return false;
  }
  bool ok = lowered_ ? run_lowered(inputs, outputs) : run_recorded(inputs, outputs);
  if (!ok && saved) saved->put_back();
  return ok;
}

// ---- backends

bool Replay::lower(PyObject* backend) {
  if (lowered_) return true;
  std::vector<py::Ref> states;
  for (PyObject* state : state_objects_) states.push_back(py::Ref::borrow(state));
  py::Ref graph = py::Ref::steal(process_state().wrap_graph(graph_, std::move(states)));
  py::Ref made = py::Ref::steal(graph ? PyObject_CallOneArg(backend, graph.get()) : nullptr);
  if (made && made.get() != Py_None) lowered_ = std::move(made);
  return !PyErr_Occurred();
}

// A new reference to what the program expects, whatever the backend made of it; null: an error is set.
PyObject* Replay::lowered_output(size_t index, PyObject* const* inputs, PyObject* made) const {
  const Output& output = outputs_[index];
  if (output.role == Role::Argument) return Py_NewRef(inputs[output.index]);
  if (graph::is_state(output.role)) return Py_NewRef(state_objects_[output.index - graph_.inputs.size()]);
  if (output.role == Role::Size || PyObject_TypeCheck(made, tensor_class())) return Py_NewRef(made);
  return PyErr_Format(PyExc_TypeError, "the backend's callable must return tensors, but output %zu is of type %.200s",
                      index, Py_TYPE(made)->tp_name);
}

// The operators are those below autograd and autocast.
bool Replay::run_lowered(PyObject* const* inputs, PyObject** outputs) const {
  if (sizes_ && !why_sizes_differ(inputs).empty()) return false;
  LeaveAlone alone;
  Autocast autocast;
  autocast.set(false);
  c10::AutoGradMode no_gradients(false);
  py::Ref callable = lowered_;
  py::Ref made = py::Ref::steal(PyObject_Vectorcall(callable.get(), inputs, graph_.inputs.size(), nullptr));
  if (!made) {
    count("backend_error", ((PyTypeObject*)PyErr_Occurred())->tp_name);
    return false;
  }
  bool is_sequence = PyTuple_Check(made.get()) || PyList_Check(made.get());
  if (!is_sequence || static_cast<size_t>(PySequence_Fast_GET_SIZE(made.get())) != outputs_.size()) {
    PyErr_Format(PyExc_TypeError, "the backend's callable must return a tuple or list of %zu outputs, but returned %R",
                 outputs_.size(), made.get());
    return false;
  }
  for (size_t i = 0; i < outputs_.size(); ++i) {
    int32_t same = outputs_[i].same_as;
    outputs[i] = same >= 0
                     ? Py_NewRef(outputs[same])
                     : lowered_output(i, inputs, PySequence_Fast_GET_ITEM(made.get(), static_cast<Py_ssize_t>(i)));
    if (outputs[i]) continue;
    while (i-- > 0) Py_CLEAR(outputs[i]);
    return false;
  }
  return true;
}

}  // namespace

std::unique_ptr<Segment> make_replay(graph::Graph graph, std::vector<PyObject*> state_objects) {
  auto replay = std::make_unique<Replay>(std::move(graph), state_objects);
  const graph::Graph& prepared = replay->graph();
  if (replay->derives()) return replay;
  return with_cuda_graph(std::move(replay), prepared, std::move(state_objects));
}

}  // namespace magneto::runtime
