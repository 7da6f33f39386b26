// The boundary to Python of graphs: views, text, checked runs.
#include "python/bind_graph.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <tuple>

#include "compile/functional.h"
#include "compile/fuse.h"
#include "graph/text.h"
#include "python/tensor_objects.h"
#include "record/plain_tensor.h"
#include "runtime/background.h"
#include "runtime/errors.h"
#include "runtime/replay.h"
#include "runtime/state.h"
#include "runtime/torch_python.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace magneto::python {
namespace {

using c10::IValue;
using c10::TypeKind;
using graph::ValueId;
using SharedGraph = std::shared_ptr<const graph::Graph>;

// Views keep the graph, but not its state, alive.
struct ValueView {
  SharedGraph graph;
  ValueId id;
  const graph::Value& get() const { return graph->values[id]; }
};

struct OpView {
  SharedGraph graph;
  size_t index;
  const graph::Op& get() const { return graph->ops[index]; }
};

// A number among the arguments of an operator that depends on symbols.
struct SizeView {
  std::string text;
  graph::Symbols::Type type;
  graph::Number hint;
};

// ---- Python objects of what graphs hold

nb::object of_torch(std::string_view name) { return nb::module_::import_("torch").attr(std::string(name).c_str()); }

nb::object dtype_object(c10::ScalarType dtype) { return of_torch(c10::getDtypeNames(dtype).first); }

nb::object device_object(c10::Device device) { return of_torch("device")(device.str()); }

nb::object int_object(int64_t number, TypeKind kind) {
  auto index = static_cast<size_t>(number);
  if (kind == TypeKind::ScalarTypeType) return dtype_object(static_cast<c10::ScalarType>(number));
  if (kind == TypeKind::LayoutType) return of_torch(graph::kLayoutNames.at(index));
  if (kind == TypeKind::MemoryFormatType) return of_torch(graph::kMemoryFormatNames.at(index));
  return nb::int_(number);
}

nb::object number_object(const IValue& value, TypeKind kind = TypeKind::NumberType) {
  if (value.isBool()) return nb::bool_(value.toBool());
  if (value.isInt()) return int_object(value.toInt(), kind);
  if (value.isDouble()) return nb::float_(value.toDouble());
  auto number = value.toComplexDouble();
  return nb::steal(PyComplex_FromDoubles(number.real(), number.imag()));
}

// An argument that holds no tensor.
nb::object plain_object(const IValue& value, const c10::Type& real_type) {
  const c10::Type& type = graph::inner_type(real_type);
  if (value.isNone()) return nb::none();
  if (value.isString()) return nb::str(value.toStringRef().c_str(), value.toStringRef().size());
  if (value.isDevice()) return device_object(value.toDevice());
  if (value.isScalar()) return number_object(value, type.kind());
  if (value.isList()) {
    const c10::Type& item = type.kind() == TypeKind::ListType ? *type.containedType(0) : *c10::AnyType::get();
    nb::list list;
    for (const IValue& each : value.toListRef()) list.append(plain_object(each, item));
    return list;
  }
  return nb::str(graph::argument_text(value, type).c_str());
}

nb::tuple tuple_of(c10::ArrayRef<int64_t> numbers) {
  nb::list list;
  for (int64_t number : numbers) list.append(number);
  return nb::tuple(list);
}

// Puts the tensors of an operator into `places`, each a slot or a list.
void put_tensors(const SharedGraph& graph, c10::ArrayRef<graph::TensorRef> tensors, nb::list& places) {
  for (const graph::TensorRef& tensor : tensors) {
    nb::object view = nb::cast(ValueView{graph, tensor.value});
    if (tensor.item == graph::TensorRef::kWhole) {
      places[tensor.position] = view;
      continue;
    }
    if (!nb::isinstance<nb::list>(places[tensor.position])) places[tensor.position] = nb::list();
    auto list = nb::cast<nb::list>(places[tensor.position]);
    while (static_cast<int64_t>(nb::len(list)) <= tensor.item) list.append(nb::none());
    list[static_cast<size_t>(tensor.item)] = view;
  }
}

nb::list op_arguments(const OpView& view) {
  const graph::Op& op = view.get();
  const auto& declared = op.handle.schema().arguments();
  nb::list arguments;
  for (size_t i = 0; i < declared.size(); ++i) arguments.append(plain_object(op.args[i], *declared[i].real_type()));
  for (const graph::TensorList& list : op.lists) {
    nb::list items;
    for (uint32_t i = 0; i < list.size; ++i) items.append(nb::none());
    arguments[list.position] = items;
  }
  put_tensors(view.graph, op.tensors, arguments);
  for (const graph::SizeRef& size : op.sizes) {
    const graph::Symbols& symbols = *view.graph->symbols;
    nb::object number = nb::cast(SizeView{symbols.text(size.expr), symbols.type(size.expr), symbols.hint(size.expr)});
    if (size.item == graph::TensorRef::kWhole) {
      arguments[size.position] = number;
    } else {
      nb::cast<nb::list>(arguments[size.position])[static_cast<size_t>(size.item)] = number;
    }
  }
  return arguments;
}

nb::list op_results(const OpView& view) {
  nb::list results;
  for (size_t i = 0; i < view.get().handle.schema().returns().size(); ++i) results.append(nb::none());
  put_tensors(view.graph, view.get().results, results);
  return results;
}

nb::object op_line(const OpView& view) {
  if (view.get().line == graph::Op::kNoLine) return nb::none();
  const graph::Line& line = view.graph->lines[view.get().line];
  return nb::make_tuple(line.file, line.number, line.function);
}

// Type promotion treats it differently from other tensors.
bool is_number(const ValueView& view) {
  const graph::Graph& graph = *view.graph;
  auto found = std::find(graph.constants.begin(), graph.constants.end(), view.id);
  if (found == graph.constants.end()) return false;
  const at::Tensor& tensor = graph.constant_tensors[static_cast<size_t>(found - graph.constants.begin())];
  return tensor.unsafeGetTensorImpl()->is_wrapped_number();
}

// ---- the graph and its state

class PyGraph {
 public:
  PyGraph(graph::Graph graph, std::vector<py::Ref> states)
      : graph_(std::make_shared<const graph::Graph>(std::move(graph))), states_(std::move(states)) {}

  const SharedGraph& graph() const { return graph_; }

  nb::list values(const std::vector<ValueId>& ids) const {
    nb::list list;
    for (ValueId id : ids) list.append(nb::cast(ValueView{graph_, id}));
    return list;
  }

  nb::list ops() const {
    nb::list list;
    for (size_t i = 0; i < graph_->ops.size(); ++i) list.append(nb::cast(OpView{graph_, i}));
    return list;
  }

  nb::list states() const {
    nb::list list;
    for (size_t i = 0; i < graph_->states.size(); ++i) {
      PyObject* tensor = state(i);
      list.append(nb::make_tuple(graph_->values[graph_->states[i]].name, nb::borrow(tensor ? tensor : Py_None)));
    }
    return list;
  }

  nb::list constants() const {
    nb::list list;
    for (const at::Tensor& tensor : graph_->constant_tensors) list.append(wrap(tensor));
    return list;
  }

  // (name, input, dimension, smallest, largest)
  nb::list symbols() const {
    nb::list list;
    if (!graph_->symbols) return list;
    auto bound = [](int64_t number, int64_t none) -> nb::object {
      return number == none ? nb::none() : nb::object(nb::int_(number));
    };
    for (const graph::Symbol& symbol : graph_->symbols->symbols()) {
      if (symbol.source.dimension == graph::SymbolSource::kUnknown) continue;
      list.append(nb::make_tuple(symbol.name, symbol.source.input, symbol.source.dimension,
                                 bound(symbol.range.min, graph::Range::kMin),
                                 bound(symbol.range.max, graph::Range::kMax)));
    }
    return list;
  }

  std::vector<std::string> guards() const {
    return graph_->symbols ? graph_->symbols->guards_in_words() : std::vector<std::string>();
  }

  PyGraph functional() const;
  std::optional<PyGraph> fused(const nb::callable& compile, bool casts_outputs) const;

  nb::list run(nb::handle inputs);
  nb::tuple kept();
  nb::object call(nb::args args, nb::kwargs kwargs);

  // call(run, args, kwargs): makes inputs of arguments and a result of outputs. None: inputs and outputs as they are.
  nb::object calling = nb::none();

  int traverse(visitproc visit, void* arg) const {
    Py_VISIT(calling.ptr());
    for (const py::Ref& state : states_) Py_VISIT(state.get());
    return 0;
  }
  void clear() {
    calling = nb::none();
    replay_.reset();  // borrows the state
    states_.clear();
  }

 private:
  PyObject* state(size_t index) const { return index < states_.size() ? states_[index].get() : nullptr; }
  void check_input(PyObject* input, size_t index) const;
  // `kind`, `index`: for the message, "input 2".
  void check_tensor(PyObject* tensor, ValueId id, const char* kind, size_t index) const;
  void check_memory(PyObject* const* inputs) const;
  void prepare();

  SharedGraph graph_;
  std::vector<py::Ref> states_;               // empty, or null, where the graph came without
  std::vector<size_t> alone_;                 // in inputs, then states: those that may share memory with no other
  std::unique_ptr<runtime::Segment> replay_;  // made by the first run
};

std::string described(const at::Tensor& tensor) {
  graph::Graph holder;
  return graph::to_text(holder.values[holder.add_value(graph::Role::Argument, tensor)]);
}

bool same_strides(const at::Tensor& tensor, const graph::Value& value) {
  for (size_t d = 0; d < value.sizes.size(); ++d) {
    if (value.sizes[d] == 0) return true;
  }
  for (size_t d = 0; d < value.sizes.size(); ++d) {
    if (value.sizes[d] != 1 && tensor.strides()[d] != value.strides[d]) return false;
  }
  return true;
}

bool fits(const at::Tensor& tensor, const graph::Value& value) {
  if (tensor.scalar_type() != value.dtype || tensor.device() != value.device) return false;
  // Replays check the sizes that depend on symbols.
  if (!value.shape.empty()) return tensor.dim() == static_cast<int64_t>(value.sizes.size());
  return tensor.sizes() == value.sizes && same_strides(tensor, value);
}

void PyGraph::check_tensor(PyObject* object, ValueId id, const char* kind, size_t index) const {
  const graph::Value& value = graph_->values[id];
  std::string reason = is_tensor(object) ? record::why_not_plain(object) : "";
  if (is_tensor(object) && reason.empty() && fits(runtime::unpack_tensor(object), value)) return;
  std::string whose = kind + (" " + std::to_string(index)) + (value.name.empty() ? "" : " (" + value.name + ")");
  const at::Tensor& tensor = unwrap(object, whose);
  if (!reason.empty()) throw UserError(whose + ": expected a plain tensor, got " + reason);
  throw UserError(whose + ": expected " + graph::to_text(value) + ", got " + described(tensor));
}

void PyGraph::check_input(PyObject* input, size_t index) const {
  const graph::Value& value = graph_->values[graph_->inputs[index]];
  if (value.role != graph::Role::Size) return check_tensor(input, graph_->inputs[index], "input", index);
  bool is_float = value.dtype == c10::kDouble;
  if (is_float && PyFloat_Check(input)) return;
  if (!is_float && PyLong_Check(input) && !PyBool_Check(input)) {
    if (PyLong_AsLongLong(input) == -1 && PyErr_Occurred()) throw nb::python_error();
    return;
  }
  throw nb::type_error(("input " + std::to_string(index) + (value.name.empty() ? "" : " (" + value.name + ")") +
                        (is_float ? ": expected a float, got " : ": expected an integer, got ") +
                        Py_TYPE(input)->tp_name)
                           .c_str());
}

// If what the edge writes were also another input, eager's later operators would have seen the writes.
void PyGraph::check_memory(PyObject* const* inputs) const {
  if (alone_.empty()) return;
  size_t count = graph_->inputs.size();
  auto memory = [&](size_t index) {
    return runtime::unpack_tensor(index < count ? inputs[index] : state(index - count))
        .storage()
        .unsafeGetStorageImpl();
  };
  for (size_t index : alone_) {
    for (size_t other = 0; other < count + graph_->states.size(); ++other) {
      bool is_size = other < count && graph_->values[graph_->inputs[other]].role == graph::Role::Size;
      if (other == index || is_size || memory(other) != memory(index)) continue;
      auto name = [&](size_t i) {
        return i < count ? "input " + std::to_string(i) : "state " + std::to_string(i - count);
      };
      throw UserError("the graph writes " + name(index) + ", which shares memory with " + name(other) +
                      " now, but did not when it was recorded");
    }
  }
}

std::optional<PyGraph> PyGraph::fused(const nb::callable& compile, bool casts_outputs) const {
  auto on_host = [&](const codegen::Library& library) {
    return runtime::open_host_kernels(nb::cast<std::string>(compile(library.sources(1)[0])));
  };
  std::optional<graph::Graph> made = compile::fuse(*graph_, on_host, casts_outputs);
  if (!made) return std::nullopt;
  std::vector<py::Ref> states;
  for (const py::Ref& state : states_) states.push_back(py::Ref::borrow(state.get()));
  return PyGraph(std::move(*made), std::move(states));
}

PyGraph PyGraph::functional() const {
  std::vector<py::Ref> states;
  for (const py::Ref& state : states_) states.push_back(py::Ref::borrow(state.get()));
  PyGraph result(compile::make_functional(*graph_), std::move(states));
  result.calling = calling;
  const graph::Graph& made = *result.graph_;
  std::vector<ValueId> outside = made.inputs;
  outside.insert(outside.end(), made.states.begin(), made.states.end());
  for (size_t i = compile::edge_of(made); i < made.ops.size(); ++i) {
    if (!made.ops[i].info->writes) continue;
    auto found = std::find(outside.begin(), outside.end(), made.ops[i].tensors[0].value);
    result.alone_.push_back(static_cast<size_t>(found - outside.begin()));
  }
  return result;
}

void PyGraph::prepare() {
  for (size_t i = 0; i < graph_->states.size(); ++i) {
    if (!state(i)) {
      throw UserError("state " + std::to_string(i) + " (" + graph_->values[graph_->states[i]].name +
                      ") has no tensor: hand the states to Graph.parse(text, states=...)");
    }
    check_tensor(state(i), graph_->states[i], "state", i);
  }
  if (replay_) return;
  std::vector<PyObject*> borrowed;
  for (const py::Ref& state : states_) borrowed.push_back(state.get());
  replay_ = runtime::make_replay(*graph_, std::move(borrowed));
}

nb::list PyGraph::run(nb::handle inputs) {
  nb::object list = nb::steal(PySequence_Fast(inputs.ptr(), "run expects a list of inputs"));
  if (!list.is_valid()) throw nb::python_error();
  auto count = static_cast<size_t>(PySequence_Fast_GET_SIZE(list.ptr()));
  if (count != graph_->inputs.size()) {
    throw nb::type_error(
        ("run expects " + std::to_string(graph_->inputs.size()) + " inputs, got " + std::to_string(count)).c_str());
  }
  // A copy: the list may change while operators run.
  nb::object held = nb::steal(PySequence_Tuple(list.ptr()));
  if (!held.is_valid()) throw nb::python_error();
  PyObject* const* items = PySequence_Fast_ITEMS(held.ptr());
  for (size_t i = 0; i < count; ++i) check_input(items[i], i);
  prepare();
  check_memory(items);
  std::vector<PyObject*> outputs(replay_->output_count());
  if (!replay_->run(items, outputs.data())) {
    if (PyErr_Occurred()) throw nb::python_error();
    std::string why = replay_->why_sizes_differ(items);
    if (!why.empty()) throw nb::value_error(("the graph was recorded for other sizes: " + why).c_str());
    throw UserError("a number that the graph relies on (`==` in its text) came out differently; record it again");
  }
  nb::list results;
  for (PyObject* output : outputs) results.append(nb::steal(output));
  return results;
}

nb::tuple PyGraph::kept() {
  prepare();
  const runtime::KeptResults* kept = runtime::kept_results(*replay_);
  if (!kept) return nb::make_tuple(0, 0, 0);
  return nb::make_tuple(kept->result_count(), kept->bytes(), kept->run_count());
}

nb::object PyGraph::call(nb::args args, nb::kwargs kwargs) {
  if (!calling.is_none()) return calling(nb::find(this).attr("run"), args, kwargs);
  if (nb::len(kwargs)) throw nb::type_error("this graph takes its inputs in order, not by name");
  return run(args);
}

// ---- parsing

std::vector<at::Tensor> unpack_all(nb::handle tensors, const char* what) {
  std::vector<at::Tensor> result;
  if (tensors.is_none()) return result;
  for (nb::handle tensor : nb::iter(tensors)) {
    if (!is_tensor(tensor)) {
      throw nb::type_error((std::string(what) + " must be tensors, got " + Py_TYPE(tensor.ptr())->tp_name).c_str());
    }
    result.push_back(runtime::unpack_tensor(tensor.ptr()));
  }
  return result;
}

std::vector<py::Ref> match_states(const graph::Graph& graph, nb::handle states) {
  std::vector<py::Ref> matched;
  if (states.is_none()) return matched;
  if (nb::isinstance<nb::dict>(states)) {
    for (ValueId id : graph.states) {
      const std::string& name = graph.values[id].name;
      PyObject* found = PyDict_GetItemWithError(states.ptr(), nb::str(name.c_str(), name.size()).ptr());
      if (!found && PyErr_Occurred()) throw nb::python_error();
      if (!found) throw UserError("states has no tensor " + graph::in_quotes(name));
      matched.push_back(py::Ref::borrow(found));
    }
    return matched;
  }
  for (nb::handle state : nb::iter(states)) matched.push_back(py::Ref::borrow(state.ptr()));
  if (matched.size() != graph.states.size()) {
    throw UserError("expected " + std::to_string(graph.states.size()) + " states, got " +
                    std::to_string(matched.size()));
  }
  return matched;
}

PyGraph parse_graph(const std::string& text, nb::handle states, nb::handle constants) {
  graph::Graph parsed = graph::parse(text, unpack_all(constants, "constants"));
  auto matched = match_states(parsed, states);
  return PyGraph(std::move(parsed), std::move(matched));
}

// ---- drawing and torch.fx

std::string draw_svg(const PyGraph& self, nb::handle path) {
  std::string svg = graph::to_svg(*self.graph());
  if (!path.is_none())
    nb::module_::import_("pathlib").attr("Path")(path).attr("write_text")(svg, "encoding"_a = "utf-8");
  return svg;
}

nb::object in_python(const char* name) { return nb::module_::import_("magneto.graph").attr(name); }

// ---- the types

int traverse_graph(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  if (!nb::inst_ready(self)) return 0;
  return nb::inst_ptr<PyGraph>(self)->traverse(visit, arg);
}

int clear_graph(PyObject* self) {
  nb::inst_ptr<PyGraph>(self)->clear();
  return 0;
}

PyType_Slot kGraphSlots[] = {{Py_tp_traverse, (void*)traverse_graph}, {Py_tp_clear, (void*)clear_graph}, {0, nullptr}};

void bind_views(nb::module_& module) {
  nb::class_<ValueView>(module, "GraphValue", "A tensor of a graph.")
      .def_prop_ro(
          "id", [](const ValueView& view) { return view.id; }, "Its number in the text of the graph.")
      .def_prop_ro(
          "role", [](const ValueView& view) { return graph::role_text(view.get().role); },
          "'argument', 'parameter', 'buffer', 'constant', 'result', or 'size': a number, not a tensor.")
      .def_prop_ro(
          "name", [](const ValueView& view) { return view.get().name; }, "As in the program; may be empty.")
      .def_prop_ro(
          "dtype", [](const ValueView& view) { return dtype_object(view.get().dtype); },
          nb::sig("def dtype(self) -> torch.dtype"))
      .def_prop_ro(
          "device", [](const ValueView& view) { return device_object(view.get().device); },
          nb::sig("def device(self) -> torch.device"))
      .def_prop_ro(
          "shape", [](const ValueView& view) { return tuple_of(view.get().sizes); },
          nb::sig("def shape(self) -> tuple[int, ...]"), "As it was when the value came into being.")
      .def_prop_ro(
          "stride", [](const ValueView& view) { return tuple_of(view.get().strides); },
          nb::sig("def stride(self) -> tuple[int, ...]"))
      .def_prop_ro(
          "memory", [](const ValueView& view) { return view.get().memory; },
          "The number of the first value that lives in the same memory; its own if none does.")
      .def_prop_ro(
          "hint",
          [](const ValueView& view) -> nb::object {
            if (view.get().role != graph::Role::Size) return nb::none();
            graph::Number hint = view.graph->symbols->hint(view.get().shape[0]);
            if (view.get().dtype == c10::kDouble) return nb::float_(hint.real);
            return nb::int_(hint.integer);
          },
          nb::sig("def hint(self) -> int | float | None"), "Of a size: the number in the recorded call.")
      .def_prop_ro("is_number", &is_number, "Whether it is a constant that was a Python number.")
      .def(
          "__deepcopy__", [](nb::handle self, nb::handle) { return nb::borrow(self); }, "memo"_a,
          nb::sig("def __deepcopy__(self, memo: object) -> GraphValue"))
      .def_prop_ro(
          "type", [](const ValueView& view) { return graph::to_text(*view.graph, view.get()); },
          "'f32[s0, 8]': dtype, sizes, strides unless contiguous, device unless the CPU. Of a size: 's0'.")
      .def("__repr__", [](const ValueView& view) { return "%" + std::to_string(view.id); });

  nb::class_<SizeView>(module, "GraphSize", "A number that depends on the sizes of the inputs.")
      .def_prop_ro(
          "hint",
          [](const SizeView& size) -> nb::object {
            if (size.type == graph::Symbols::Type::Float) return nb::float_(size.hint.real);
            if (size.type == graph::Symbols::Type::Bool) return nb::bool_(size.hint.integer != 0);
            return nb::int_(size.hint.integer);
          },
          nb::sig("def hint(self) -> bool | int | float"), "The number in the recorded call.")
      .def("__str__", [](const SizeView& size) { return size.text; })
      .def("__repr__", [](const SizeView& size) { return size.text; });

  nb::class_<OpView>(module, "GraphOp", "A call of an operator in a graph.")
      .def_prop_ro(
          "name", [](const OpView& view) { return view.get().handle.schema().name(); }, "'aten::add'")
      .def_prop_ro(
          "overload", [](const OpView& view) { return view.get().handle.schema().overload_name(); },
          "'Tensor'; empty for the default one.")
      .def_prop_ro("arguments", &op_arguments, nb::sig("def arguments(self) -> list[object]"),
                   "All of them, in the order of the schema; tensors as GraphValue, symbolic sizes as GraphSize.")
      .def_prop_ro("results", &op_results, nb::sig("def results(self) -> list[object]"),
                   "In the order of the schema; None for what is no tensor.")
      .def_prop_ro("line", &op_line, nb::sig("def line(self) -> tuple[str, int, str] | None"),
                   "File, line number and function that called it, if that is known.")
      .def_prop_ro(
          "grad_mode", [](const OpView& view) { return view.get().grad_mode; }, "In force when it ran.")
      .def_prop_ro(
          "below_inplace", [](const OpView& view) { return view.get().below_inplace; },
          "Ran where version counters and views are not kept, as inside an autograd kernel.")
      .def_prop_ro(
          "autocast", [](const OpView& view) { return view.get().autocast; }, "Runs with the autocast of the caller.")
      .def_prop_ro(
          "inference", [](const OpView& view) { return view.get().inference; },
          "Runs in inference mode, also for a caller that is not in it.")
      .def_prop_ro(
          "derives", [](const OpView& view) { return view.get().derives; }, "Autograd takes part in each run.")
      .def_prop_ro(
          "shared_cast", [](const OpView& view) { return view.get().shared_cast; },
          "Is autocast's cast of a parameter, which all in the block of autocast share.")
      .def_prop_ro(
          "expected",
          [](const OpView& view) -> nb::object {
            const IValue& expected = view.get().expected;
            return expected.isNone() ? nb::none() : number_object(expected);
          },
          nb::sig("def expected(self) -> bool | int | float | complex | None"),
          "The number that it must return, if anything relies on that.")
      .def("__repr__", [](const OpView& view) { return graph::to_text(*view.graph, view.get()); });
}

}  // namespace

PyObject* wrap_graph(graph::Graph graph, std::vector<py::Ref> states) {
  try {
    return nb::cast(PyGraph(std::move(graph), std::move(states))).release().ptr();
  } catch (nb::python_error& error) {
    error.restore();
    return nullptr;
  }
}

void bind_graph(nb::module_& module) {
  bind_views(module);
  runtime::process_state().wrap_graph = wrap_graph;
  runtime::process_state().make_kernels = &compile::make_kernels;
  module.def("_wait_for_jobs", &runtime::wait_for_jobs);
  nb::module_::import_("atexit").attr("register")(module.attr("_wait_for_jobs"));
  auto text = [](const PyGraph& self) { return graph::to_text(*self.graph()); };
  nb::class_<PyGraph>(module, "Graph", nb::type_slots(kGraphSlots),
                      "Straight-line tensor work: values, and calls of ATen operators in order.\n\n"
                      "Keeps its state (parameters and buffers) alive and uses it by reference.")
      .def_static(
          "parse", &parse_graph, "text"_a, "states"_a = nb::none(), "constants"_a = nb::none(),
          nb::sig("def parse(text: str, states: collections.abc.Iterable[torch.Tensor] | dict[str, torch.Tensor]"
                  " | None = None, constants: collections.abc.Iterable[torch.Tensor] | None = None) -> Graph"),
          "The graph that `text` describes: the inverse of `.text`.\n\n"
          "states: the tensors of its parameters and buffers, in order or by name; without them it cannot run.\n"
          "constants: the tensors of those constants that are written without contents, in order.")
      .def_prop_ro("text", text, "The graph as text that `parse` reads.")
      .def("__str__", text)
      .def("__repr__",
           [](const PyGraph& self) {
             const graph::Graph& graph = *self.graph();
             return "<magneto.Graph: " + std::to_string(graph.inputs.size()) + " inputs, " +
                    std::to_string(graph.states.size()) + " states, " + std::to_string(graph.ops.size()) +
                    " operators, " + std::to_string(graph.outputs.size()) + " outputs>";
           })
      .def("__len__", [](const PyGraph& self) { return self.graph()->ops.size(); })
      .def_prop_ro(
          "hash", [](const PyGraph& self) { return graph::structural_hash(*self.graph()); },
          "Equal for graphs that do the same work, in every process: operators, arguments, values, constants; not "
          "names, source lines or numbers of values.")
      .def(
          "to_dot", [](const PyGraph& self) { return graph::to_dot(*self.graph()); }, "A drawing for Graphviz.")
      .def("to_svg", &draw_svg, "path"_a = nb::none(),
           nb::sig("def to_svg(self, path: str | os.PathLike[str] | None = None) -> str"),
           "A drawing, also written to `path`.")
      .def(
          "to_fx", [](nb::handle self) { return in_python("to_fx")(self); },
          nb::sig("def to_fx(self) -> torch.fx.GraphModule"),
          "A runnable module of ATen operators that shares the state.\n\n"
          "The operators are those below autograd, so run it under torch.no_grad(); a kernel that asks for the grad "
          "mode, "
          "as the LSTM of the CPU does, sees that of the caller. Each node has `tensor_meta`, the "
          "values of the graph under `magneto`, and the source line as `stack_trace` in its meta.")
      .def_static(
          "from_fx", [](nb::handle module, nb::handle inputs) { return in_python("from_fx")(module, inputs); },
          "module"_a, "example_inputs"_a = nb::none(),
          nb::sig("def from_fx(module: torch.fx.GraphModule, example_inputs: "
                  "collections.abc.Sequence[torch.Tensor] | None = None) -> Graph"),
          "The graph of a module of ATen operators, whose state it shares.\n\n"
          "What the values are is taken from a run on copies of `example_inputs` or, without these, from the "
          "meta of the nodes: `magneto`, as to_fx leaves it, or `val`.")
      .def(
          "verify", [](const PyGraph& self) { graph::verify(*self.graph()); },
          "Raises InternalError if the graph means nothing.")
      .def("functional", &PyGraph::functional,
           "The same work without writes: no value ever changes, up to the edge, where inputs and state take their new "
           "contents.\n\nUserError: an operator has no functional partner.")
      .def(
          "_fused", &PyGraph::fused, "compile"_a, "casts_outputs"_a = false,
          nb::sig("def _fused(self, compile: collections.abc.Callable[[str], str], casts_outputs: bool = False) -> "
                  "Graph | None"),
          "The same work with kernels in place of operators, on the host: `compile` is given their source and returns "
          "the path of a library with their functions. None: no operators make a kernel. With `casts_outputs`, outputs "
          "that are cast last come as they were before, for the caller to cast.")
      .def("_kept", &PyGraph::kept, nb::sig("def _kept(self) -> tuple[int, int, int]"),
           "How many results stay in place from run to run, in how many bytes, and how many runs have used them.")
      .def_prop_ro(
          "edge", [](const PyGraph& self) { return compile::edge_of(*self.graph()); },
          "The index of the first operator that writes; of a functional form, where its edge begins.")
      .def_prop_ro(
          "is_functional", [](const PyGraph& self) { return compile::why_not_functional(*self.graph()).empty(); },
          "Whether nothing is written before the edge, and there nothing but inputs and state, once each.")
      .def("run", &PyGraph::run, "inputs"_a,
           nb::sig("def run(self, inputs: collections.abc.Sequence[torch.Tensor | int]) -> list[typing.Any]"),
           "Runs the operators below autograd, after checking that the inputs are what the graph expects.")
      .def("__call__", &PyGraph::call, nb::sig("def __call__(self, *args: object, **kwargs: object) -> object"),
           "Calls it like the function that it was recorded from; otherwise with its inputs, as `run`.")
      .def_prop_rw(
          "calling", [](const PyGraph& self) { return self.calling; },
          [](PyGraph& self, nb::object calling) { self.calling = std::move(calling); },
          nb::for_getter(nb::sig("def calling(self) -> object")),
          nb::for_setter(nb::sig("def calling(self, calling: object, /) -> None")),
          "How arguments become inputs, and outputs the result; see magneto.recording.")
      .def_prop_ro(
          "inputs", [](const PyGraph& self) { return self.values(self.graph()->inputs); },
          nb::sig("def inputs(self) -> list[GraphValue]"), "The tensors and sizes that `run` takes.")
      .def_prop_ro("states", &PyGraph::states, nb::sig("def states(self) -> list[tuple[str, torch.Tensor | None]]"),
                   "Parameters and buffers, with their names.")
      .def_prop_ro(
          "state_values", [](const PyGraph& self) { return self.values(self.graph()->states); },
          nb::sig("def state_values(self) -> list[GraphValue]"), "What operators name `states` by.")
      .def_prop_ro("constants", &PyGraph::constants, nb::sig("def constants(self) -> list[torch.Tensor]"),
                   "Tensors whose contents belong to the graph; not to be written.")
      .def_prop_ro(
          "constant_values", [](const PyGraph& self) { return self.values(self.graph()->constants); },
          nb::sig("def constant_values(self) -> list[GraphValue]"), "What operators name `constants` by.")
      .def_prop_ro("ops", &PyGraph::ops, nb::sig("def ops(self) -> list[GraphOp]"), "The operators, in order.")
      .def_prop_ro(
          "outputs", [](const PyGraph& self) { return self.values(self.graph()->outputs); },
          nb::sig("def outputs(self) -> list[GraphValue]"), "What `run` returns.")
      .def_prop_ro(
          "symbols", &PyGraph::symbols,
          nb::sig("def symbols(self) -> list[tuple[str, int, int, int | None, int | None]]"),
          "Sizes that may differ from run to run: name, input, dimension or -1 if the input is the size itself, "
          "smallest and largest number.")
      .def_prop_ro("guards", &PyGraph::guards, "What is assumed of the symbols, in the names of the inputs.");
}

}  // namespace magneto::python
