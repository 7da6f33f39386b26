// A segment of a program that an executor runs, between Python objects and tensors; and what a backend makes of it.
#include "runtime/replay.h"

#include <ATen/core/grad_mode.h>

#include <optional>

#include "cpython/ref.h"
#include "cpython/text.h"
#include "graph/graph.h"
#include "runtime/cuda_graph.h"
#include "runtime/cuda_replay.h"
#include "runtime/daemon_threads.h"
#include "runtime/errors.h"
#include "runtime/executor.h"
#include "runtime/state.h"
#include "runtime/torch_python.h"
#include "runtime/undo.h"

namespace magneto::runtime {
namespace {

using graph::Role;

void note_derivation() {
  if (auto callback = process_state().on_derivation) callback();
}

constexpr int64_t kSmallUndo = 1 << 20;  // so many bytes are copied before a run just in case

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
  size_t op_count() const override { return executor_.op_count(); }
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
  bool derives() const { return executor_.derives(); }
  const KeptResults& kept() const { return executor_.kept(); }

 private:
  void fill(Slots& slots, PyObject* const* inputs) const;
  // If the recording does not hold for the sizes of the inputs: why, in words.
  std::optional<std::string> bind_sizes(const Slots& slots, PyObject* const* inputs, Numbers& numbers) const;
  bool run_steps(Slots& slots, const Numbers& numbers) const;
  bool run_recorded(PyObject* const* inputs, PyObject** outputs);
  bool give_outputs(Slots& slots, const Numbers& numbers, PyObject* const* inputs, PyObject** outputs) const;
  bool run_lowered(PyObject* const* inputs, PyObject** outputs) const;
  PyObject* lowered_output(size_t index, PyObject* const* inputs, PyObject* made) const;
  PyObject* number_object(graph::ExprId expr, graph::Number number) const;

  const Executor executor_;
  const graph::Graph& graph_ = executor_.graph();
  const std::vector<Executor::Output>& outputs_ = executor_.outputs();
  std::vector<PyObject*> state_objects_;  // borrowed: guards vouch for them when a run starts
  py::Ref lowered_;                       // what a backend made of the graph, or null
  bool rerunnable_ = true;                // because a run changes nothing
  std::optional<Undo> undo_;              // or because its changes are undone
  std::vector<Slots> free_slots_;         // owned by the GIL
};

// ---- construction

Replay::Replay(graph::Graph graph, std::vector<PyObject*> state_objects)
    : executor_(std::move(graph)), state_objects_(std::move(state_objects)) {
  MAGNETO_ASSERT(state_objects_.size() == graph_.states.size());
  bool fails_late = false;  // what tensors hold may make an operator raise when something was changed already
  for (const graph::Op& op : graph_.ops) {
    rerunnable_ = rerunnable_ && !graph::has_effect(graph_, op);
    fails_late |= !rerunnable_ && (op.info->may_raise || op.info->divides);
  }
  std::optional<Undo> undo = fails_late ? Undo::of(graph_) : std::nullopt;
  if (undo && undo->bytes() <= kSmallUndo) undo_ = std::move(undo);
}

// ---- running

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
    const Executor::Output& output = outputs_[i];
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
  if (!executor_.has_symbols()) return std::nullopt;
  std::vector<int64_t> given(graph_.inputs.size());
  for (size_t i = 0; i < given.size(); ++i) {
    const graph::Value& value = graph_.values[graph_.inputs[i]];
    if (value.role != Role::Size) continue;
    if (value.dtype == c10::kDouble)
      given[i] = graph::bits_of(PyFloat_AsDouble(inputs[i]));
    else
      given[i] = PyLong_AsLongLong(inputs[i]);
    if (PyErr_Occurred()) return py::take_error();
  }
  return executor_.bind(slots, given, numbers);
}

std::string Replay::why_sizes_differ(PyObject* const* inputs) const {
  Slots slots(executor_.slot_count());
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
      ok = executor_.execute(slots, numbers);
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
    slots.resize(executor_.slot_count());
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
  if (derives()) note_derivation();
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
  const Executor::Output& output = outputs_[index];
  if (output.role == Role::Argument) return Py_NewRef(inputs[output.index]);
  if (graph::is_state(output.role)) return Py_NewRef(state_objects_[output.index - graph_.inputs.size()]);
  if (output.role == Role::Size || PyObject_TypeCheck(made, tensor_class())) return Py_NewRef(made);
  return PyErr_Format(PyExc_TypeError, "the backend's callable must return tensors, but output %zu is of type %.200s",
                      index, Py_TYPE(made)->tp_name);
}

// The operators are those below autograd and autocast.
bool Replay::run_lowered(PyObject* const* inputs, PyObject** outputs) const {
  if (executor_.has_symbols() && !why_sizes_differ(inputs).empty()) return false;
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

std::unique_ptr<Segment> make_boxed_replay(graph::Graph graph, std::vector<PyObject*> state_objects) {
  return std::make_unique<Replay>(std::move(graph), std::move(state_objects));
}

const KeptResults* kept_results(const Segment& replay) {
  auto* boxed = dynamic_cast<const Replay*>(&replay);
  return boxed ? &boxed->kept() : nullptr;
}

std::unique_ptr<Segment> make_replay(graph::Graph graph, std::vector<PyObject*> state_objects) {
  auto replay = std::make_unique<Replay>(std::move(graph), state_objects);
  const graph::Graph& prepared = replay->graph();
  if (replay->derives()) {
    note_derivation();
    return replay;
  }
  return with_cuda_graph(std::move(replay), prepared, std::move(state_objects));
}

}  // namespace magneto::runtime
