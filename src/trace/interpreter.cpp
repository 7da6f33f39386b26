// The bytecode interpreter: runs a real frame, instruction by instruction, and tells the watch.
//
// Its results are CPython's by construction: each instruction does what the evaluator does, on the frame's own locals
// and stack. Whatever it does not know it leaves to CPython *before* having done anything: the frame is handed over at
// that instruction and the watch gives up.
#include <Python.h>
#include <frameobject.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "program/operators.h"
#include "runtime/state.h"
#include "trace/call_table.h"
#include "trace/frame_run.h"
#include "trace/listing.h"

namespace magneto::trace {

namespace {

constexpr size_t kMaxLoops = 1'000'000;  // of all frames together, counting calls: half a second or so

constexpr size_t kMaxDepth = 400;  // of watched frames: each takes C stack as well
constexpr const char* kTooDeep = "the call is nested more than 400 Python functions deep";

}  // namespace

// ---- names, attributes

Next FrameRun::load_attribute(PyObject* name) {
  PyObject* object = sp_[-1];
  PyObject* found = nullptr;
  NodeId node = watch_.look_up_attribute(object, name, &found);
  if (found) {
    replace(1, Py_NewRef(found));
    set_node(sp_ - 1, watch_.carried(node, found));
    return Next::Go;
  }
  PyObject* value = PyObject_GetAttr(object, name);
  NodeId made = value ? watch_.finish_attribute(object, name, value) : kKnown;
  Next next = replace(1, value);
  if (next == Next::Go) set_node(sp_ - 1, made != kKnown ? made : watch_.carried(node, value));
  return next;
}

Next FrameRun::load_method(PyObject* name) {
  PyObject* object = sp_[-1];
  watch_.read_attribute(object, name);
  PyObject* method = nullptr;
  bool unbound = mg_get_method(object, name, &method);
  if (!method) return Next::Error;
  if (unbound) {
    sp_[-1] = method;
    push(object);
  } else {
    watch_.finish_attribute(object, name, method);
    Py_DECREF(pop());
    push_callable(method, kKnown);
  }
  return Next::Go;
}

// super().name and super(cls, self).name in one instruction.
Next FrameRun::load_super_attribute(uint32_t arg) {
  PyObject* args[] = {sp_[-2], sp_[-1]};
  Next next = replace(3, watch_.call(sp_[-3], args, arg & 2, nullptr));
  if (next != Next::Go) return next;
  return arg & 1 ? load_method(names_[arg >> 2]) : load_attribute(names_[arg >> 2]);
}

Next FrameRun::two_steps(uint8_t first, uint8_t second, uint32_t arg) {
  Next next = step_variables(first, arg >> 4);
  return next == Next::Go ? step_variables(second, arg & 15) : next;
}

Next FrameRun::step_variables(uint8_t operation, uint32_t arg) {
  switch (operation) {
    case MG_NOP: return Next::Go;
    case MG_RESUME: return arg < 2 ? look_up() : Next::Go;  // while a generator delegates, the inner one looks up
    case MG_LOAD_FAST: {
      PyObject* value = locals_[arg];
      if (!value) return unbound(arg);
      push(Py_NewRef(value), nodes_[arg]);
      return Next::Go;
    }
    case MG_LOAD_FAST_AND_CLEAR:
      push(std::exchange(locals_[arg], nullptr), std::exchange(nodes_[arg], kKnown));
      return Next::Go;
    case MG_LOAD_FAST_LOAD_FAST: return two_steps(MG_LOAD_FAST, MG_LOAD_FAST, arg);
    case MG_STORE_FAST_LOAD_FAST: return two_steps(MG_STORE_FAST, MG_LOAD_FAST, arg);
    case MG_STORE_FAST_STORE_FAST: return two_steps(MG_STORE_FAST, MG_STORE_FAST, arg);
    case MG_STORE_FAST: {
      PyObject* old = locals_[arg];
      locals_[arg] = pop();
      nodes_[arg] = node_at(sp_);
      if (stack_nodes_) set_node(sp_, kKnown);
      Py_XDECREF(old);
      return Next::Go;
    }
    case MG_DELETE_FAST: {
      PyObject* old = locals_[arg];
      if (!old) return unbound(arg);
      locals_[arg] = nullptr;
      nodes_[arg] = kKnown;
      Py_DECREF(old);
      return Next::Go;
    }
    case MG_LOAD_CONST: push(Py_NewRef(constants_[arg])); return Next::Go;
    case MG_LOAD_GLOBAL: {
      if (!has_plain_globals()) return leave("unusual globals");
      NodeId node = kKnown;
      PyObject* value = find_global(names_[arg >> 1], &node);
      if (!value) return PyErr_Occurred() ? Next::Error : undefined(names_[arg >> 1]);
      if (arg & 1)
        push_callable(Py_NewRef(value), node);
      else
        push(Py_NewRef(value), node);
      return Next::Go;
    }
    case MG_STORE_GLOBAL: {
      Value stored = value_at(sp_ - 1);
      watch_.write_global(view_.globals, names_[arg], stored);
      set_node(sp_ - 1, kKnown);
      py::Ref value = pop_ref();
      return PyDict_SetItem(view_.globals, names_[arg], value.get()) < 0 ? Next::Error : Next::Go;
    }
    case MG_LOAD_ATTR: return load_attribute(names_[arg]);
    case MG_LOAD_METHOD: return load_method(names_[arg]);
    case MG_LOAD_SUPER_ATTR: return load_super_attribute(arg);
    case MG_STORE_ATTR: return store_attribute(names_[arg]);
    case MG_DELETE_ATTR: {
      py::Ref object = pop_ref();
      size_t before = watch_.effects.size();
      watch_.write_attribute(object.get(), names_[arg], {nullptr});
      return made(PyObject_SetAttr(object.get(), names_[arg], nullptr) == 0, before);
    }
    case MG_MAKE_CELL: {
      PyObject* cell = PyCell_New(locals_[arg]);
      if (!cell) return Next::Error;
      watch_.mark_fresh(cell);
      watch_.fill_cell(cell, std::exchange(nodes_[arg], kKnown));
      Py_XDECREF(locals_[arg]);
      locals_[arg] = cell;
      return Next::Go;
    }
    case MG_COPY_FREE_VARS: {
      PyObject* closure = view_.function->func_closure;
      int first = view_.code->co_nlocalsplus - static_cast<int>(arg);
      for (uint32_t i = 0; i < arg; ++i) locals_[first + i] = Py_NewRef(PyTuple_GET_ITEM(closure, i));
      return Next::Go;
    }
    case MG_LOAD_DEREF: {
      PyObject* value = PyCell_GET(locals_[arg]);
      watch_.settle(nodes_[arg]);
      NodeId node = watch_.look_up_cell(locals_[arg]);
      if (!value) return unbound(arg);
      push(Py_NewRef(value), node);
      return Next::Go;
    }
    case MG_STORE_DEREF: {
      watch_.settle(nodes_[arg]);
      watch_.write_cell(locals_[arg], value_at(sp_ - 1));
      set_node(sp_ - 1, kKnown);
      PyObject* old = PyCell_GET(locals_[arg]);
      PyCell_SET(locals_[arg], pop());
      Py_XDECREF(old);
      return Next::Go;
    }
    case MG_DELETE_DEREF: {
      PyObject* old = PyCell_GET(locals_[arg]);
      watch_.settle(nodes_[arg]);
      if (!old) {
        watch_.settle(watch_.look_up_cell(locals_[arg]));
        return unbound(arg);
      }
      watch_.write_cell(locals_[arg], {nullptr});
      PyCell_SET(locals_[arg], nullptr);
      Py_DECREF(old);
      return Next::Go;
    }
    case MG_DELETE_GLOBAL: return delete_global(names_[arg]);
    default: return step_build(operation, arg);
  }
}

// ---- operators, calls, jumps

Next FrameRun::binary(uint32_t arg) {
  PyObject *left = sp_[-2], *right = sp_[-1];
  watch_.read_operand(left);
  watch_.read_operand(right);
  if (PyUnicode_Check(left)) watch_.read_printed(right);  // "%s" % right
  bool in_place = arg >= program::kFirstInPlace;
  if (in_place && watch_.alive() && !watch_.is_tensor(left)) {
    Kind kind = watch_.kind_of(Py_TYPE(left));
    if (kind == Kind::List || kind == Kind::Dict || kind == Kind::Set || kind == Kind::Iterator)
      watch_.mutate(left, "an in-place operator");
  }
  if (in_place && PyList_CheckExact(left) && are_followed(2, true)) return extend_in_place(arg);
  bool followed = are_followed(2, true), handed = followed && hand_to_operator(arg);
  size_t frames = watch_.frames;
  PyObject* result = program::kOperators[arg].apply(left, right);
  if (!result) watch_.note_tensor_error({value_at(sp_ - 2), value_at(sp_ - 1)});
  watch_.handover.clear();
  NodeId node = kKnown;
  if (result && followed) {
    if (watch_.is_tensor(left) || watch_.is_tensor(right)) check_is_tensor(result);
    if (watch_.frames != frames) {  // Python code has done it, and was watched
      if (!handed) settle_top(2);
    } else if (StandIns* again = watch_.stand_ins()) {
      node = again->apply(program::kOperators[arg].apply, value_at(sp_ - 2), value_at(sp_ - 1), result);
    }
  }
  if (result && watch_.alive()) {
    if (watch_.is_tensor(result))
      watch_.check_tensors(result, "an operator");
    else if (result != left && result != right && Py_REFCNT(result) == 1 && !PyLong_CheckExact(result))
      watch_.mark_fresh(result);
  }
  return replace_followed(2, result, node);
}

// Of an operator that had a tensor as operand.
void FrameRun::check_is_tensor(PyObject* result) {
  if (!watch_.is_tensor(result)) watch_.give_up("an operator looks at a tensor whose sizes may change");
}

Next FrameRun::replace_followed(int count, PyObject* owned, NodeId node) {
  for (int i = 1; owned && stack_nodes_ && i <= count; ++i) set_node(sp_ - i, kKnown);
  Next next = replace(count, owned);
  if (next == Next::Go && node != kKnown) set_node(sp_ - 1, node);
  return next;
}

PyObject** FrameRun::callable_at(uint32_t arguments, int above) {
  PyObject** base = sp_ - above - arguments - 2;
  return MG_HOLE || base[0] ? base : base + 1;
}

Next FrameRun::call(uint32_t arg, PyObject* names, int above) {
  PyObject** base = sp_ - above - arg - 2;
  bool is_method = base[MG_HOLE] != nullptr;
  PyObject** callable = callable_at(arg, above);
  PyObject** args = base + 2 - is_method;
  size_t total = arg + is_method;
  size_t keywords = names ? PyTuple_GET_SIZE(names) : 0;
  std::vector<NodeId> nodes, copied;
  if (stack_nodes_) {
    if (watch_.around) {
      watch_.callable_node = node_at(callable);
    } else {
      watch_.settle(node_at(callable));
      set_node(callable, kKnown);
    }
    for (size_t i = 0; i < total; ++i) nodes.push_back(node_at(args + i));
  }
  if (watch_.around)
    settle_holders(args, total);
  else if (stack_nodes_ && append_followed(*callable, args, total))
    watch_.handover.clear();
  else if (stack_nodes_ && total == 1 && !names && copies_holder(*callable, args))
    copied = parts_at(args);
  else
    hand_over(*callable, args, nodes, names);
  PyObject* result = watch_.call_here(*callable, args, total - keywords, names);
  NodeId node = watch_.handover.take_returned();
  if (result && !copied.empty()) node = watch_.provenance.add_holder(result, std::move(copied));
  Next next = replace_followed(static_cast<int>(arg) + 2 + above, result, node);
  return next == Next::Go ? serve_break() : next;
}

Next FrameRun::call_with_tuple(uint32_t arg) {
  PyObject* keywords = (arg & 1) ? sp_[-1] : nullptr;
  PyObject** at = sp_ - 1 - (arg & 1);
  PyObject* callable = at[-1 - MG_HOLE];
  if (keywords && !PyDict_CheckExact(keywords)) return leave("** with something that is no dict");
  if (!PyTuple_CheckExact(at[0]) && !PyList_CheckExact(at[0]) && !Py_TYPE(at[0])->tp_iter)
    return leave("* with something that cannot be iterated");
  watch_.read_iterable(at[0]);
  if (keywords) watch_.read_contents(keywords);
  // With the hole in their midst, what the call takes from the stack cannot be handed on.
  bool is_plain = PyTuple_CheckExact(at[0]) || PyList_CheckExact(at[0]);
  if (!MG_HOLE && is_plain && (watch_.around || watch_.is_unknown(callable)) && watch_.can_cut())
    return run_instead(call_with_star(), 2 + static_cast<int>(arg & 1), 1);
  py::Ref positional = PyTuple_CheckExact(at[0]) ? py::Ref::borrow(at[0]) : py::Ref::steal(PySequence_Tuple(at[0]));
  if (!positional) return Next::Error;
  std::vector<PyObject*> values;
  std::vector<py::Ref> owned;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(positional.get()); ++i)
    values.push_back(PyTuple_GET_ITEM(positional.get(), i));
  py::Ref names;
  if (keywords && PyDict_GET_SIZE(keywords)) {
    names = py::Ref::steal(PyTuple_New(PyDict_GET_SIZE(keywords)));
    if (!names) return Next::Error;
    Py_ssize_t position = 0, i = 0;
    PyObject *key, *value;
    while (PyDict_Next(keywords, &position, &key, &value)) {
      if (!PyUnicode_Check(key)) return leave("a keyword that is no string");
      PyTuple_SET_ITEM(names.get(), i++, Py_NewRef(key));
      values.push_back(value);
      owned.push_back(py::Ref::borrow(value));  // the callee may change the dict
    }
  }
  std::vector<NodeId> nodes;
  bool has_nodes = stack_nodes_ != 0;
  for (PyObject** slot : {at, keywords ? sp_ - 1 : nullptr}) {
    if (!slot || !has_nodes) continue;
    const Node* holder = holder_at(slot);
    if (holder)
      nodes.insert(nodes.end(), holder->items.begin(), holder->items.end());
    else
      watch_.settle(node_at(slot));
    nodes.resize(slot == at ? static_cast<size_t>(PyTuple_GET_SIZE(positional.get())) : values.size(), kKnown);
    set_node(slot, kKnown);
  }
  settle_top(3 + static_cast<int>(arg & 1));
  hand_over(callable, values.data(), nodes, names.get());
  PyObject* result =
      watch_.call(callable, values.data(), static_cast<size_t>(PyTuple_GET_SIZE(positional.get())), names.get());
  NodeId node = watch_.handover.take_returned();
  Next next = replace(3 + static_cast<int>(arg & 1), result);
  if (next != Next::Go) return next;
  if (node != kKnown) set_node(sp_ - 1, node);
  return serve_break();
}

// Before a branch: the truth of a tensor takes its place.
Next FrameRun::ask_tensor_truth() {
  if (!watch_.is_tensor(sp_[-1]) || !watch_.can_cut_at_question(sp_ - 1, 1)) return Next::Go;
  settle_top(1);
  py::Ref truth = py::Ref::steal(watch_.call_instead((PyObject*)&PyBool_Type, sp_ - 1, 1, Watch::How::Again));
  NodeId node = watch_.handover.take_returned();
  if (!truth) return Next::Error;
  Py_DECREF(pop());
  push(truth.release(), node);
  return Next::Go;
}

Next FrameRun::branch(bool jump_if, uint32_t target) {
  if (watch_.is_tensor(sp_[-1])) {
    if (Next next = ask_tensor_truth(); next != Next::Go) return next;
    if (stack_nodes_) return branch_on_node(jump_if, target);
  }
  py::Ref condition = pop_ref();
  watch_.read_truth(condition.get());
  int truth = PyObject_IsTrue(condition.get());
  if (truth < 0) return Next::Error;
  return truth == static_cast<int>(jump_if) ? jump(target) : Next::Go;
}

// The truth of the top takes its place, or its opposite.
Next FrameRun::take_truth(bool wanted) {
  if (watch_.is_tensor(sp_[-1]) && watch_.can_cut_at_question(sp_ - 1, 1))
    return run_instead(wanted ? (PyObject*)&PyBool_Type : program::operator_function("not_"), 1);
  watch_.read_truth(sp_[-1]);
  int truth = PyObject_IsTrue(sp_[-1]);
  return truth < 0 ? Next::Error : replace(1, Py_NewRef(truth == static_cast<int>(wanted) ? Py_True : Py_False));
}

namespace {

// What a tensor is never equal to, whatever it holds.
bool is_unlike_tensor(PyObject* object) {
  return object == Py_None || PyUnicode_CheckExact(object) || PyType_Check(object) || PyDict_CheckExact(object);
}

}  // namespace

Next FrameRun::compare(uint32_t arg) {
  watch_.read_operand(sp_[-2]);
  watch_.read_operand(sp_[-1]);
  int how = static_cast<int>(arg & ~MG_AS_BOOL);
  PyObject* result = PyObject_RichCompare(sp_[-2], sp_[-1], how);
  if (!result) watch_.note_tensor_error({value_at(sp_ - 2), value_at(sp_ - 1)});
  NodeId node = kKnown;
  if (StandIns* again = result ? watch_.stand_ins() : nullptr) {
    if (watch_.is_tensor(result))
      node = again->compare(value_at(sp_ - 2), value_at(sp_ - 1), how, result);
    else if (!is_unlike_tensor(sp_[-2]) && !is_unlike_tensor(sp_[-1]))  // else they are compared by identity
      watch_.look_at_tensor(sp_[-2], "a comparison"), watch_.look_at_tensor(sp_[-1], "a comparison");
  }
  if (result && watch_.is_tensor(result)) watch_.check_tensors(result, "a comparison");
  Next next = replace_followed(2, result, node);
  return next == Next::Go && arg & MG_AS_BOOL && !PyBool_Check(result) ? take_truth(true) : next;
}

// Lets an unknown function do what the instruction would do with the values on the stack.
Next FrameRun::run_instead(PyObject* function, int operands, int below) {
  if (watch_.around)
    settle_holders(sp_ - operands, static_cast<size_t>(operands));
  else
    settle_top(operands);
  PyObject* result = watch_.call_instead(function, sp_ - operands, static_cast<size_t>(operands), Watch::How::Instead);
  NodeId node = watch_.handover.take_returned();
  return replace_followed(operands + below, result, node);
}

namespace {

PyObject* select_row(PyObject* tensor, PyObject* index) {
  return PyObject_CallMethod(tensor, "select", "iO", 0, index);
}

}  // namespace

Next FrameRun::take_item() {
  PyObject *object = sp_[-2], *key = sp_[-1];
  if (watch_.is_tensor(object) && watch_.selects_by_contents(key) && watch_.can_cut_at_question(sp_ - 1, 1))
    return run_instead(program::operator_function("getitem"), 2);
  NodeId node = kKnown;
  if (watch_.is_dict(object))
    node = watch_.look_up_key(object, key);
  else if (PyList_CheckExact(object) || PyTuple_CheckExact(object))
    watch_.read_contents(object);  // looks into none of the items
  else
    watch_.read_operand(object);
  watch_.read_operand(key);
  if (Py_TYPE(object)->tp_flags & Py_TPFLAGS_HEAPTYPE) watch_.guards.read_specials(Py_TYPE(object));
  if (PyType_Check(object)) watch_.use_specials((PyTypeObject*)object);  // __class_getitem__
  PyObject* result = PyObject_GetItem(object, key);
  if (!result && watch_.is_tensor(object)) watch_.note_tensor_error({value_at(sp_ - 2)});
  NodeId made = kKnown;
  if (StandIns* again = result ? watch_.stand_ins() : nullptr) {
    bool is_row = watch_.is_tensor(object) && PyLong_CheckExact(key);  // torch pins a number that it is indexed with
    if (watch_.is_tensor(object) || holder_at(sp_ - 2))
      made = again->apply(is_row ? select_row : PyObject_GetItem, value_at(sp_ - 2), value_at(sp_ - 1), result);
    else
      watch_.look_at_tensor(key, "an index");
  }
  if (result && watch_.is_tensor(object))
    watch_.check_tensors(result, "indexing a tensor");
  else if (result && PyList_CheckExact(result) && Py_REFCNT(result) == 1)
    watch_.mark_fresh(result);
  return replace_followed(2, result, made != kKnown ? made : watch_.carried(node, result));
}

// Before `item in container`: what of it stand-ins cannot repeat.
void FrameRun::look_for(PyObject* item, PyObject* container) {
  static PyObject* name = PyUnicode_InternFromString("__contains__");
  if (!watch_.stand_ins()) return;
  PyObject* method = watch_.is_tensor(container) ? _PyType_Lookup(Py_TYPE(container), name) : nullptr;
  if (method && PyFunction_Check(method)) return;  // which is watched
  if (watch_.is_tensor(item) && has_only_unlike_keys(container)) return;
  watch_.look_at_tensor(item, "`in`");
  watch_.look_at_tensor(container, "`in`");
}

// A dict or set in which a tensor is found by identity or not at all: tensors are hashed by their addresses.
bool FrameRun::has_only_unlike_keys(PyObject* container) {
  Py_ssize_t position = 0;
  PyObject *key, *value;
  auto is_unlike = [this](PyObject* other) { return watch_.is_plain_tensor(other) || is_unlike_tensor(other); };
  if (PyAnySet_CheckExact(container)) {
    while (mg_set_next(container, &position, &key))
      if (!is_unlike(key)) return false;
  } else if (PyDict_CheckExact(container)) {
    while (PyDict_Next(container, &position, &key, &value))
      if (!is_unlike(key)) return false;
  } else {
    return false;
  }
  return true;
}

Next FrameRun::step_flow(uint8_t operation, uint32_t arg) {
  int target = static_cast<int>(arg);
  switch (operation) {
    case MG_CALL: return call(arg, std::exchange(keyword_names_, nullptr), 0);
    case MG_KW_NAMES: keyword_names_ = constants_[arg]; return Next::Go;
    case MG_CALL_KW: return call(arg, sp_[-1], 1);
    case MG_CALL_FUNCTION_EX: return call_with_tuple(arg);
    case MG_BINARY_OP: return binary(arg);
    case MG_BINARY_SUBSCR: return take_item();
    case MG_BINARY_SLICE: step_build(MG_BUILD_SLICE, 2); return take_item();
    case MG_STORE_SUBSCR: return store_item();
    case MG_STORE_SLICE: step_build(MG_BUILD_SLICE, 2); return store_item();
    case MG_DELETE_SUBSCR: {
      py::Ref key = pop_ref(), object = pop_ref();
      watch_.read_operand(key.get());
      size_t before = watch_.effects.size();
      watch_.write_item(object.get(), key.get(), {nullptr});
      return made(PyObject_DelItem(object.get(), key.get()) == 0, before);
    }
    case MG_COMPARE_OP: return compare(arg);
    case MG_IS_OP: {
      bool same = sp_[-2] == sp_[-1];
      watch_.compare_identity(sp_[-2], sp_[-1]);
      return replace(2, Py_NewRef(same != static_cast<bool>(arg) ? Py_True : Py_False));
    }
    case MG_CONTAINS_OP: {
      PyObject *item = sp_[-2], *container = sp_[-1];
      look_for(item, container);
      if (watch_.is_dict(container))
        watch_.read_dict_key(container, item);
      else
        watch_.read_operand(container);
      if (Py_TYPE(container)->tp_flags & Py_TPFLAGS_HEAPTYPE) watch_.guards.read_specials(Py_TYPE(container));
      watch_.read_operand(item);
      ConsumerScope consumer(watch_);
      int found = PySequence_Contains(container, item);
      if (found < 0) return Next::Error;
      return replace(2, Py_NewRef(found != static_cast<int>(arg) ? Py_True : Py_False));
    }
    case MG_UNARY_NEGATIVE:
    case MG_UNARY_POSITIVE:
    case MG_UNARY_INVERT: {
      watch_.read_operand(sp_[-1]);
      uint32_t number = operation == MG_UNARY_NEGATIVE   ? program::kNegative
                        : operation == MG_UNARY_POSITIVE ? program::kPositive
                                                         : program::kInvert;
      PyObject* result = program::kOperators[number].apply(sp_[-1], nullptr);
      if (!result) watch_.note_tensor_error({value_at(sp_ - 1)});
      if (StandIns* again = result && watch_.is_tensor(result) ? watch_.stand_ins() : nullptr)
        again->apply(program::kOperators[number].apply, value_at(sp_ - 1), {nullptr}, result);
      if (result && watch_.is_tensor(result)) watch_.check_tensors(result, "an operator");
      return replace(1, result);
    }
    case MG_UNARY_NOT: return take_truth(false);
    case MG_TO_BOOL: return PyBool_Check(sp_[-1]) ? Next::Go : take_truth(true);
    case MG_GET_ITER: {
      watch_.read_iterable(sp_[-1]);
      return replace(1, new_iterator(sp_[-1]));
    }
    case MG_FOR_ITER: {
      PyObject* iterator = sp_[-1];
      NodeId next = watch_.next_of_tuple(iterator);
      watch_.advance_iterator(iterator);
      std::optional<ConsumerScope> consumer;
      bool is_generator = PyGen_CheckExact(iterator);
      if (!is_generator) consumer.emplace(watch_);
      if (is_generator) watch_.handover.generator = iterator;
      PyObject* item = Py_TYPE(iterator)->tp_iternext(iterator);
      if (item) {
        if (PyTuple_CheckExact(item) && Py_REFCNT(item) == 1) watch_.mark_fresh(item);
        push(item, is_generator ? watch_.handover.take_returned() : next);
        return Next::Go;
      }
      if (PyErr_Occurred()) {
        if (!PyErr_ExceptionMatches(PyExc_StopIteration)) return Next::Error;
        PyErr_Clear();
      }
      Py_DECREF(pop());
      pc_ = target;
      return Next::Go;
    }
    case MG_JUMP: pc_ = target; return Next::Go;
    case MG_LOOP: return jump(arg);
    case MG_POP_JUMP_IF_FALSE: return branch(false, arg);
    case MG_POP_JUMP_IF_TRUE: return branch(true, arg);
    case MG_POP_JUMP_IF_NONE:
    case MG_POP_JUMP_IF_NOT_NONE: {
      py::Ref value = pop_ref();
      return (value.get() == Py_None) == (operation == MG_POP_JUMP_IF_NONE) ? jump(arg) : Next::Go;
    }
    case MG_JUMP_IF_FALSE_OR_POP:
    case MG_JUMP_IF_TRUE_OR_POP: {
      watch_.read_truth(sp_[-1]);
      int truth = PyObject_IsTrue(sp_[-1]);
      if (truth < 0) return Next::Error;
      if (truth == (operation == MG_JUMP_IF_TRUE_OR_POP))
        pc_ = target;
      else
        Py_DECREF(pop());
      return Next::Go;
    }
    default: return step_rare(operation, arg);
  }
}

Next FrameRun::jump(uint32_t target) {
  pc_ = static_cast<int>(target);
  return pc_ > at_ ? Next::Go : look_up();
}

// At the beginning of functions and loops. What cannot be served here ends the watch behind the instruction.
Next FrameRun::look_up() {
  static constexpr size_t kRarely = 8;
  if (++watch_.loops > kMaxLoops) watch_.give_up("the call runs too long to be watched", Around::Never);
  if (watch_.loops % kRarely == 0) watch_.check_size();
  if (thread_->async_exc)
    watch_.give_up("the interpreter does not run an exception that another thread has sent", Around::Never);
  return serve_break();
}

// Where CPython looks up from its work, too: signals, other threads.
Next FrameRun::serve_break() {
  if (!mg_must_break(thread_)) [[likely]]
    return Next::Go;
  runtime::PauseWatch pause;
  int served = mg_serve_break(thread_);
  if (mg_is_tracing(thread_)) watch_.give_up("a debugger or profiler follows the thread", Around::Never);
  return served < 0 ? Next::Error : Next::Go;
}

Next FrameRun::step() {
  bool has_detours = !watch_.detours.empty();
  if (may_be_plain(code_[pc_].operation) && !stack_nodes_ && !has_detours && !watch_.listing)
    if (Next next = run_plainly(); next != Next::Go) return next;
  const mg_instruction& instruction = code_[pc_];
  stand_at(instruction, sp_);
  if (has_detours) [[unlikely]]
    if (const Detour* detour = watch_.detour_at(*this))
      return go_around(*detour, instruction.operation, instruction.operand);
  if (stack_nodes_) [[unlikely]]
    return step_with_nodes(instruction.operation, instruction.operand);
  return step_variables(instruction.operation, instruction.operand);
}

Next FrameRun::step_listed(Listing& listing) {
  listing.begin(view_.code, pc_, watch_.running.size());
  Next next = step();
  listing.end();
  return next;
}

void FrameRun::add_traceback() {
  if (PyFrameObject* object = PyThreadState_GetFrame(thread_)) {
    PyTraceBack_Here(object);
    Py_DECREF(object);
  }
}

// True: a handler of this frame goes on. False: the frame is left with the error set.
bool FrameRun::handle_error(bool with_traceback) {
  keyword_names_ = nullptr;
  if (with_traceback) add_traceback();
  mg_handler found;
  bool handled = mg_find_handler(view_.code, at_, &found);
  PyObject** keep = handled ? stack_ + found.depth : stack_;
  while (sp_ > keep) {
    set_node(--sp_, kKnown);
    Py_XDECREF(*sp_);
  }
  if (!handled) return false;
  if (found.push_offset) {
    PyObject* offset = PyLong_FromLong(static_cast<long>(*view_.executing - view_.first_code_unit));
    if (!offset) return false;
    push(offset);
  }
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  PyErr_NormalizeException(&type, &value, &traceback);
  PyException_SetTraceback(value, traceback ? traceback : Py_None);
  // An exception is changed by being raised: its traceback, its context.
  if (Py_REFCNT(value) == 1)
    watch_.mark_fresh(value);
  else if (!watch_.is_fresh(value))
    watch_.give_up("the call raises an exception that existed before it");
  Py_XDECREF(type);
  Py_XDECREF(traceback);
  push(value);
  pc_ = found.handler;
  return true;
}

PyObject* FrameRun::run(bool throwing) {
  previous_ = mg_frame_take(thread_, frame_);
  Listing* const listing = watch_.listing.get();
  Next next = Next::Go;
  if (throwing) {
    at_ = pc_ - 1;
    next = Next::Error;
  }
  for (;;) {
    if (next == Next::Go) {
      if (watch_.alive() || goes_on()) [[likely]] {
        ++watch_.steps;
        next = !listing ? step() : step_listed(*listing);
        if (next == Next::Go) [[likely]]
          continue;
      } else {
        at_ = pc_;
        next = Next::Leave;
      }
    }
    if (next == Next::Error || next == Next::Raise) {
      if (handle_error(next == Next::Error)) {
        next = Next::Go;
        continue;
      }
      break;
    }
    if (next == Next::Return || next == Next::Yield) break;
    // CPython runs this frame from here on.
    if (!watch_.alive()) watch_.let_go();
    mg_frame_give_back(thread_, frame_, previous_, sp_);
    mg_frame_resume_before(frame_, at_ - code_[at_].lead);
    mg_leave_frame(thread_);
    PyObject* result = mg_eval_default(thread_, frame_, 0);
    if (result && next == Next::Generator) {
      watch_.mark_fresh(result);
      watch_.provenance.forget_suspended(result);  // another one that had its address
    }
    return result;
  }
  mg_frame_give_back(thread_, frame_, previous_, sp_);
  mg_leave_frame(thread_);
  if (next != Next::Yield) mg_frame_finish(thread_, frame_);
  return result_;
}

namespace {

constexpr const char* kOlderGenerator = "the call resumes a generator that existed before it";

bool is_older_generator(const Watch& watch, const mg_frame_view& view) {
  return view.generator && watch.alive() && !watch.is_fresh(view.generator);
}

// Null if the frame can be watched. It then counts towards the recursion limit until mg_leave_frame.
const char* enter_frame(const Watch& watch, PyThreadState* thread, const mg_frame_view& view) {
  if (mg_is_tracing(thread) || mg_is_monitored(view.code)) return "a debugger or profiler follows the thread";
  if (watch.running.size() >= kMaxDepth) return kTooDeep;
  if (is_older_generator(watch, view)) return kOlderGenerator;
  return mg_enter_frame(thread) ? nullptr : "the call comes to the recursion limit";
}

}  // namespace

PyObject* watch_frame(PyThreadState* thread, mg_frame* frame, int throwing) {
  Watch* watch = Watch::current();
  if (!watch || !watch->interprets()) return mg_eval_default(thread, frame, throwing);
  mg_frame_view view;
  mg_frame_read(frame, &view);
  if (watch->alive() && runtime::tensor_plug().is_part_of_operator((PyObject*)view.function, view.locals)) {
    runtime::PauseWatch pause;
    return mg_eval_default(thread, frame, throwing);
  }
  if (watch->goes_on && is_older_generator(*watch, view)) watch->give_up(kOlderGenerator);
  const mg_instruction* code = mg_decoded(view.code);
  if (!code) PyErr_Clear();
  if (const char* why_not = code ? enter_frame(*watch, thread, view) : "a code object could not be read") {
    watch->give_up(why_not, Around::Never);
    return mg_eval_default(thread, frame, throwing);
  }
  if (view.generator)
    std::erase(watch->open_generators, view.generator);
  else
    watch->enter_function(view.function, view.locals);
  FrameRun run(*watch, thread, frame, view, code);
  NodeId waiting = watch->handover.returned;  // for a caller: a frame that is left ends this generator
  run.take_nodes();
  watch->running.push_back(&run);
  watch->depth = std::max(watch->depth, watch->running.size());
  PyObject* result = run.run(throwing);
  watch->running.pop_back();
  if (waiting != kKnown) {
    watch->handover.clear();
    watch->handover.returned = waiting;
  }
  return result;
}

}  // namespace magneto::trace
