// The parts of a watch that keep values open: those that are only carried along, and sizes and numbers that may change.
#include <algorithm>

#include "cpython/text.h"
#include "trace/watch.h"
#include "trace/writer.h"

namespace magneto::trace {

using py::type_name;

// ---- values that are only carried along

void Watch::settle_all(NodeId id) {
  if (!alive()) return;
  std::vector<NodeId> open{id};
  while (!open.empty()) {
    NodeId next = open.back();
    open.pop_back();
    if (provenance.is_known(next)) continue;
    bool foreign = provenance.is_foreign(next);
    Node& node = provenance[next];
    node.settled = true;
    bool is_read = node.kind == Node::Kind::Key || node.kind == Node::Kind::Cell;
    if (is_read && is_tensor(node.value.get()))
      use_foreign_tensor(next);
    else if (node.kind == Node::Kind::Key)
      guards.read_key(node.owner, node.key.get(), node.value.get());
    else if (node.kind == Node::Kind::Cell)
      guards.read_cell(node.owner, node.value.get());
    else if (foreign && guard::is_atom(node.value.get()))
      provenance.settled_registers.push_back(next);
    else if (foreign && is_tensor(node.value.get()))
      use_foreign_tensor(next);
    else if (foreign)
      look_into(next);
    else if (node.kind == Node::Kind::Holder)
      open.insert(open.end(), node.items.begin(), node.items.end());
    else if (node.kind == Node::Kind::Symbolic)
      symbolic_->specialise(*node.symbol);
    else
      open.insert(open.end(), {node.left, node.right});
  }
}

NodeId Watch::carried(NodeId node, PyObject* found) {
  if (!alive() || provenance.is_known(node)) return kKnown;
  if (guard::same_value(provenance[node].value.get(), found)) return node;
  settle(node);
  return kKnown;
}

Value Watch::content(PyObject* cell) const {
  const Node* holder = provenance.holder(cell);
  return {PyCell_GET(cell), holder && !provenance.is_known(holder->items[0]) ? holder->items[0] : kKnown};
}

void Watch::fill_cell(PyObject* cell, NodeId node) {
  if (!provenance.is_known(node) || provenance.holder(cell)) provenance.add_holder(cell, {node});
}

// ---- sizes and numbers that stay open

void Watch::open_numbers(PyObject* callable, const guard::CallArguments& call) {
  for (const guard::Arguments::Number& number : arguments_.open_numbers()) {
    NodeId id = provenance.add_argument(number.node, arguments_.seen(number.node));
    open_numbers_.emplace_back(number, id);
    if (number.dict) continue;
    if (number.tuple && arguments_.is_given_twice(number.tuple)) {  // who has it from elsewhere knows of no node
      settle(id);
      continue;
    }
    if (number.tuple) id = hold_in_tuple(number, id);
    auto index = static_cast<size_t>(number.argument);
    if (!handover.give(callable, index, call.positional, call.keyword_names, id)) settle(id);
  }
}

// The tuple as a holder of what is open in it.
NodeId Watch::hold_in_tuple(const guard::Arguments::Number& number, NodeId id) {
  NodeId holder = provenance.find_holder(number.tuple);
  if (provenance.is_known(holder))
    holder =
        provenance.add_holder(number.tuple, std::vector(static_cast<size_t>(PyTuple_GET_SIZE(number.tuple)), kKnown));
  provenance[holder].items[static_cast<size_t>(number.index)] = id;
  return holder;
}

void Watch::note_left_open() {
  for (guard::Opening opening : arguments_.open()) {
    if (opening.sizes.empty()) {
      auto same = [&](const auto& number) { return number.first.node == opening.node; };
      auto found = std::ranges::find_if(open_numbers_, same);
      if (found != open_numbers_.end() && !provenance[found->second].settled) left_open.push_back(opening);
      continue;
    }
    std::vector<int> left = symbolic_->open_dimensions(arguments_.seen(opening.node));
    std::erase_if(opening.sizes, [&](int size) { return std::ranges::find(left, size) == left.end(); });
    if (!opening.sizes.empty()) left_open.push_back(std::move(opening));
  }
}

void Watch::note_open_answers() {
  pins_answers |= !provenance.settled_registers.empty();
  for (runtime::NumberId number : open_answers_) (symbolic_->is_plain(number) ? pins_answers : opens_answers) = true;
  for (PyObject* tensor : open_inputs_)
    (symbolic_->open_dimensions(tensor).empty() ? pins_answers : opens_answers) = true;
  open_answers_.clear();
  open_inputs_.clear();
}

std::optional<runtime::NumberId> Watch::symbol_of(NodeId id) {
  if (!alive() || provenance.is_known(id)) return std::nullopt;
  if (provenance[id].symbol) return provenance[id].symbol;
  int overflow = 0;
  PyObject* value = provenance[id].value.get();
  bool is_cell = provenance[id].kind == Node::Kind::Cell, is_read = is_cell || provenance[id].kind == Node::Kind::Key;
  bool is_fixed = is_read && !is_open_key(is_cell ? cell_key() : provenance[id].key.get());
  bool fits = PyLong_CheckExact(value) && (PyLong_AsLongLongAndOverflow(value, &overflow), !overflow);
  if (is_fixed || !(fits || PyFloat_CheckExact(value))) {
    settle(id);
    return std::nullopt;
  }
  provenance[id].typed = true;
  input_registers_.push_back(writer_->node_register(id));
  open_answers_.push_back(symbolic_->add_number(value));
  return provenance[id].symbol = open_answers_.back();
}

bool Watch::is_open_key(PyObject* key) const {
  return key &&
         std::ranges::any_of(leeway_.keys, [&](const py::Ref& open) { return guard::same_value(open.get(), key); });
}

void Watch::take_truth_of(NodeId id) {
  Node& node = provenance[id];
  if (node.kind == Node::Kind::Symbolic) return symbolic_->decide(*node.symbol);
  node.typed = true;
  provenance.truths.emplace_back(id, PyObject_IsTrue(node.value.get()) == 1);
}

// sum(): addition by addition, so that those of tensors are made on stand-ins, too.
PyObject* Watch::add_up(const Call& call) {
  py::Ref items = py::Ref::steal(PyObject_GetIter(call.args[0]));
  py::Ref total = call.size() > 1 ? py::Ref::borrow(call.args[1]) : py::Ref::steal(PyLong_FromLong(0));
  py::Ref numbers = py::Ref::steal(PyList_New(0));  // in front, which CPython adds in ways of its own
  if (!items || !total || !numbers) return nullptr;
  NodeId node = kKnown;
  auto add_numbers = [&] {
    if (!PyList_GET_SIZE(numbers.get())) return true;
    total = py::Ref::steal(PyObject_CallFunctionObjArgs(call.callable, numbers.get(), total.get(), nullptr));
    return total && PyList_SetSlice(numbers.get(), 0, PY_SSIZE_T_MAX, nullptr) == 0;
  };
  while (py::Ref item = py::Ref::steal(PyIter_Next(items.get()))) {
    if (guard::is_plain_number(total.get()) && guard::is_plain_number(item.get())) {
      if (PyList_Append(numbers.get(), item.get()) < 0) return nullptr;
      continue;
    }
    if (!add_numbers()) return nullptr;
    py::Ref next = py::Ref::steal(PyNumber_Add(total.get(), item.get()));
    bool is_tensors = is_tensor(total.get()) || is_tensor(item.get());
    if (!next && is_tensors) note_tensor_error({{total.get(), node}, {item.get()}});
    if (!next) return nullptr;
    node = is_tensors && alive() ? stand_ins()->apply(PyNumber_Add, {total.get(), node}, {item.get()}, next.get())
                                 : kKnown;
    total = std::move(next);
  }
  if (PyErr_Occurred() || !add_numbers()) return nullptr;
  handover.returned = node;
  return total.release();
}

void Watch::look_at_tensor(PyObject* value, const What& what) {
  if (StandIns* again = stand_ins(); again && again->concerns({value}))
    give_up(what.text() + " looks at a tensor whose sizes may change");
}

bool Watch::takes_numbers(PyObject* callable) const {
  if (!stand_ins() || PyType_Check(callable)) return false;
  runtime::CallKind kind = plug_.classify_call(callable);
  return kind == runtime::CallKind::TensorOp || kind == runtime::CallKind::Asks || kind == runtime::CallKind::Query;
}

}  // namespace magneto::trace
