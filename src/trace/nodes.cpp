// Instructions on values that are only carried along: the few that know of nodes. All others get
// values that are settled.

#include <algorithm>

#include "program/operators.h"
#include "trace/call_table.h"
#include "trace/frame_run.h"
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
    case MG_IMPORT_FROM: return 0;
    case MG_LOAD_ATTR:
    case MG_LOAD_METHOD:
    case MG_GET_ITER:
    case MG_FOR_ITER:
    case MG_UNPACK_EX:
    case MG_LIST_APPEND:
    case MG_SET_ADD:
    case MG_LIST_EXTEND:
    case MG_SET_UPDATE:
    case MG_DICT_UPDATE:
    case MG_DICT_MERGE:
    case MG_CONVERT_VALUE:
    case MG_LIST_TO_TUPLE: return 1;
    case MG_DELETE_SUBSCR:
    case MG_CONTAINS_OP:
    case MG_IS_OP:
    case MG_MAP_ADD:
    case MG_SET_FUNCTION_ATTRIBUTE:
    case MG_IMPORT_NAME: return 2;
    case MG_LOAD_SUPER_ATTR:
    case MG_BINARY_SLICE: return 3;
    case MG_FORMAT_VALUE: return arg & 4 ? 2 : 1;
    case MG_BUILD_SET:
    case MG_BUILD_STRING:
    case MG_BUILD_SLICE: return count;
    case MG_CALL_FUNCTION_EX: return 3 + (count & 1);
    default: return -1;
  }
}

// The local variable that receives an argument; -1: it ends up in *args or **kwargs.
int parameter_of(PyCodeObject* code, size_t index, size_t positional, PyObject* keyword_names) {
  if (index < positional) return index < static_cast<size_t>(code->co_argcount) ? static_cast<int>(index) : -1;
  PyObject* name = PyTuple_GET_ITEM(keyword_names, index - positional);
  for (int i = code->co_posonlyargcount; i < code->co_argcount + code->co_kwonlyargcount; ++i)
    if (PyUnicode_Compare(name, PyTuple_GET_ITEM(code->co_localsplusnames, i)) == 0) return i;
  return -1;
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

bool FrameRun::goes_on() {
  watch_.let_go();
  std::fill(nodes_.begin(), nodes_.end(), kKnown);
  stack_nodes_ = 0;
  return watch_.goes_on;
}

void FrameRun::take_nodes() {
  Watch::Handover handed = std::exchange(watch_.handover, {});
  if (handed.function != (PyObject*)view_.function) return;
  returns_node_ = true;
  for (auto [local, node] : handed.nodes) nodes_[static_cast<size_t>(local)] = node;
}

void FrameRun::hand_over(PyObject** called, PyObject** args, size_t total, PyObject* keyword_names) {
  PyObject* callable = *called;
  watch_.handover = {};
  if (rule_of(callable) == Rule::None) watch_.handover.expect(callable);
  if (!stack_nodes_) return;
  watch_.settle(node_at(called));
  set_node(called, kKnown);
  PyObject* function = watch_.handover.function;
  bool is_bound = function && function != callable;  // to an argument before the first
  auto* code = function ? (PyCodeObject*)((PyFunctionObject*)function)->func_code : nullptr;
  if (code && code->co_flags & (CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR)) code = nullptr;
  PyObject* self;
  Model model = function ? Model::Unknown : model_of(callable, &self);
  bool is_unknown = model == Model::Unknown && !function && watch_.is_unknown(callable);
  size_t positional = total - (keyword_names ? static_cast<size_t>(PyTuple_GET_SIZE(keyword_names)) : 0);
  for (size_t i = 0; i < total; ++i) {
    NodeId node = node_at(args + i);
    if (node == kKnown) continue;
    int local = code ? parameter_of(code, i + is_bound, positional + is_bound, keyword_names) : -1;
    if (local >= 0)
      watch_.handover.nodes.emplace_back(local, node);
    else if (model == Model::Types && is_number(args[i]))
      watch_.provenance[node].typed = true;
    else if (model == Model::SetAttribute && i + 1 == total)
      watch_.handover.stored = node;
    else if (is_unknown && watch_.provenance[node].kind != Node::Kind::Holder)
      continue;  // the program passes it on
    else
      watch_.settle(node);
    set_node(args + i, kKnown);
  }
}

Next FrameRun::made(bool success, size_t before) {
  if (success) return Next::Go;
  if (watch_.effects.size() > before) watch_.effects.resize(before);
  return Next::Error;
}

Next FrameRun::store_attribute(PyObject* name) {
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
  watch_.handover = {};
  return made(success, before);
}

Next FrameRun::store_item() {
  size_t before = watch_.effects.size();
  watch_.read_operand(sp_[-1]);
  watch_.write_item(sp_[-2], sp_[-1], value_at(sp_ - 3));
  set_node(sp_ - 3, kKnown);
  py::Ref key = pop_ref(), object = pop_ref(), value = pop_ref();
  return made(PyObject_SetItem(object.get(), key.get(), value.get()) == 0, before);
}

// Arithmetic on numbers is done again by the program; anything else needs to know its operands.
Next FrameRun::compute(Node::Kind kind, uint32_t number, int operands, uint8_t operation, uint32_t arg) {
  Value left = value_at(sp_ - operands), right = operands == 2 ? value_at(sp_ - 1) : Value{nullptr};
  bool is_carried = left.node != kKnown || right.node != kKnown;
  if (!is_carried || !is_number(left.object) || (right.object && !is_number(right.object))) {
    settle_top(operands);
    return step_variables(operation, arg);
  }
  py::Ref result = py::Ref::steal(kind == Node::Kind::Compare
                                      ? PyObject_RichCompare(left.object, right.object, static_cast<int>(number))
                                      : program::kOperators[number].apply(left.object, right.object));
  if (!result || !is_number(result.get())) {
    settle_top(operands);
    return replace(operands, result.release());
  }
  NodeId node = watch_.provenance.add_computation(kind, number, left, right, result.get());
  for (int i = 1; i <= operands; ++i) set_node(sp_ - i, kKnown);
  Next next = replace(operands, result.release());
  set_node(sp_ - 1, node);
  return next;
}

Next FrameRun::branch_on_node(bool jump_if, uint32_t target) {
  if (Next next = ask_tensor_truth(); next != Next::Go) return next;
  NodeId node = node_at(sp_ - 1);
  if (node != kKnown && is_number(sp_[-1])) {
    watch_.provenance[node].typed = true;
    watch_.provenance.truths.emplace_back(node, PyObject_IsTrue(sp_[-1]) == 1);
    set_node(sp_ - 1, kKnown);
  }
  settle_top(1);
  return branch(jump_if, target);
}

// `step` is 2 for keys and values, where only the values may be carried along.
Next FrameRun::build_holder(uint8_t operation, uint32_t arg, int count, int step, int above) {
  std::vector<NodeId> items;
  bool any = false;
  for (int i = count; i > 0; --i) {
    PyObject** slot = sp_ - above - i;
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
  bool complete = next == Next::Go && (!PyDict_Check(sp_[-1]) || PyDict_GET_SIZE(sp_[-1]) == (Py_ssize_t)items.size());
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

Next FrameRun::take_from_holder() {
  const Node* holder = holder_at(sp_ - 2);
  long index = PyLong_CheckExact(sp_[-1]) ? PyLong_AsLong(sp_[-1]) : -1;
  PyErr_Clear();
  watch_.settle(node_at(sp_ - 1));
  NodeId node = kKnown;
  if (holder && !PyDict_Check(sp_[-2]) && index >= 0 && static_cast<size_t>(index) < holder->items.size())
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
    case MG_RETURN_VALUE: break;  // these know of nodes
    case MG_POP_TOP: set_node(sp_ - 1, kKnown); break;
    case MG_COPY: push(Py_XNewRef(sp_[-offset]), node_at(sp_ - offset)); return Next::Go;
    case MG_SWAP: {
      NodeId top = node_at(sp_ - 1), other = node_at(sp_ - offset);
      set_node(sp_ - 1, other);
      set_node(sp_ - offset, top);
      break;
    }
    case MG_STORE_ATTR:
      watch_.settle(node_at(sp_ - 1));
      set_node(sp_ - 1, kKnown);
      break;
    case MG_STORE_SUBSCR: settle_top(2); break;
    case MG_BUILD_TUPLE:
    case MG_BUILD_LIST: return build_holder(operation, arg, offset, 1, 0);
    case MG_BUILD_MAP: return build_holder(operation, arg, 2 * offset, 2, 0);
    case MG_BUILD_CONST_KEY_MAP: return build_holder(operation, arg, offset, 1, 1);
    case MG_UNPACK_SEQUENCE: return unpack_holder(arg);
    case MG_BINARY_SUBSCR: return take_from_holder();
    case MG_BINARY_OP: return compute(Node::Kind::Binary, arg, 2, operation, arg);
    case MG_COMPARE_OP: return compute(Node::Kind::Compare, arg & ~MG_AS_BOOL, 2, operation, arg);
    case MG_UNARY_NEGATIVE: return compute(Node::Kind::Unary, program::kNegative, 1, operation, arg);
    case MG_UNARY_POSITIVE: return compute(Node::Kind::Unary, program::kPositive, 1, operation, arg);
    case MG_UNARY_INVERT: return compute(Node::Kind::Unary, program::kInvert, 1, operation, arg);
    case MG_UNARY_NOT: return compute(Node::Kind::Unary, program::kNot, 1, operation, arg);
    case MG_TO_BOOL:
      if (arg && is_number(sp_[-1])) return Next::Go;  // what follows asks it itself
      settle_top(1);
      break;
    case MG_POP_JUMP_IF_FALSE: return branch_on_node(false, arg);
    case MG_POP_JUMP_IF_TRUE: return branch_on_node(true, arg);
    case MG_POP_JUMP_IF_NONE:
    case MG_POP_JUMP_IF_NOT_NONE:
      if (NodeId node = node_at(sp_ - 1); node != kKnown)
        watch_.provenance[node].typed = true;  // a number, so not None
      set_node(sp_ - 1, kKnown);
      break;
    default: settle_top(operand_count(operation, arg));
  }
  if (!watch_.alive()) watch_.let_go();
  return step_variables(operation, arg);
}

}  // namespace magneto::trace
