// From real operands to stand-ins, and from what comes out back to nodes.
#include "trace/stand_ins.h"

#include <algorithm>
#include <string_view>

#include "cpython/cpython.h"
#include "program/operators.h"
#include "trace/watch.h"

namespace magneto::trace {

using runtime::Arithmetic;
using runtime::NumberId;

namespace {

// None: an operator that symbols do not have.
std::optional<Arithmetic> arithmetic(Node::Kind kind, uint32_t number) {
  using enum Arithmetic;
  constexpr auto kNone = std::optional<Arithmetic>();
  // In the order of BINARY_OP: + & // << @ * % | ** >> - / ^
  constexpr std::optional<Arithmetic> kBinary[] = {Add,   kNone, FloorDivide, kNone,    kNone,      Multiply, Remainder,
                                                   kNone, Power, kNone,       Subtract, TrueDivide, kNone};
  static_assert(std::size(kBinary) == program::kFirstInPlace);
  if (kind == Node::Kind::Compare) return static_cast<Arithmetic>(static_cast<uint32_t>(Less) + number);
  if (kind == Node::Kind::Binary) return kBinary[number % program::kFirstInPlace];
  return number == program::kNegative ? std::optional(Negative) : number == program::kNot ? std::optional(Not) : kNone;
}

}  // namespace

namespace {

// torch.tensor would pin the numbers that it is given.
bool makes_tensor(PyObject* callable) {
  return PyCFunction_Check(callable) && std::string_view(((PyCFunctionObject*)callable)->m_ml->ml_name) == "tensor";
}

bool holds_only_numbers(PyObject* object) {
  if (!is_sequence(object)) return is_number(object);
  PyObject** items = PySequence_Fast_ITEMS(object);
  return std::all_of(items, items + PySequence_Fast_GET_SIZE(object), is_number);
}

}  // namespace

bool StandIns::is_open(Value value) const {
  const Node* holder = watch_.provenance.holder(value.object);
  if (!holder) return !watch_.provenance.is_known(value.node);
  return std::ranges::any_of(holder->items, [this](NodeId node) { return !watch_.provenance.is_known(node); });
}

bool StandIns::concerns(Value value) const {
  if (!value.object) return false;
  if (!watch_.provenance.is_known(value.node) || watch_.is_tensor(value.object)) return true;
  if (PySlice_Check(value.object)) {
    auto* slice = (PySliceObject*)value.object;
    return concerns({slice->start}) || concerns({slice->stop}) || concerns({slice->step});
  }
  if (!is_sequence(value.object)) return false;
  PyObject** items = PySequence_Fast_ITEMS(value.object);
  return std::any_of(items, items + PySequence_Fast_GET_SIZE(value.object),
                     [this](PyObject* item) { return concerns({item}); });
}

// ---- operations

NodeId StandIns::call(PyObject* callable, const std::vector<Value>& args, size_t positional, PyObject* keyword_names,
                      PyObject* result) {
  for (const Value& arg : args) admit(arg);
  if (makes_tensor(callable) && positional && is_open(args[0]) && holds_only_numbers(args[0].object))
    return again(
        [&]() -> PyObject* {
          py::Ref numbers = of(args[0]);
          return numbers ? recording_.from_numbers(numbers.get(), result) : nullptr;
        },
        result);
  return again(
      [&]() -> PyObject* {
        py::Ref function = of_callable(callable);
        std::vector<py::Ref> held;
        std::vector<PyObject*> values;
        for (const Value& arg : args) {
          held.push_back(of(arg));
          if (!held.back()) return nullptr;
          values.push_back(held.back().get());
        }
        return function ? PyObject_Vectorcall(function.get(), values.data(), positional, keyword_names) : nullptr;
      },
      result);
}

NodeId StandIns::apply(const std::function<PyObject*(PyObject*, PyObject*)>& function, Value left, Value right,
                       PyObject* result) {
  admit(left);
  admit(right);
  return again(
      [&]() -> PyObject* {
        py::Ref a = of(left), b = right.object ? of(right) : py::Ref();
        return a && (b || !right.object) ? function(a.get(), b.get()) : nullptr;
      },
      result);
}

NodeId StandIns::compare(Value left, Value right, int how, PyObject* result) {
  return apply([how](PyObject* a, PyObject* b) { return PyObject_RichCompare(a, b, how); }, left, right, result);
}

NodeId StandIns::get_attribute(PyObject* tensor, PyObject* name, PyObject* result) {
  return again(
      [&]() -> PyObject* {
        py::Ref object = of({tensor});
        return object ? PyObject_GetAttr(object.get(), name) : nullptr;
      },
      result);
}

NodeId StandIns::length(PyObject* tensor, PyObject* result) {
  return again(
      [&]() -> PyObject* {
        py::Ref object = of({tensor});
        return object ? PyObject_CallMethod(object.get(), "size", "i", 0) : nullptr;
      },
      result);
}

void StandIns::ask_truth(PyObject* tensor) {
  again(
      [&]() -> PyObject* {
        py::Ref object = of({tensor});
        return object && PyObject_IsTrue(object.get()) >= 0 ? Py_NewRef(Py_None) : nullptr;
      },
      Py_None);
}

void StandIns::set_item(PyObject* tensor, Value key, Value value) {
  admit(key);
  admit(value);
  again(
      [&]() -> PyObject* {
        py::Ref object = of({tensor}), where = of(key), what = of(value);
        if (!object || !where || !what || PyObject_SetItem(object.get(), where.get(), what.get()) < 0) return nullptr;
        return Py_NewRef(Py_None);
      },
      Py_None);
}

NodeId StandIns::again(const std::function<PyObject*()>& operation, PyObject* result) {
  if (!watch_.alive()) return kKnown;
  py::Ref stand_in = recording_.run(operation);
  return stand_in && watch_.alive() ? pair(result, stand_in.get()) : kKnown;
}

// ---- operands

// Tensors that nobody has used so far become inputs of the recording.
void StandIns::admit(Value value) {
  if (watch_.provenance.is_known(value.node)) return;
  if (watch_.is_tensor(value.object)) return watch_.settle(value.node);
  const Node* holder = watch_.provenance.holder(value.object);
  if (!holder || !is_sequence(value.object)) return;
  std::vector<NodeId> nodes = holder->items;
  for (size_t i = 0; i < nodes.size(); ++i) admit({PySequence_Fast_GET_ITEM(value.object, i), nodes[i]});
}

py::Ref StandIns::of_callable(PyObject* callable) {
  if (PyCFunction_Check(callable) && PyCFunction_GET_SELF(callable) &&
      watch_.is_tensor(PyCFunction_GET_SELF(callable))) {
    py::Ref self = of({PyCFunction_GET_SELF(callable)});
    auto* function = (PyCFunctionObject*)callable;
    return py::Ref::steal(self ? PyCFunction_NewEx(function->m_ml, self.get(), function->m_module) : nullptr);
  }
  PyWrapperDescrObject* slot;
  PyObject* owner;
  if (mg_method_wrapper(callable, &slot, &owner) && watch_.is_tensor(owner)) {
    py::Ref self = of({owner});
    return py::Ref::steal(self ? PyObject_GetAttr(self.get(), PyDescr_NAME(slot)) : nullptr);
  }
  return py::Ref::borrow(callable);
}

py::Ref StandIns::of(Value value) {
  if (watch_.is_tensor(value.object)) return py::Ref::steal(recording_.stand_in(value.object));
  const Node* holder = watch_.provenance.holder(value.object);
  if (!watch_.provenance.is_known(value.node) && !holder) {
    std::optional<NumberId> number = watch_.symbol_of(value.node);
    return number ? py::Ref::steal(recording_.stand_in(*number)) : py::Ref::borrow(value.object);
  }
  bool is_rebuilt = holder || concerns({value.object});
  return is_rebuilt ? of_container(value.object, holder ? &holder->items : nullptr) : py::Ref::borrow(value.object);
}

py::Ref StandIns::of_container(PyObject* container, const std::vector<NodeId>* nodes) {
  std::vector<PyObject*> parts;
  if (PySlice_Check(container)) {
    auto* slice = (PySliceObject*)container;
    parts = {slice->start, slice->stop, slice->step};
  } else if (is_sequence(container)) {
    PyObject** items = PySequence_Fast_ITEMS(container);
    parts.assign(items, items + PySequence_Fast_GET_SIZE(container));
  } else {
    PyErr_Format(PyExc_TypeError, "a %.100s with numbers that may change", Py_TYPE(container)->tp_name);
    return {};
  }
  std::vector<NodeId> ids = nodes ? *nodes : std::vector<NodeId>();  // `of` may add nodes
  py::Ref list = py::Ref::steal(PyList_New(0));
  for (size_t i = 0; list && i < parts.size(); ++i) {
    py::Ref part = of({parts[i], i < ids.size() ? ids[i] : kKnown});
    if (!part || PyList_Append(list.get(), part.get()) < 0) return {};
  }
  if (!list || PyList_CheckExact(container)) return list;
  if (PySlice_Check(container))
    return py::Ref::steal(
        PySlice_New(PyList_GET_ITEM(list.get(), 0), PyList_GET_ITEM(list.get(), 1), PyList_GET_ITEM(list.get(), 2)));
  return py::Ref::steal(PyList_AsTuple(list.get()));
}

// ---- results

NodeId StandIns::pair(PyObject* real, PyObject* stand_in) {
  if (!watch_.alive()) return kKnown;
  if (watch_.is_tensor(real)) {
    if (watch_.is_tensor(stand_in))
      recording_.learn(real, stand_in);
    else
      watch_.give_up("a tensor comes out where its stand-in is none");
    return kKnown;
  }
  if (is_number(real)) {
    std::optional<NumberId> number = recording_.number(stand_in);
    return number ? watch_.provenance.add_symbolic(*number, real) : kKnown;
  }
  if (!is_sequence(real) || !is_sequence(stand_in)) return kKnown;
  Py_ssize_t count = PySequence_Fast_GET_SIZE(real);
  if (count != PySequence_Fast_GET_SIZE(stand_in)) {
    watch_.give_up("stand-ins come out in another number");
    return kKnown;
  }
  std::vector<NodeId> nodes;
  for (Py_ssize_t i = 0; i < count; ++i)
    nodes.push_back(pair(PySequence_Fast_GET_ITEM(real, i), PySequence_Fast_GET_ITEM(stand_in, i)));
  bool any = std::any_of(nodes.begin(), nodes.end(), [](NodeId node) { return node != kKnown; });
  return any ? watch_.provenance.add_holder(real, std::move(nodes)) : kKnown;
}

// ---- numbers

bool StandIns::decide_equality(Value left, Value right) {
  if (!is_sequence(left.object) || !is_sequence(right.object)) return false;
  auto nodes_of = [&](Value value) {
    const Node* holder = watch_.provenance.is_known(value.node) ? nullptr : watch_.provenance.holder(value.object);
    auto size = static_cast<size_t>(PySequence_Fast_GET_SIZE(value.object));
    return holder ? holder->items : std::vector<NodeId>(size, kKnown);
  };
  std::vector<NodeId> lefts = nodes_of(left), rights = nodes_of(right);
  auto are_numbers = [](PyObject* sequence) {
    PyObject** items = PySequence_Fast_ITEMS(sequence);
    return std::all_of(items, items + PySequence_Fast_GET_SIZE(sequence), is_number);
  };
  if (!are_numbers(left.object) || !are_numbers(right.object)) return false;
  if (lefts.size() != rights.size()) return true;
  bool equal = true;
  for (size_t i = 0; equal && i < lefts.size(); ++i) {
    Value a{PySequence_Fast_GET_ITEM(left.object, i), lefts[i]},
        b{PySequence_Fast_GET_ITEM(right.object, i), rights[i]};
    equal = PyObject_RichCompareBool(a.object, b.object, Py_EQ) == 1;
    if (watch_.provenance.is_known(a.node) && watch_.provenance.is_known(b.node)) continue;
    NodeId answer = compute(Node::Kind::Compare, Py_EQ, a, b, equal ? Py_True : Py_False);
    if (!watch_.provenance.is_known(answer)) watch_.take_truth_of(answer);
  }
  return true;
}

runtime::SymbolicRecording::Operand StandIns::operand(Value value) {
  if (!value.object || watch_.provenance.is_known(value.node)) return {std::nullopt, value.object};
  return {watch_.symbol_of(value.node), value.object};
}

NodeId StandIns::compute(Node::Kind kind, uint32_t number, Value left, Value right, PyObject* result) {
  std::optional<Arithmetic> how = arithmetic(kind, number);
  if (!how) {
    watch_.settle(left.node);
    watch_.settle(right.node);
    return kKnown;
  }
  std::optional<NumberId> made = recording_.compute(*how, operand(left), operand(right), result);
  return made ? watch_.provenance.add_symbolic(*made, result) : kKnown;
}

}  // namespace magneto::trace
