// Instructions on values that are only carried along: the few that know of nodes. All others get
// values that are settled.

#include <algorithm>

#include "program/operators.h"
#include "trace/call_table.h"
#include "trace/frame_run.h"
#include "trace/known_types.h"
#include "trace/rules.h"

namespace magneto::trace {

namespace {

// How many values an instruction looks at that knows nothing of nodes; -1: perhaps all.
int operand_count(uint8_t operation, uint32_t arg) {
  int count = static_cast<int>(arg);
  switch (operation) {
    case MG_LOAD_CONST:
    case MG_LOAD_ASSERTION_ERROR:
    case MG_PUSH_NULL:
    case MG_KW_NAMES:
    case MG_JUMP:
    case MG_LOOP:
    case MG_MAKE_CELL:
    case MG_COPY_FREE_VARS:
    case MG_DELETE_GLOBAL:
    case MG_LOAD_BUILD_CLASS:
    case MG_IMPORT_FROM: return 0;
    case MG_LOAD_ATTR:
    case MG_LOAD_METHOD:
    case MG_FOR_ITER:
    case MG_UNPACK_EX:
    case MG_SET_ADD:
    case MG_SET_UPDATE:
    case MG_CONVERT_VALUE: return 1;
    case MG_DELETE_SUBSCR:
    case MG_CONTAINS_OP:
    case MG_IS_OP:
    case MG_SET_FUNCTION_ATTRIBUTE:
    case MG_MATCH_KEYS:
    case MG_IMPORT_NAME: return 2;
    case MG_LOAD_SUPER_ATTR: return 3;
    case MG_FORMAT_VALUE: return arg & 4 ? 2 : 1;
    case MG_BUILD_SET:
    case MG_BUILD_STRING: return count;
    default: return -1;
  }
}

// Of the value that a dict has for a text.
NodeId value_in(PyObject* dict, const Node& holder, PyObject* text) {
  Py_ssize_t position = 0;
  PyObject *key, *value;
  for (size_t i = 0; PyDict_Next(dict, &position, &key, &value) && i < holder.items.size(); ++i)
    if (PyUnicode_Compare(key, text) == 0) return holder.items[i];
  return kKnown;
}

}  // namespace

void FrameRun::settle_top(int count) {
  PyObject** end = count < 0 || sp_ - count < stack_ ? stack_ : sp_ - count;
  for (PyObject** slot = sp_; stack_nodes_ && --slot >= end;) {
    watch_.settle(node_at(slot));
    set_node(slot, kKnown);
  }
}

void FrameRun::settle_frame() {
  for (NodeId& node : nodes_) watch_.settle(std::exchange(node, kKnown));
  stack_nodes_ = 0;
}

// Of a generator that goes on later: numbers keep their nodes.
void FrameRun::suspend_nodes() {
  watch_.provenance.forget_suspended(view_.generator);
  for (size_t i = 0; i < size(); ++i) {
    NodeId node = nodes_[i];
    if (watch_.provenance.is_known(node) || !is_number(locals_[i])) continue;
    watch_.provenance.suspend(view_.generator, i, node);
    carry(i, kKnown);
  }
  settle_frame();
}

bool FrameRun::goes_on() {
  watch_.let_go();
  std::fill(nodes_.begin(), nodes_.end(), kKnown);
  stack_nodes_ = 0;
  return watch_.goes_on;
}

void FrameRun::take_nodes() {
  Watch::Handover& handed = watch_.handover;
  if (view_.generator) {
    is_direct_ = handed.generator == view_.generator;
    if (watch_.provenance.has_suspended(view_.generator))
      for (size_t i = 0; i < size(); ++i) carry(i, watch_.provenance.find_suspended(view_.generator, i, locals_[i]));
    watch_.provenance.forget_suspended(view_.generator);
  } else if (handed.function == (PyObject*)view_.function) {
    take_arguments(handed);
  }
  handed.clear();
}

void FrameRun::take_arguments(Watch::Handover& handed) {
  if (handed.is_constructor && view_.code->co_argcount > 0) made_ = locals_[0];
  is_direct_ = !handed.is_operator && (made_ || !handed.is_constructor);
  if (handed.nodes.empty() && handed.rest.empty() && handed.named_rest.empty()) return;
  for (auto [local, node] : handed.nodes) nodes_[static_cast<size_t>(local)] = node;
  const PyCodeObject* code = view_.code;
  int local = code->co_argcount + code->co_kwonlyargcount;
  for (auto* rest : {&handed.rest, &handed.named_rest}) {
    if (rest == &handed.named_rest && code->co_flags & CO_VARARGS) ++local;
    if (rest->empty()) continue;
    PyObject* container = locals_[local];
    rest->resize(static_cast<size_t>(PyObject_Size(container)), kKnown);
    nodes_[static_cast<size_t>(local)] = watch_.provenance.add_holder(container, std::move(*rest));
  }
}

void Watch::Handover::expect(PyObject* callable) {
  static PyObject* name = PyUnicode_InternFromString("__call__");
  is_constructor = PyType_Check(callable);
  if (PyMethod_Check(callable))
    callable = PyMethod_GET_FUNCTION(callable);
  else if (is_constructor)
    callable = initialiser((PyTypeObject*)callable);
  else if (!PyFunction_Check(callable) && mg_is_python_class(Py_TYPE(callable)))
    callable = _PyType_Lookup(Py_TYPE(callable), name);
  function = callable && PyFunction_Check(callable) ? callable : nullptr;
}

bool Watch::Handover::give(PyObject* callable, size_t index, size_t positional, PyObject* keyword_names, NodeId node) {
  auto* code = function ? (PyCodeObject*)((PyFunctionObject*)function)->func_code : nullptr;
  if (!code || code->co_flags & (CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR)) return false;
  auto put = [node](std::vector<NodeId>& nodes, size_t at) {
    nodes.resize(std::max(nodes.size(), at + 1), kKnown);
    nodes[at] = node;
    return true;
  };
  if (index < positional) {
    size_t local = index + (function != callable);  // which is bound to an argument before the first
    auto count = static_cast<size_t>(code->co_argcount);
    if (local >= count) return code->co_flags & CO_VARARGS && put(rest, local - count);
    nodes.emplace_back(static_cast<int>(local), node);
    return true;
  }
  auto local_of = [code](PyObject* name) {
    for (int i = code->co_posonlyargcount; i < code->co_argcount + code->co_kwonlyargcount; ++i)
      if (PyUnicode_Compare(name, PyTuple_GET_ITEM(code->co_localsplusnames, i)) == 0) return i;
    return -1;
  };
  auto keyword = static_cast<Py_ssize_t>(index - positional);
  if (int local = local_of(PyTuple_GET_ITEM(keyword_names, keyword)); local >= 0) {
    nodes.emplace_back(local, node);
    return true;
  }
  size_t before = 0;
  for (Py_ssize_t i = 0; i < keyword; ++i) before += local_of(PyTuple_GET_ITEM(keyword_names, i)) < 0;
  return code->co_flags & CO_VARKEYWORDS && put(named_rest, before);
}

namespace {

PyObject* append_method() {
  static PyObject* append = PyObject_GetAttrString((PyObject*)&PyList_Type, "append");
  return append;
}

}  // namespace

// To a list that is older than the call.
bool FrameRun::appends(PyObject* list, PyObject* callable) const {
  PyObject* append = append_method();
  auto definition = [](PyObject* method) { return ((PyMethodDescrObject*)method)->d_method; };
  if (!PyList_CheckExact(list) || !watch_.is_tracked(list)) return false;
  return callable == append ||
         (PyCFunction_Check(callable) && ((PyCFunctionObject*)callable)->m_ml == definition(append));
}

// What comes out of max(a, b), min(a, b), int(a) or float(a) is one of the numbers that go in. Which one is a branch,
// so the others need not be known. False: it is no such call.
bool FrameRun::hand_to_choice(PyObject* callable, PyObject* const* args, const std::vector<NodeId>& nodes) {
  static PyObject* max = PyDict_GetItemString(PyEval_GetBuiltins(), "max");
  static PyObject* min = PyDict_GetItemString(PyEval_GetBuiltins(), "min");
  size_t count = nodes.size(), chosen = 0;
  bool is_identity = count == 1 && (PyObject*)Py_TYPE(args[0]) == callable;
  if (!(is_identity || (count > 1 && (callable == max || callable == min)))) return false;
  if (!std::all_of(args, args + count, is_number)) return false;
  for (size_t i = 1; i < count; ++i) {
    int better = callable == max ? Py_GT : Py_LT;
    py::Ref answer = py::Ref::steal(PyObject_RichCompare(args[i], args[chosen], better));
    Value left{args[i], nodes[i]}, right{args[chosen], nodes[chosen]};
    NodeId node = computed(Node::Kind::Compare, static_cast<uint32_t>(better), left, right, answer.get());
    if (!watch_.provenance.is_known(node)) watch_.take_truth_of(node);
    if (answer.get() == Py_True) chosen = i;
  }
  if (!watch_.provenance.is_known(nodes[chosen])) watch_.provenance[nodes[chosen]].typed = true;
  watch_.handover.returned = nodes[chosen];
  return true;
}

// `nodes` are those of `args`, in the order of the call.
void FrameRun::hand_over(PyObject* callable, PyObject* const* args, const std::vector<NodeId>& nodes,
                         PyObject* keyword_names) {
  Watch::Handover& handover = watch_.handover;
  handover.clear();
  bool leads_to_unknown = watch_.leads_to_unknown(callable, args, nodes.size());
  bool has_rule = leads_to_unknown || rule_of(callable) != Rule::None;
  if (!has_rule) handover.expect(callable);
  if (nodes.empty()) return;
  if (!has_rule && !keyword_names && hand_to_choice(callable, args, nodes)) return;
  PyObject* self = nullptr;
  Model model = handover.function ? Model::Unknown : model_of(callable, &self);
  bool is_unknown = leads_to_unknown || (model == Model::Unknown && !handover.function && watch_.is_unknown(callable));
  bool takes_numbers = !has_rule && watch_.takes_numbers(callable);
  size_t positional = nodes.size() - (keyword_names ? static_cast<size_t>(PyTuple_GET_SIZE(keyword_names)) : 0);
  for (size_t i = 0; i < nodes.size(); ++i) {
    NodeId node = nodes[i];
    if (watch_.provenance.is_known(node)) continue;
    if (handover.give(callable, i, positional, keyword_names, node)) continue;
    if (model == Model::Types && is_number(args[i]))
      watch_.provenance[node].typed = true;
    else if (i + 1 == nodes.size() && (model == Model::SetAttribute || appends(self ? self : args[0], callable)))
      handover.stored = node;
    else if (is_unknown && watch_.provenance[node].kind != Node::Kind::Holder)
      continue;  // the program passes it on
    else if ((is_len(callable) || model == Model::Types) && watch_.provenance[node].kind == Node::Kind::Holder)
      continue;  // its length and its type are known
    else if (takes_numbers)
      handover.operands = nodes;
    else
      watch_.settle(node);
  }
}

// An operator of tensors that torch has in Python, like 1 / x, gets the node of the other operand. False: it is in C.
bool FrameRun::hand_to_operator(uint32_t number) {
  bool reflected = !watch_.is_tensor(sp_[-2]);
  PyObject** self = reflected ? sp_ - 1 : sp_ - 2;
  if (!watch_.is_tensor(*self)) return false;
  PyObject* method = _PyType_Lookup(Py_TYPE(*self), program::method_name(number, reflected));
  if (!method || !PyFunction_Check(method)) return false;
  NodeId other = node_at(reflected ? sp_ - 2 : sp_ - 1);
  if (watch_.provenance.is_known(other)) return true;
  watch_.handover.clear();
  watch_.handover.function = method;
  watch_.handover.is_operator = true;
  return watch_.handover.give(method, 1, 2, nullptr, other);
}

Next FrameRun::made(bool success, size_t before) {
  if (success) return Next::Go;
  if (watch_.effects.size() > before) watch_.effects.resize(before);
  return Next::Error;
}

Next FrameRun::store_by_unknown(PyObject* name) {
  PyObject* setter = attribute_setter(name);
  if (watch_.around)
    settle_holders(sp_ - 2, 2);
  else
    settle_top(2);
  py::Ref done = py::Ref::steal(setter ? watch_.call_instead(setter, sp_ - 2, 2, Watch::How::Stored) : nullptr);
  watch_.handover.clear();
  if (!done) return Next::Error;
  for (int i = 0; i < 2; ++i) {
    set_node(sp_ - 1, kKnown);
    Py_DECREF(pop());
  }
  return Next::Go;
}

Next FrameRun::store_attribute(PyObject* name) {
  // A recording does not know what a tensor has beside its contents.
  if (watch_.is_tensor(sp_[-1]) && watch_.can_cut() && !watch_.may_mark(sp_[-1], name)) return store_by_unknown(name);
  size_t before = watch_.effects.size();
  static PyObject* setter_name = PyUnicode_InternFromString("__setattr__");
  PyObject* setter = node_at(sp_ - 2) == kKnown ? nullptr : _PyType_Lookup(Py_TYPE(sp_[-1]), setter_name);
  Watch::Handover handed;
  if (setter && PyFunction_Check(setter) && watch_.kind_of(Py_TYPE(sp_[-1])) == Kind::Instance) {
    auto* code = (PyCodeObject*)((PyFunctionObject*)setter)->func_code;
    if (code->co_argcount == 3 && !(code->co_flags & CO_GENERATOR)) {
      handed.function = setter;
      handed.nodes = {{2, node_at(sp_ - 2)}};
      set_node(sp_ - 2, kKnown);
    }
  }
  watch_.write_attribute(sp_[-1], name, value_at(sp_ - 2));
  set_node(sp_ - 2, kKnown);
  py::Ref object = pop_ref(), value = pop_ref();
  watch_.handover = std::move(handed);
  bool success = PyObject_SetAttr(object.get(), name, value.get()) == 0;
  watch_.handover.clear();
  return made(success, before);
}

Next FrameRun::store_item() {
  size_t before = watch_.effects.size();
  watch_.read_operand(sp_[-1]);
  Value key_value = value_at(sp_ - 1), stored = value_at(sp_ - 3);
  bool is_tensor = watch_.stand_ins() && watch_.is_tensor(sp_[-2]);
  if (watch_.stand_ins() && !is_tensor) watch_.look_at_tensor(sp_[-1], "an index");
  watch_.write_item(sp_[-2], sp_[-1], is_tensor ? Value{sp_[-3]} : stored);
  for (int i = 1; i <= 3; ++i) set_node(sp_ - i, kKnown);
  py::Ref key = pop_ref(), object = pop_ref(), value = pop_ref();
  bool success = PyObject_SetItem(object.get(), key.get(), value.get()) == 0;
  if (!success && is_tensor) watch_.note_tensor_error({{object.get()}});
  if (StandIns* again = success && is_tensor ? watch_.stand_ins() : nullptr)
    again->set_item(object.get(), key_value, stored);
  return made(success, before);
}

// Of numbers.
NodeId FrameRun::computed(Node::Kind kind, uint32_t number, Value left, Value right, PyObject* result) {
  if (left.node == kKnown && right.node == kKnown) return kKnown;
  bool is_symbolic = watch_.provenance.is_symbolic(left.node) || watch_.provenance.is_symbolic(right.node);
  return is_symbolic ? watch_.stand_ins()->compute(kind, number, left, right, result)
                     : watch_.provenance.add_computation(kind, number, left, right, result);
}

// Arithmetic on numbers is done again by the program; anything else needs to know its operands.
Next FrameRun::compute(Node::Kind kind, uint32_t number, int operands, uint8_t operation, uint32_t arg) {
  Value left = value_at(sp_ - operands), right = operands == 2 ? value_at(sp_ - 1) : Value{nullptr};
  bool is_carried = left.node != kKnown || right.node != kKnown;
  if (!is_carried || !is_number(left.object) || (right.object && !is_number(right.object))) {
    bool is_equality = kind == Node::Kind::Compare && (number == Py_EQ || number == Py_NE) && watch_.stand_ins();
    bool is_decided = is_equality && watch_.stand_ins()->decide_equality(left, right);
    if (!is_decided && !are_followed(operands, kind == Node::Kind::Binary)) settle_top(operands);
    return step_variables(operation, arg);
  }
  py::Ref result = py::Ref::steal(kind == Node::Kind::Compare
                                      ? PyObject_RichCompare(left.object, right.object, static_cast<int>(number))
                                      : program::kOperators[number].apply(left.object, right.object));
  if (!result || !is_number(result.get())) {
    settle_top(operands);
    return replace(operands, result.release());
  }
  NodeId node = computed(kind, number, left, right, result.get());
  for (int i = 1; i <= operands; ++i) set_node(sp_ - i, kKnown);
  Next next = replace(operands, result.release());
  set_node(sp_ - 1, node);
  return next;
}

// How many values it holds is known, and so whether it is empty.
bool FrameRun::is_sequence_of_nodes(PyObject** slot) { return holder_at(slot) && is_sequence(*slot); }

Next FrameRun::branch_on_node(bool jump_if, uint32_t target) {
  if (Next next = ask_tensor_truth(); next != Next::Go) return next;
  if (is_sequence_of_nodes(sp_ - 1)) set_node(sp_ - 1, kKnown);
  NodeId node = node_at(sp_ - 1);
  if (node != kKnown && is_number(sp_[-1])) {
    watch_.take_truth_of(node);
    set_node(sp_ - 1, kKnown);
  }
  settle_top(1);
  return branch(jump_if, target);
}

// `step` is 2 for keys and values, where only the values may be carried along.
Next FrameRun::build_holder(uint8_t operation, uint32_t arg, int count, int step, int above) {
  std::vector<NodeId> items;
  bool any = false, holds_generator = false;
  for (int i = count; i > 0; --i) {
    PyObject** slot = sp_ - above - i;
    holds_generator |= PyGen_CheckExact(*slot);  // whose end, when it is dropped, would wait for the node
    bool is_key = step == 2 && i % 2 == 0;
    if (is_key) watch_.settle(node_at(slot));
    NodeId node = is_key ? kKnown : node_at(slot);
    if (watch_.provenance.is_known(node)) node = kKnown;
    any |= node != kKnown;
    if (!is_key) items.push_back(node);
    set_node(slot, kKnown);
  }
  Next next = step_variables(operation, arg);
  // Of equal keys only the last counts.
  bool complete = next == Next::Go && !holds_generator &&
                  (!PyDict_Check(sp_[-1]) || PyDict_GET_SIZE(sp_[-1]) == (Py_ssize_t)items.size());
  if (any && complete)
    set_node(sp_ - 1, watch_.provenance.add_holder(sp_[-1], std::move(items)));
  else
    for (NodeId node : items) watch_.settle(node);
  return next;
}

const Node* FrameRun::holder_at(PyObject** slot) {
  const Node& node = watch_.provenance[node_at(slot)];
  return !watch_.provenance.is_known(node_at(slot)) && node.kind == Node::Kind::Holder ? &node : nullptr;
}

// Of a tuple that an unknown function returned; kKnown: it is none.
NodeId FrameRun::foreign_tuple_at(PyObject** slot) {
  return PyTuple_Check(*slot) && watch_.provenance.is_foreign(node_at(slot)) ? node_at(slot) : kKnown;
}

// The instruction looks at the type of the value, or how long it is, but not at what it holds.
void FrameRun::rely_on_type(PyObject** slot) {
  NodeId id = node_at(slot);
  if (id == kKnown || holder_at(slot)) return;
  bool is_tuple = foreign_tuple_at(slot) != kKnown && PyTuple_CheckExact(*slot);
  if (is_tuple) watch_.provenance.lengths.emplace_back(id, static_cast<uint32_t>(PyTuple_GET_SIZE(*slot)));
  if (is_tuple || is_number(*slot)) {
    watch_.provenance[id].typed = true;
  } else {
    watch_.settle(id);
    set_node(slot, kKnown);
  }
}

// A tuple or list that holds such values, taken apart.
Next FrameRun::unpack_holder(uint32_t count) {
  const Node* holder = holder_at(sp_ - 1);
  NodeId tuple = foreign_tuple_at(sp_ - 1);
  if (tuple != kKnown && PyTuple_GET_SIZE(sp_[-1]) == static_cast<Py_ssize_t>(count)) {
    py::Ref owned = pop_ref();
    set_node(sp_, kKnown);
    for (uint32_t i = count; i-- > 0;) {
      PyObject* item = PyTuple_GET_ITEM(owned.get(), i);
      push(Py_NewRef(item), watch_.provenance.add_item(tuple, i, item));
    }
    return Next::Go;
  }
  if (!holder || PyDict_Check(sp_[-1]) || holder->items.size() != count) {
    settle_top(1);
    return unpack(count);
  }
  std::vector<NodeId> items = holder->items;
  set_node(sp_ - 1, kKnown);
  Next next = unpack(count);
  for (uint32_t i = 0; i < count; ++i) set_node(sp_ - 1 - i, watch_.provenance.is_known(items[i]) ? kKnown : items[i]);
  return next;
}

// Whether the instruction works on tensors, or `joins` tuples or lists, for other sizes, too: then numbers that are
// open stay open.
bool FrameRun::are_followed(int operands, bool joins) const {
  if (!watch_.stand_ins()) return false;
  PyObject *first = sp_[-operands], *last = sp_[-1];
  if (watch_.is_tensor(first) || watch_.is_tensor(last)) return true;
  return joins && operands == 2 && is_sequence(first) && is_sequence(last);
}

// A number as the end of a slice, or a new tuple or list from others: their nodes are those of the parts.
Next FrameRun::keep_parts(PyObject** slot, std::vector<NodeId> nodes) {
  bool any = std::any_of(nodes.begin(), nodes.end(), [&](NodeId node) { return !watch_.provenance.is_known(node); });
  if (any) set_node(slot, watch_.provenance.add_holder(*slot, std::move(nodes)));
  return Next::Go;
}

std::vector<NodeId> FrameRun::parts_at(PyObject** slot) {
  const Node* holder = holder_at(slot);
  if (holder) return holder->items;
  return std::vector<NodeId>(static_cast<size_t>(PySequence_Fast_GET_SIZE(*slot)), kKnown);
}

Next FrameRun::build_slice(uint32_t count) {
  std::vector<NodeId> nodes;
  for (uint32_t i = count; i > 0; --i) {
    nodes.push_back(node_at(sp_ - i));
    set_node(sp_ - i, kKnown);
  }
  Next next = step_variables(MG_BUILD_SLICE, count);
  return next == Next::Go ? keep_parts(sp_ - 1, std::move(nodes)) : next;
}

// [*a, *b] and f(*a): the list is new, and nobody else has it.
Next FrameRun::extend_holder(uint32_t arg) {
  PyObject** list = sp_ - 1 - arg;
  PyObject* more = sp_[-1];
  if (!is_sequence(more)) {
    settle_top(1);
    return step_variables(MG_LIST_EXTEND, arg);
  }
  std::vector<NodeId> nodes = parts_at(list), others = parts_at(sp_ - 1);
  nodes.insert(nodes.end(), others.begin(), others.end());
  set_node(sp_ - 1, kKnown);
  set_node(list, kKnown);
  Next next = step_variables(MG_LIST_EXTEND, arg);
  if (next != Next::Go) return next;
  set_node(list, watch_.provenance.add_holder(*list, std::move(nodes)));
  return next;
}

// f(**named, **more): likewise. A key that is there already raises, so no value is replaced.
Next FrameRun::merge_holder(uint32_t arg) {
  PyObject** into = sp_ - 1 - arg;
  auto values_at = [this](PyObject** slot) {
    const Node* holder = holder_at(slot);
    return holder ? holder->items : std::vector<NodeId>(static_cast<size_t>(PyDict_GET_SIZE(*slot)), kKnown);
  };
  std::vector<NodeId> nodes = values_at(into), others;
  if (PyDict_CheckExact(sp_[-1]))
    others = values_at(sp_ - 1);
  else
    settle_top(1);
  set_node(sp_ - 1, kKnown);
  set_node(into, kKnown);
  Next next = step_variables(MG_DICT_MERGE, arg);
  if (next != Next::Go) return next;
  nodes.insert(nodes.end(), others.begin(), others.end());
  nodes.resize(static_cast<size_t>(PyDict_GET_SIZE(*into)), kKnown);
  return keep_parts(into, std::move(nodes));
}

Next FrameRun::append_to_holder(uint32_t arg) {
  PyObject** list = sp_ - 1 - arg;
  NodeId node = node_at(sp_ - 1);
  set_node(sp_ - 1, kKnown);
  if (!holder_at(list)) set_node(list, watch_.provenance.add_holder(*list, parts_at(list)));
  watch_.provenance[node_at(list)].items.push_back(node);
  return step_variables(MG_LIST_APPEND, arg);
}

// list(parts) and tuple(parts): what they make holds the same.
bool FrameRun::copies_holder(PyObject* callable, PyObject** args) {
  if (callable != (PyObject*)&PyList_Type && callable != (PyObject*)&PyTuple_Type) return false;
  if (!is_sequence_of_nodes(args)) return false;
  watch_.handover.clear();
  watch_.handover.expect(callable);
  return true;
}

// The method of a list that holds what is followed is called with that list.
Next FrameRun::load_method_of_followed(uint32_t arg) {
  PyObject* list = holder_at(sp_ - 1) && PyList_CheckExact(sp_[-1]) ? sp_[-1] : nullptr;
  NodeId node = list ? node_at(sp_ - 1) : kKnown;
  if (list)
    set_node(sp_ - 1, kKnown);
  else
    settle_top(1);
  Next next = step_variables(MG_LOAD_METHOD, arg);
  if (next == Next::Go && list) {
    if (sp_[-1] == list)
      set_node(sp_ - 1, node);
    else
      watch_.settle(node);
  }
  return next;
}

// Before list.append(value), where only the frames have the list: it holds what is followed, then, wherever they have
// it.
bool FrameRun::append_followed(PyObject* callable, PyObject** args, size_t count) {
  if (callable != append_method() || count != 2 || !PyList_CheckExact(args[0])) return false;
  bool is_new = watch_.is_fresh(args[0]) && watch_.is_left_to_us(args[0]);
  bool is_followed = holder_at(args) || !watch_.provenance.is_known(node_at(args + 1));
  if (!is_new || !is_followed) return false;
  std::vector<NodeId> nodes = parts_at(args);
  nodes.push_back(node_at(args + 1));
  set_node(args + 1, kKnown);
  carry_grown(args[0], std::move(nodes));
  return true;
}

// Wherever the frames have the list.
void FrameRun::carry_grown(PyObject* list, std::vector<NodeId> nodes) {
  NodeId holder = watch_.provenance.add_holder(list, std::move(nodes));
  for (FrameRun* frame : watch_.running)
    for (size_t i = 0; i < frame->size(); ++i)
      if (frame->value(i).object == list) frame->carry(i, holder);
}

// list += parts, likewise.
Next FrameRun::extend_in_place(uint32_t arg) {
  PyObject* list = sp_[-2];
  bool is_ours = watch_.is_fresh(list) && watch_.is_left_to_us(list) && is_sequence(sp_[-1]);
  if (!is_ours) settle_top(2);
  std::vector<NodeId> nodes = is_ours ? parts_at(sp_ - 2) : std::vector<NodeId>();
  std::vector<NodeId> others = is_ours ? parts_at(sp_ - 1) : std::vector<NodeId>();
  nodes.insert(nodes.end(), others.begin(), others.end());
  PyObject* result = program::kOperators[arg].apply(list, sp_[-1]);
  Next next = replace_followed(2, result, kKnown);
  bool any = std::ranges::any_of(nodes, [this](NodeId node) { return !watch_.provenance.is_known(node); });
  if (next == Next::Go && any) carry_grown(list, std::move(nodes));
  return next;
}

Next FrameRun::take_from_holder() {
  if (watch_.stand_ins()) {
    bool is_plain_key = node_at(sp_ - 1) == kKnown && (PyLong_CheckExact(sp_[-1]) || PySlice_Check(sp_[-1]));
    bool is_part = is_plain_key && holder_at(sp_ - 2) && !PyDict_Check(sp_[-2]);
    if (is_part || watch_.is_tensor(sp_[-2])) return step_variables(MG_BINARY_SUBSCR, 0);
  }
  const Node* holder = holder_at(sp_ - 2);
  long index = PyLong_CheckExact(sp_[-1]) ? PyLong_AsLong(sp_[-1]) : -1;
  PyErr_Clear();
  watch_.settle(node_at(sp_ - 1));
  NodeId node = kKnown;
  if (holder && PyDict_CheckExact(sp_[-2]) && PyUnicode_CheckExact(sp_[-1]) && mg_has_only_text_keys(sp_[-2]))
    node = value_in(sp_[-2], *holder, sp_[-1]);
  else if (holder && !PyDict_Check(sp_[-2]) && index >= 0 && static_cast<size_t>(index) < holder->items.size())
    node = holder->items[static_cast<size_t>(index)];
  else if (NodeId tuple = foreign_tuple_at(sp_ - 2); tuple != kKnown && index >= 0 && index < PyTuple_GET_SIZE(sp_[-2]))
    node = watch_.provenance.add_item(tuple, static_cast<uint32_t>(index), PyTuple_GET_ITEM(sp_[-2], index));
  else
    watch_.settle(node_at(sp_ - 2));
  set_node(sp_ - 1, kKnown);
  set_node(sp_ - 2, kKnown);
  Next next = take_item();
  if (next == Next::Go && !watch_.provenance.is_known(node)) set_node(sp_ - 1, node);
  return next;
}

Next FrameRun::step_with_nodes(uint8_t operation, uint32_t arg) {
  int offset = static_cast<int>(arg);
  switch (operation) {
    case MG_NOP:
    case MG_RESUME:
    case MG_LOAD_FAST:
    case MG_STORE_FAST:
    case MG_DELETE_FAST:
    case MG_LOAD_GLOBAL:
    case MG_LOAD_DEREF:
    case MG_STORE_GLOBAL:
    case MG_STORE_DEREF:
    case MG_LOAD_FAST_AND_CLEAR:
    case MG_LOAD_FAST_LOAD_FAST:
    case MG_STORE_FAST_LOAD_FAST:
    case MG_STORE_FAST_STORE_FAST:
    case MG_CALL:
    case MG_CALL_KW:
    case MG_CALL_FUNCTION_EX:
    case MG_YIELD_VALUE:
    case MG_RETURN_VALUE: break;  // these know of nodes
    case MG_POP_TOP: set_node(sp_ - 1, kKnown); break;
    case MG_COPY: push(Py_XNewRef(sp_[-offset]), node_at(sp_ - offset)); return Next::Go;
    case MG_SWAP: {
      NodeId top = node_at(sp_ - 1), other = node_at(sp_ - offset);
      set_node(sp_ - 1, other);
      set_node(sp_ - offset, top);
      break;
    }
    case MG_LOAD_METHOD: return load_method_of_followed(arg);
    case MG_STORE_ATTR:
      watch_.settle(node_at(sp_ - 1));
      set_node(sp_ - 1, kKnown);
      break;
    case MG_STORE_SUBSCR:
      if (!watch_.stand_ins() || !watch_.is_tensor(sp_[-2])) settle_top(2);
      break;
    case MG_BUILD_TUPLE:
    case MG_BUILD_LIST: return build_holder(operation, arg, offset, 1, 0);
    case MG_BUILD_SLICE: return build_slice(arg);
    case MG_LIST_EXTEND: return extend_holder(arg);
    case MG_LIST_APPEND: return append_to_holder(arg);
    case MG_DICT_MERGE: return merge_holder(arg);
    case MG_DICT_UPDATE:
    case MG_MAP_ADD: {
      PyObject** into = sp_ - 1 - (operation == MG_MAP_ADD) - offset;
      watch_.settle(node_at(into));
      set_node(into, kKnown);
      settle_top(operation == MG_MAP_ADD ? 2 : 1);
      break;
    }
    case MG_LIST_TO_TUPLE: {
      std::vector<NodeId> nodes = parts_at(sp_ - 1);
      set_node(sp_ - 1, kKnown);
      Next next = step_variables(operation, arg);
      return next == Next::Go ? keep_parts(sp_ - 1, std::move(nodes)) : next;
    }
    case MG_BUILD_MAP: return build_holder(operation, arg, 2 * offset, 2, 0);
    case MG_BUILD_CONST_KEY_MAP: return build_holder(operation, arg, offset, 1, 1);
    case MG_UNPACK_SEQUENCE: return unpack_holder(arg);
    case MG_BINARY_SUBSCR: return take_from_holder();
    case MG_BINARY_SLICE: {
      Next next = build_slice(2);
      return next == Next::Go ? take_from_holder() : next;
    }
    case MG_BINARY_OP: return compute(Node::Kind::Binary, arg, 2, operation, arg);
    case MG_COMPARE_OP: return compute(Node::Kind::Compare, arg & ~MG_AS_BOOL, 2, operation, arg);
    case MG_UNARY_NEGATIVE: return compute(Node::Kind::Unary, program::kNegative, 1, operation, arg);
    case MG_UNARY_POSITIVE: return compute(Node::Kind::Unary, program::kPositive, 1, operation, arg);
    case MG_UNARY_INVERT: return compute(Node::Kind::Unary, program::kInvert, 1, operation, arg);
    case MG_UNARY_NOT:
      if (is_sequence_of_nodes(sp_ - 1)) set_node(sp_ - 1, kKnown);
      return compute(Node::Kind::Unary, program::kNot, 1, operation, arg);
    case MG_TO_BOOL:
      if (arg && is_number(sp_[-1])) return Next::Go;  // what follows asks it itself
      is_sequence_of_nodes(sp_ - 1) ? set_node(sp_ - 1, kKnown) : settle_top(1);
      break;
    case MG_GET_ITER:  // who advances the iterator finds the nodes by the tuple
      PyTuple_Check(sp_[-1]) && holder_at(sp_ - 1) ? set_node(sp_ - 1, kKnown) : settle_top(1);
      break;
    case MG_GET_LEN:
    case MG_MATCH_SEQUENCE:
    case MG_MATCH_MAPPING: rely_on_type(sp_ - 1); break;
    case MG_MATCH_CLASS:
      settle_top(2);
      if (PyTuple_GET_SIZE(sp_[-1]))
        settle_top(3);
      else
        rely_on_type(sp_ - 3);
      break;
    case MG_POP_JUMP_IF_FALSE: return branch_on_node(false, arg);
    case MG_POP_JUMP_IF_TRUE: return branch_on_node(true, arg);
    case MG_POP_JUMP_IF_NONE:
    case MG_POP_JUMP_IF_NOT_NONE:
      if (NodeId node = node_at(sp_ - 1); node != kKnown && !holder_at(sp_ - 1))
        watch_.provenance[node].typed = true;  // a number, so not None
      set_node(sp_ - 1, kKnown);
      break;
    default: settle_top(operand_count(operation, arg));
  }
  if (!watch_.alive()) watch_.let_go();
  return step_variables(operation, arg);
}

}  // namespace magneto::trace
