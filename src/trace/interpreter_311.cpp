// The bytecode interpreter for CPython 3.11: runs a real frame, instruction by instruction, and tells the watch.
//
// Its results are CPython's by construction: each instruction does what the evaluator does, on the frame's own locals
// and stack. Whatever it does not know it leaves to CPython *before* having done anything: the frame is handed over at
// that instruction and the watch gives up.
#include <Python.h>
#include <frameobject.h>
#include <opcode.h>

#include <optional>
#include <vector>

#include "cpython/cpython.h"
#include "cpython/ref.h"
#include "runtime/state.h"
#include "trace/watch.h"

namespace magneto::trace {

namespace {

constexpr binaryfunc kBinary[] = {PyNumber_Add,
                                  PyNumber_And,
                                  PyNumber_FloorDivide,
                                  PyNumber_Lshift,
                                  PyNumber_MatrixMultiply,
                                  PyNumber_Multiply,
                                  PyNumber_Remainder,
                                  PyNumber_Or,
                                  [](PyObject* a, PyObject* b) { return PyNumber_Power(a, b, Py_None); },
                                  PyNumber_Rshift,
                                  PyNumber_Subtract,
                                  PyNumber_TrueDivide,
                                  PyNumber_Xor,
                                  PyNumber_InPlaceAdd,
                                  PyNumber_InPlaceAnd,
                                  PyNumber_InPlaceFloorDivide,
                                  PyNumber_InPlaceLshift,
                                  PyNumber_InPlaceMatrixMultiply,
                                  PyNumber_InPlaceMultiply,
                                  PyNumber_InPlaceRemainder,
                                  PyNumber_InPlaceOr,
                                  [](PyObject* a, PyObject* b) { return PyNumber_InPlacePower(a, b, Py_None); },
                                  PyNumber_InPlaceRshift,
                                  PyNumber_InPlaceSubtract,
                                  PyNumber_InPlaceTrueDivide,
                                  PyNumber_InPlaceXor};

constexpr size_t kMaxLoops = 1'000'000;  // of all frames together, counting calls: half a second or so

enum class Next : uint8_t {
  Go,        // on with the next instruction
  Error,     // a Python error is set
  Raise,     // the same, but its traceback has this frame already
  Leave,     // CPython takes over at this instruction
  Return,    // `result_` is the frame's result
  Generator  // CPython runs RETURN_GENERATOR, which ends this call of the frame
};

class FrameRun {
 public:
  FrameRun(Watch& watch, PyThreadState* thread, mg_frame* frame, const mg_instruction* code)
      : watch_(watch), thread_(thread), frame_(frame), code_(code) {
    mg_frame_read(frame, &view_);
    locals_ = view_.locals;
    stack_ = locals_ + view_.code->co_nlocalsplus;
    sp_ = view_.stack_pointer;
    pc_ = mg_frame_next_instruction(frame);
    constants_ = ((PyTupleObject*)view_.code->co_consts)->ob_item;
    names_ = ((PyTupleObject*)view_.code->co_names)->ob_item;
  }

  PyObject* run(bool throwing);
  const int* position() const { return &at_; }

 private:
  Next step();
  Next serve_break();
  Next step_variables(uint8_t opcode, uint32_t arg);
  Next step_build(uint8_t opcode, uint32_t arg);
  Next step_flow(uint8_t opcode, uint32_t arg);
  Next step_rare(uint8_t opcode, uint32_t arg);
  bool handle_error(bool add_traceback);
  void add_traceback();

  void push(PyObject* owned) { *sp_++ = owned; }
  PyObject* pop() { return *--sp_; }
  py::Ref pop_ref() { return py::Ref::steal(*--sp_); }
  Next push_result(PyObject* owned) {
    if (!owned) return Next::Error;
    push(owned);
    return Next::Go;
  }
  // Replaces the top `count` entries by an owned result; on null they are left for the error path to drop.
  Next replace(int count, PyObject* owned) {
    if (!owned) return Next::Error;
    while (count--) Py_XDECREF(*--sp_);
    push(owned);
    return Next::Go;
  }
  Next leave(const char* why) {
    watch_.give_up(std::string("the interpreter does not run ") + why);
    return Next::Leave;
  }

  Next load_attribute(PyObject* name);
  Next load_method(PyObject* name);
  Next call(uint32_t arg);
  Next call_with_tuple(uint32_t arg);
  Next branch(bool jump_if, int target);
  PyObject* new_iterator(PyObject* iterable);
  py::Ref unpacked(PyObject* sequence);
  bool take_items(PyObject* iterator, Py_ssize_t count, const char* at_least, Py_ssize_t expected,
                  std::vector<py::Ref>* items);
  Next unpack(uint32_t count);
  Next unpack_with_star(uint32_t arg);
  Next make_function(uint32_t flags);
  Next raise(uint32_t arg);
  Next import(PyObject* name);
  Next before_with();
  Next binary(uint32_t arg);
  Next dict_merge(uint32_t arg);
  Next send(uint32_t arg);
  Next list_extend(uint32_t arg);
  Next format_value(uint32_t arg);

  Watch& watch_;
  PyThreadState* thread_;
  mg_frame* frame_;
  mg_frame* previous_ = nullptr;
  const mg_instruction* code_;
  mg_frame_view view_;
  PyObject **locals_, **stack_, **sp_;
  PyObject **constants_, **names_;
  PyObject* keyword_names_ = nullptr;
  int keyword_names_at_ = -1;  // KW_NAMES is part of the call that follows: an exit in between goes back to it
  int pc_;                     // the next instruction
  int at_ = 0;                 // the one being executed
  PyObject* result_ = nullptr;
};

// ---- names, attributes

Next FrameRun::load_attribute(PyObject* name) {
  PyObject* object = sp_[-1];
  watch_.read_attribute(object, name);
  PyObject* value = PyObject_GetAttr(object, name);
  if (value) watch_.finish_attribute(object, name, value);
  return replace(1, value);
}

Next FrameRun::load_method(PyObject* name) {
  PyObject* object = sp_[-1];
  watch_.read_attribute(object, name);
  PyObject* method = nullptr;
  int unbound = _PyObject_GetMethod(object, name, &method);
  if (!method) return Next::Error;
  if (unbound) {
    sp_[-1] = method;
    push(object);
  } else {
    watch_.finish_attribute(object, name, method);
    sp_[-1] = nullptr;
    push(method);
    Py_DECREF(object);
  }
  return Next::Go;
}

Next FrameRun::step_variables(uint8_t opcode, uint32_t arg) {
  switch (opcode) {
    case LOAD_FAST: {
      PyObject* value = locals_[arg];
      if (!value) return leave("a read of an unbound local variable");
      push(Py_NewRef(value));
      return Next::Go;
    }
    case STORE_FAST: {
      PyObject* old = locals_[arg];
      locals_[arg] = pop();
      Py_XDECREF(old);
      return Next::Go;
    }
    case DELETE_FAST: {
      PyObject* old = locals_[arg];
      if (!old) return leave("the deletion of an unbound local variable");
      locals_[arg] = nullptr;
      Py_DECREF(old);
      return Next::Go;
    }
    case LOAD_CONST: push(Py_NewRef(constants_[arg])); return Next::Go;
    case LOAD_GLOBAL: {
      PyObject* name = names_[arg >> 1];
      if (!PyDict_CheckExact(view_.globals) || !PyDict_CheckExact(view_.builtins)) return leave("unusual globals");
      PyObject* value = PyDict_GetItemWithError(view_.globals, name);
      if (!value && !PyErr_Occurred()) value = PyDict_GetItemWithError(view_.builtins, name);
      watch_.read_global(view_.globals, view_.builtins, name);
      if (!value) return leave("a read of an undefined global variable");
      if (arg & 1) push(nullptr);
      push(Py_NewRef(value));
      return Next::Go;
    }
    case STORE_GLOBAL: {
      py::Ref value = pop_ref();
      watch_.write_global(view_.globals, names_[arg], value.get());
      return PyDict_SetItem(view_.globals, names_[arg], value.get()) < 0 ? Next::Error : Next::Go;
    }
    case LOAD_ATTR: return load_attribute(names_[arg]);
    case LOAD_METHOD: return load_method(names_[arg]);
    case STORE_ATTR: {
      py::Ref object = pop_ref(), value = pop_ref();
      watch_.write_attribute(object.get(), names_[arg], value.get());
      return PyObject_SetAttr(object.get(), names_[arg], value.get()) < 0 ? Next::Error : Next::Go;
    }
    case DELETE_ATTR: {
      py::Ref object = pop_ref();
      watch_.write_attribute(object.get(), names_[arg], nullptr);
      return PyObject_SetAttr(object.get(), names_[arg], nullptr) < 0 ? Next::Error : Next::Go;
    }
    case MAKE_CELL: {
      PyObject* cell = PyCell_New(locals_[arg]);
      if (!cell) return Next::Error;
      watch_.mark_fresh(cell);
      Py_XDECREF(locals_[arg]);
      locals_[arg] = cell;
      return Next::Go;
    }
    case COPY_FREE_VARS: {
      PyObject* closure = view_.function->func_closure;
      int first = view_.code->co_nlocals + view_.code->co_nplaincellvars;
      for (uint32_t i = 0; i < arg; ++i) locals_[first + i] = Py_NewRef(PyTuple_GET_ITEM(closure, i));
      return Next::Go;
    }
    case LOAD_CLOSURE: push(Py_NewRef(locals_[arg])); return Next::Go;
    case LOAD_DEREF: {
      PyObject* value = PyCell_GET(locals_[arg]);
      if (!value) return leave("a read of an unbound variable");
      watch_.read_cell(locals_[arg]);
      push(Py_NewRef(value));
      return Next::Go;
    }
    case STORE_DEREF: {
      watch_.write_cell(locals_[arg]);
      PyObject* old = PyCell_GET(locals_[arg]);
      PyCell_SET(locals_[arg], pop());
      Py_XDECREF(old);
      return Next::Go;
    }
    case DELETE_DEREF: {
      PyObject* old = PyCell_GET(locals_[arg]);
      if (!old) return leave("the deletion of an unbound variable");
      watch_.write_cell(locals_[arg]);
      PyCell_SET(locals_[arg], nullptr);
      Py_DECREF(old);
      return Next::Go;
    }
    default: return step_build(opcode, arg);
  }
}

// ---- building objects

Next FrameRun::list_extend(uint32_t arg) {
  py::Ref iterable = pop_ref();
  PyObject* list = sp_[-static_cast<int>(arg)];
  watch_.read_iterable(iterable.get());
  py::Ref none = py::Ref::steal(_PyList_Extend((PyListObject*)list, iterable.get()));
  if (none) return Next::Go;
  if (PyErr_ExceptionMatches(PyExc_TypeError) && !Py_TYPE(iterable.get())->tp_iter &&
      !PySequence_Check(iterable.get())) {
    PyErr_Clear();
    PyErr_Format(PyExc_TypeError, "Value after * must be an iterable, not %.200s", Py_TYPE(iterable.get())->tp_name);
  }
  return Next::Error;
}

Next FrameRun::dict_merge(uint32_t arg) {
  PyObject* from = sp_[-1];
  PyObject* into = sp_[-1 - static_cast<int>(arg)];
  if (!PyDict_CheckExact(from)) return leave("** with something that is no dict");
  Py_ssize_t position = 0;
  PyObject *key, *value;
  while (PyDict_Next(from, &position, &key, &value)) {
    int clash = PyUnicode_CheckExact(key) ? PyDict_Contains(into, key) : 1;
    if (clash) {
      PyErr_Clear();
      return leave("a keyword argument that is passed twice");
    }
  }
  watch_.read_contents(from);
  if (PyDict_Update(into, from) < 0) return Next::Error;
  Py_DECREF(pop());
  return Next::Go;
}

Next FrameRun::format_value(uint32_t arg) {
  PyObject* spec = (arg & 4) ? sp_[-1] : nullptr;
  PyObject* value = spec ? sp_[-2] : sp_[-1];
  watch_.read_deep(value);
  py::Ref text;
  switch (arg & 3) {
    case 0: text = py::Ref::borrow(value); break;
    case 1: text = py::Ref::steal(PyObject_Str(value)); break;
    case 2: text = py::Ref::steal(PyObject_Repr(value)); break;
    case 3: text = py::Ref::steal(PyObject_ASCII(value)); break;
  }
  if (!text) return Next::Error;
  PyObject* result = PyUnicode_CheckExact(text.get()) && !spec ? text.release() : PyObject_Format(text.get(), spec);
  return replace(spec ? 2 : 1, result);
}

Next FrameRun::make_function(uint32_t flags) {
  py::Ref code = pop_ref();
  auto* function = (PyFunctionObject*)PyFunction_New(code.get(), view_.globals);
  if (!function) return Next::Error;
  if (flags & 8) function->func_closure = pop();
  if (flags & 4) function->func_annotations = pop();
  if (flags & 2) function->func_kwdefaults = pop();
  if (flags & 1) function->func_defaults = pop();
  watch_.mark_fresh((PyObject*)function);
  push((PyObject*)function);
  return Next::Go;
}

Next FrameRun::step_build(uint8_t opcode, uint32_t arg) {
  switch (opcode) {
    case BUILD_TUPLE: {
      PyObject* tuple = PyTuple_New(arg);
      if (!tuple) return Next::Error;
      for (int i = static_cast<int>(arg) - 1; i >= 0; --i) PyTuple_SET_ITEM(tuple, i, pop());
      watch_.mark_fresh(tuple);
      push(tuple);
      return Next::Go;
    }
    case BUILD_LIST: {
      PyObject* list = PyList_New(arg);
      if (!list) return Next::Error;
      for (int i = static_cast<int>(arg) - 1; i >= 0; --i) PyList_SET_ITEM(list, i, pop());
      watch_.mark_fresh(list);
      push(list);
      return Next::Go;
    }
    case BUILD_SET: {
      py::Ref set = py::Ref::steal(PySet_New(nullptr));
      for (int i = static_cast<int>(arg); set && i > 0; --i)
        if (PySet_Add(set.get(), sp_[-i]) < 0) return Next::Error;
      if (set) watch_.mark_fresh(set.get());
      return replace(static_cast<int>(arg), set.release());
    }
    case BUILD_MAP: {
      py::Ref map = py::Ref::steal(PyDict_New());
      for (int i = static_cast<int>(arg); map && i > 0; --i)
        if (PyDict_SetItem(map.get(), sp_[-2 * i], sp_[-2 * i + 1]) < 0) return Next::Error;
      if (map) watch_.mark_fresh(map.get());
      return replace(static_cast<int>(2 * arg), map.release());
    }
    case BUILD_CONST_KEY_MAP: {
      py::Ref map = py::Ref::steal(PyDict_New());
      PyObject* keys = sp_[-1];
      for (int i = static_cast<int>(arg); map && i > 0; --i)
        if (PyDict_SetItem(map.get(), PyTuple_GET_ITEM(keys, arg - i), sp_[-1 - i]) < 0) return Next::Error;
      if (map) watch_.mark_fresh(map.get());
      return replace(static_cast<int>(arg) + 1, map.release());
    }
    case BUILD_STRING: {
      py::Ref empty = py::Ref::steal(PyUnicode_New(0, 0));
      return replace(static_cast<int>(arg), _PyUnicode_JoinArray(empty.get(), sp_ - arg, arg));
    }
    case BUILD_SLICE: {
      PyObject* step = arg == 3 ? sp_[-1] : nullptr;
      int extra = arg == 3;
      return replace(static_cast<int>(arg), PySlice_New(sp_[-2 - extra], sp_[-1 - extra], step));
    }
    case FORMAT_VALUE: return format_value(arg);
    case LIST_TO_TUPLE: {
      PyObject* tuple = PyList_AsTuple(sp_[-1]);
      if (tuple) watch_.mark_fresh(tuple);
      return replace(1, tuple);
    }
    case LIST_EXTEND: return list_extend(arg);
    case SET_UPDATE: {
      py::Ref iterable = pop_ref();
      watch_.read_iterable(iterable.get());
      return mg_set_update(sp_[-static_cast<int>(arg)], iterable.get()) < 0 ? Next::Error : Next::Go;
    }
    case DICT_UPDATE: {
      if (!PyDict_Check(sp_[-1])) return leave("{**x} with something that is no dict");
      py::Ref from = pop_ref();
      watch_.read_iterable(from.get());
      return PyDict_Update(sp_[-static_cast<int>(arg)], from.get()) < 0 ? Next::Error : Next::Go;
    }
    case DICT_MERGE: return dict_merge(arg);
    case LIST_APPEND: {
      py::Ref value = pop_ref();
      return PyList_Append(sp_[-static_cast<int>(arg)], value.get()) < 0 ? Next::Error : Next::Go;
    }
    case SET_ADD: {
      py::Ref value = pop_ref();
      return PySet_Add(sp_[-static_cast<int>(arg)], value.get()) < 0 ? Next::Error : Next::Go;
    }
    case MAP_ADD: {
      py::Ref value = pop_ref(), key = pop_ref();
      return PyDict_SetItem(sp_[-static_cast<int>(arg)], key.get(), value.get()) < 0 ? Next::Error : Next::Go;
    }
    case MAKE_FUNCTION: return make_function(arg);
    case UNPACK_SEQUENCE: return unpack(arg);
    case UNPACK_EX: return unpack_with_star(arg);
    default: return step_flow(opcode, arg);
  }
}

// An __iter__ may well hand out an iterator that existed before; one that nobody else holds was made just now.
PyObject* FrameRun::new_iterator(PyObject* iterable) {
  PyObject* iterator = PyObject_GetIter(iterable);
  if (iterator && iterator != iterable && Py_REFCNT(iterator) == 1) watch_.mark_fresh(iterator);
  return iterator;
}

// The iterator that an unpacking goes through.
py::Ref FrameRun::unpacked(PyObject* sequence) {
  watch_.read_iterable(sequence);
  py::Ref iterator = py::Ref::steal(new_iterator(sequence));
  if (iterator) {
    watch_.read_iterator(iterator.get());
  } else if (PyErr_ExceptionMatches(PyExc_TypeError) && !Py_TYPE(sequence)->tp_iter && !PySequence_Check(sequence)) {
    PyErr_Format(PyExc_TypeError, "cannot unpack non-iterable %.200s object", Py_TYPE(sequence)->tp_name);
  }
  return iterator;
}

// The next `count` items; `expected` of them (`at least` that many if so said) were asked for.
bool FrameRun::take_items(PyObject* iterator, Py_ssize_t count, const char* at_least, Py_ssize_t expected,
                          std::vector<py::Ref>* items) {
  for (Py_ssize_t i = 0; i < count; ++i) {
    items->push_back(py::Ref::steal(PyIter_Next(iterator)));
    if (items->back()) continue;
    if (!PyErr_Occurred())
      PyErr_Format(PyExc_ValueError, "not enough values to unpack (expected %s%zd, got %zd)", at_least, expected, i);
    return false;
  }
  return true;
}

Next FrameRun::unpack(uint32_t count) {
  py::Ref sequence = pop_ref();
  auto n = static_cast<Py_ssize_t>(count);
  if ((PyTuple_CheckExact(sequence.get()) || PyList_CheckExact(sequence.get())) &&
      PySequence_Fast_GET_SIZE(sequence.get()) == n) {
    watch_.read_iterable(sequence.get());
    for (Py_ssize_t i = n - 1; i >= 0; --i) push(Py_NewRef(PySequence_Fast_GET_ITEM(sequence.get(), i)));
    return Next::Go;
  }
  py::Ref iterator = unpacked(sequence.get());
  std::vector<py::Ref> items;
  if (!iterator || !take_items(iterator.get(), n, "", n, &items)) return Next::Error;
  py::Ref extra = py::Ref::steal(PyIter_Next(iterator.get()));
  if (extra || PyErr_Occurred()) {
    if (extra) PyErr_Format(PyExc_ValueError, "too many values to unpack (expected %zd)", n);
    return Next::Error;
  }
  for (Py_ssize_t i = n - 1; i >= 0; --i) push(items[i].release());
  return Next::Go;
}

Next FrameRun::unpack_with_star(uint32_t arg) {
  Py_ssize_t before = arg & 0xff, after = arg >> 8;
  py::Ref sequence = pop_ref();
  py::Ref iterator = unpacked(sequence.get());
  std::vector<py::Ref> items;
  if (!iterator || !take_items(iterator.get(), before, "at least ", before + after, &items)) return Next::Error;
  py::Ref rest = py::Ref::steal(PySequence_List(iterator.get()));
  if (!rest) return Next::Error;
  Py_ssize_t size = PyList_GET_SIZE(rest.get());
  if (size < after) {
    PyErr_Format(PyExc_ValueError, "not enough values to unpack (expected at least %zd, got %zd)", before + after,
                 before + size);
    return Next::Error;
  }
  for (Py_ssize_t i = size - 1; i >= size - after; --i) push(Py_NewRef(PyList_GET_ITEM(rest.get(), i)));
  if (after && PyList_SetSlice(rest.get(), size - after, size, nullptr) < 0) return Next::Error;
  watch_.mark_fresh(rest.get());
  push(rest.release());
  for (Py_ssize_t i = before - 1; i >= 0; --i) push(items[i].release());
  return Next::Go;
}

// ---- operators, calls, jumps

Next FrameRun::binary(uint32_t arg) {
  PyObject *left = sp_[-2], *right = sp_[-1];
  watch_.read_operand(left);
  watch_.read_operand(right);
  bool in_place = arg >= NB_INPLACE_ADD;
  if (in_place && watch_.alive() && !watch_.is_tensor(left)) {
    Kind kind = watch_.kind_of(Py_TYPE(left));
    if (kind == Kind::List || kind == Kind::Dict || kind == Kind::Set || kind == Kind::Iterator)
      watch_.mutate(left, "an in-place operator");
  }
  PyObject* result = kBinary[arg](left, right);
  if (result && watch_.alive()) {
    if (watch_.is_tensor(result))
      watch_.check_tensors(result, "an operator");
    else if (result != left && result != right && Py_REFCNT(result) == 1 && !PyLong_CheckExact(result))
      watch_.mark_fresh(result);
  }
  return replace(2, result);
}

Next FrameRun::call(uint32_t arg) {
  bool is_method = sp_[-static_cast<int>(arg) - 2] != nullptr;
  size_t total = arg + is_method;
  PyObject** args = sp_ - total;
  PyObject* names = std::exchange(keyword_names_, nullptr);
  size_t keywords = names ? PyTuple_GET_SIZE(names) : 0;
  PyObject* result = watch_.call(args[-1], args, total - keywords, names);
  Next next = replace(static_cast<int>(arg) + 2, result);
  return next == Next::Go ? serve_break() : next;
}

Next FrameRun::call_with_tuple(uint32_t arg) {
  PyObject* keywords = (arg & 1) ? sp_[-1] : nullptr;
  PyObject** at = sp_ - 1 - (arg & 1);
  if (keywords && !PyDict_CheckExact(keywords)) return leave("** with something that is no dict");
  if (!PyTuple_CheckExact(at[0]) && !PyList_CheckExact(at[0]) && !Py_TYPE(at[0])->tp_iter)
    return leave("* with something that cannot be iterated");
  watch_.read_iterable(at[0]);
  if (keywords) watch_.read_contents(keywords);
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
  PyObject* result =
      watch_.call(at[-1], values.data(), static_cast<size_t>(PyTuple_GET_SIZE(positional.get())), names.get());
  Next next = replace(3 + static_cast<int>(arg & 1), result);
  return next == Next::Go ? serve_break() : next;
}

Next FrameRun::branch(bool jump_if, int target) {
  py::Ref condition = pop_ref();
  watch_.read_truth(condition.get());
  int truth = PyObject_IsTrue(condition.get());
  if (truth < 0) return Next::Error;
  if (truth == static_cast<int>(jump_if)) pc_ = target;
  return Next::Go;
}

Next FrameRun::step_flow(uint8_t opcode, uint32_t arg) {
  int offset = static_cast<int>(arg);
  switch (opcode) {
    case CALL: return call(arg);
    case KW_NAMES:
      keyword_names_ = constants_[arg];
      keyword_names_at_ = code_[at_].restart;
      return Next::Go;
    case CALL_FUNCTION_EX: return call_with_tuple(arg);
    case BINARY_OP: return binary(arg);
    case BINARY_SUBSCR: {
      PyObject *object = sp_[-2], *key = sp_[-1];
      if (PyDict_Check(object))
        watch_.read_dict_key(object, key);
      else
        watch_.read_operand(object);
      watch_.read_operand(key);
      if (Py_TYPE(object)->tp_flags & Py_TPFLAGS_HEAPTYPE) watch_.guards.read_specials(Py_TYPE(object));
      if (PyType_Check(object)) watch_.guards.read_specials((PyTypeObject*)object);  // __class_getitem__
      PyObject* result = PyObject_GetItem(object, key);
      if (result && watch_.is_tensor(object))
        watch_.check_tensors(result, "indexing a tensor");
      else if (result && PyList_CheckExact(result) && Py_REFCNT(result) == 1)
        watch_.mark_fresh(result);
      return replace(2, result);
    }
    case STORE_SUBSCR: {
      py::Ref key = pop_ref(), object = pop_ref(), value = pop_ref();
      watch_.read_operand(key.get());
      watch_.write_item(object.get(), key.get(), value.get());
      return PyObject_SetItem(object.get(), key.get(), value.get()) < 0 ? Next::Error : Next::Go;
    }
    case DELETE_SUBSCR: {
      py::Ref key = pop_ref(), object = pop_ref();
      watch_.write_item(object.get(), key.get(), nullptr);
      return PyObject_DelItem(object.get(), key.get()) < 0 ? Next::Error : Next::Go;
    }
    case COMPARE_OP: {
      watch_.read_operand(sp_[-2]);
      watch_.read_operand(sp_[-1]);
      PyObject* result = PyObject_RichCompare(sp_[-2], sp_[-1], static_cast<int>(arg));
      if (result && watch_.is_tensor(result)) watch_.check_tensors(result, "a comparison");
      return replace(2, result);
    }
    case IS_OP: {
      bool same = sp_[-2] == sp_[-1];
      watch_.compare_identity(sp_[-2], sp_[-1]);
      return replace(2, Py_NewRef(same != static_cast<bool>(arg) ? Py_True : Py_False));
    }
    case CONTAINS_OP: {
      PyObject *item = sp_[-2], *container = sp_[-1];
      if (PyDict_Check(container))
        watch_.read_dict_key(container, item);
      else
        watch_.read_operand(container);
      if (Py_TYPE(container)->tp_flags & Py_TPFLAGS_HEAPTYPE) watch_.guards.read_specials(Py_TYPE(container));
      watch_.read_operand(item);
      int found = PySequence_Contains(container, item);
      if (found < 0) return Next::Error;
      return replace(2, Py_NewRef(found != static_cast<int>(arg) ? Py_True : Py_False));
    }
    case UNARY_NEGATIVE:
    case UNARY_POSITIVE:
    case UNARY_INVERT: {
      watch_.read_operand(sp_[-1]);
      unaryfunc apply = opcode == UNARY_NEGATIVE   ? PyNumber_Negative
                        : opcode == UNARY_POSITIVE ? PyNumber_Positive
                                                   : PyNumber_Invert;
      PyObject* result = apply(sp_[-1]);
      if (result && watch_.is_tensor(result)) watch_.check_tensors(result, "an operator");
      return replace(1, result);
    }
    case UNARY_NOT: {
      watch_.read_truth(sp_[-1]);
      int truth = PyObject_IsTrue(sp_[-1]);
      return truth < 0 ? Next::Error : replace(1, Py_NewRef(truth ? Py_False : Py_True));
    }
    case GET_ITER: {
      watch_.read_iterable(sp_[-1]);
      return replace(1, new_iterator(sp_[-1]));
    }
    case FOR_ITER: {
      PyObject* iterator = sp_[-1];
      watch_.read_iterator(iterator);
      std::optional<ConsumerScope> consumer;
      if (!PyGen_CheckExact(iterator)) consumer.emplace(watch_);
      PyObject* item = Py_TYPE(iterator)->tp_iternext(iterator);
      if (item) {
        if (PyTuple_CheckExact(item) && Py_REFCNT(item) == 1) watch_.mark_fresh(item);
        push(item);
        return Next::Go;
      }
      if (PyErr_Occurred()) {
        if (!PyErr_ExceptionMatches(PyExc_StopIteration)) return Next::Error;
        PyErr_Clear();
      }
      Py_DECREF(pop());
      pc_ += offset;
      return Next::Go;
    }
    case JUMP_FORWARD: pc_ += offset; return Next::Go;
    case JUMP_BACKWARD:
    case JUMP_BACKWARD_NO_INTERRUPT: pc_ -= offset; return Next::Go;
    case POP_JUMP_FORWARD_IF_FALSE: return branch(false, pc_ + offset);
    case POP_JUMP_FORWARD_IF_TRUE: return branch(true, pc_ + offset);
    case POP_JUMP_BACKWARD_IF_FALSE: return branch(false, pc_ - offset);
    case POP_JUMP_BACKWARD_IF_TRUE: return branch(true, pc_ - offset);
    case POP_JUMP_FORWARD_IF_NONE:
    case POP_JUMP_BACKWARD_IF_NONE:
    case POP_JUMP_FORWARD_IF_NOT_NONE:
    case POP_JUMP_BACKWARD_IF_NOT_NONE: {
      py::Ref value = pop_ref();
      bool wants_none = opcode == POP_JUMP_FORWARD_IF_NONE || opcode == POP_JUMP_BACKWARD_IF_NONE;
      bool forward = opcode == POP_JUMP_FORWARD_IF_NONE || opcode == POP_JUMP_FORWARD_IF_NOT_NONE;
      if ((value.get() == Py_None) == wants_none) pc_ += forward ? offset : -offset;
      return Next::Go;
    }
    case JUMP_IF_FALSE_OR_POP:
    case JUMP_IF_TRUE_OR_POP: {
      watch_.read_truth(sp_[-1]);
      int truth = PyObject_IsTrue(sp_[-1]);
      if (truth < 0) return Next::Error;
      if (truth == (opcode == JUMP_IF_TRUE_OR_POP))
        pc_ += offset;
      else
        Py_DECREF(pop());
      return Next::Go;
    }
    default: return step_rare(opcode, arg);
  }
}

// ---- exceptions, with, imports, generators

Next FrameRun::raise(uint32_t arg) {
  if (arg == 0) {
    _PyErr_StackItem* handled = thread_->exc_info;
    while (handled->previous_item && (!handled->exc_value || handled->exc_value == Py_None))
      handled = handled->previous_item;
    PyObject* value = handled->exc_value;
    if (!value || value == Py_None) {
      PyErr_SetString(PyExc_RuntimeError, "No active exception to reraise");
      return Next::Error;
    }
    PyErr_Restore(Py_NewRef((PyObject*)Py_TYPE(value)), Py_NewRef(value), PyException_GetTraceback(value));
    return Next::Raise;
  }
  py::Ref cause = arg == 2 ? pop_ref() : py::Ref();
  py::Ref exception = pop_ref();
  auto instantiate = [&](py::Ref& what) {
    if (!PyExceptionClass_Check(what.get())) return true;
    py::Ref made = py::Ref::steal(watch_.call(what.get(), nullptr, 0, nullptr));
    if (made && !PyExceptionInstance_Check(made.get())) {
      PyErr_Format(PyExc_TypeError, "calling %R should have returned an instance of BaseException, not %R", what.get(),
                   Py_TYPE(made.get()));
      return false;
    }
    what = std::move(made);
    return static_cast<bool>(what);
  };
  if (!instantiate(exception)) return Next::Error;
  if (!PyExceptionInstance_Check(exception.get())) {
    PyErr_SetString(PyExc_TypeError, "exceptions must derive from BaseException");
    return Next::Error;
  }
  if (cause) {
    if (!instantiate(cause)) return Next::Error;
    if (cause.get() != Py_None && !PyExceptionInstance_Check(cause.get())) {
      PyErr_SetString(PyExc_TypeError, "exception causes must derive from BaseException");
      return Next::Error;
    }
    PyException_SetCause(exception.get(), cause.get() == Py_None ? nullptr : cause.release());
  }
  PyErr_SetObject((PyObject*)Py_TYPE(exception.get()), exception.get());
  return Next::Error;
}

Next FrameRun::before_with() {
  static PyObject* enter_name = PyUnicode_InternFromString("__enter__");
  static PyObject* exit_name = PyUnicode_InternFromString("__exit__");
  PyObject* manager = sp_[-1];
  if (!_PyType_Lookup(Py_TYPE(manager), enter_name) || !_PyType_Lookup(Py_TYPE(manager), exit_name))
    return leave("with on something that is no context manager");
  watch_.read_attribute(manager, enter_name);
  watch_.read_attribute(manager, exit_name);
  auto bind = [&](PyObject* name) {
    PyObject* found = _PyType_Lookup(Py_TYPE(manager), name);
    descrgetfunc get = Py_TYPE(found)->tp_descr_get;
    return py::Ref::steal(get ? get(found, manager, (PyObject*)Py_TYPE(manager)) : Py_NewRef(found));
  };
  py::Ref enter = bind(enter_name);
  py::Ref exit = enter ? bind(exit_name) : py::Ref();
  if (!exit) return Next::Error;
  sp_[-1] = exit.release();
  py::Ref owned = py::Ref::steal(manager);
  return push_result(watch_.call(enter.get(), nullptr, 0, nullptr));
}

Next FrameRun::import(PyObject* name) {
  PyObject *from = sp_[-1], *level = sp_[-2];
  PyObject* modules = PyImport_GetModuleDict();
  static PyObject* hook_name = PyUnicode_InternFromString("__import__");
  PyObject* hook = PyDict_GetItemWithError(view_.builtins, hook_name);
  watch_.read_dict_key(view_.builtins, hook_name);
  if (!hook || !PyCFunction_Check(hook)) return leave("an import through a replaced __import__");
  uint64_t before = mg_dict_version(modules);
  PyObject* module;
  {
    runtime::PauseWatch pause;
    module =
        PyImport_ImportModuleLevelObject(name, view_.globals, Py_None, from, static_cast<int>(PyLong_AsLong(level)));
  }
  if (module) {
    if (mg_dict_version(modules) != before) watch_.give_up("the call imports a module for the first time");
    py::Ref full = py::Ref::steal(PyObject_GetAttrString(module, "__name__"));
    if (!full) PyErr_Clear();
    if (full && PyUnicode_Check(full.get())) watch_.read_dict_key(modules, full.get());
    watch_.read_dict_key(modules, name);
  }
  return replace(2, module);
}

Next FrameRun::send(uint32_t arg) {
  py::Ref value = pop_ref();
  PyObject* receiver = sp_[-1];
  watch_.read_iterator(receiver);
  PyObject* result = nullptr;
  PySendResult status = PyIter_Send(receiver, value.get(), &result);
  if (status == PYGEN_ERROR) return Next::Error;
  if (status == PYGEN_NEXT) {
    push(result);
    return Next::Go;
  }
  pc_ += static_cast<int>(arg);
  return replace(1, result);
}

Next FrameRun::step_rare(uint8_t opcode, uint32_t arg) {
  switch (opcode) {
    case PUSH_EXC_INFO: {
      PyObject* exception = sp_[-1];
      _PyErr_StackItem* handled = thread_->exc_info;
      sp_[-1] = handled->exc_value ? handled->exc_value : Py_NewRef(Py_None);
      handled->exc_value = Py_NewRef(exception);
      push(exception);
      return Next::Go;
    }
    case POP_EXCEPT: {
      PyObject* old = thread_->exc_info->exc_value;
      thread_->exc_info->exc_value = pop();
      Py_XDECREF(old);
      return Next::Go;
    }
    case CHECK_EXC_MATCH: {
      PyObject* type = sp_[-1];
      bool valid = PyExceptionClass_Check(type);
      if (PyTuple_Check(type)) {
        valid = true;
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(type); ++i)
          valid &= PyExceptionClass_Check(PyTuple_GET_ITEM(type, i));
      }
      if (!valid) return leave("an except clause with something that is no exception class");
      int matches = PyErr_GivenExceptionMatches(sp_[-2], type);
      return replace(1, Py_NewRef(matches ? Py_True : Py_False));
    }
    case RERAISE: {
      if (arg) *view_.executing = view_.first_code_unit + PyLong_AsLong(sp_[-static_cast<int>(arg) - 1]);
      PyObject* value = pop();
      PyErr_Restore(Py_NewRef((PyObject*)Py_TYPE(value)), value, PyException_GetTraceback(value));
      return Next::Raise;
    }
    case RAISE_VARARGS: return raise(arg);
    case LOAD_ASSERTION_ERROR: push(Py_NewRef(PyExc_AssertionError)); return Next::Go;
    case BEFORE_WITH: return before_with();
    case WITH_EXCEPT_START: {
      PyObject *exit = sp_[-4], *value = sp_[-1];
      py::Ref traceback = py::Ref::steal(PyException_GetTraceback(value));
      PyObject* args[] = {(PyObject*)Py_TYPE(value), value, traceback ? traceback.get() : Py_None};
      return push_result(watch_.call(exit, args, 3, nullptr));
    }
    case IMPORT_NAME: return import(names_[arg]);
    case IMPORT_FROM: {
      PyObject *module = sp_[-1], *value = nullptr;
      if (!PyModule_Check(module)) return leave("an import from something that is no module");
      watch_.read_attribute(module, names_[arg]);
      if (_PyObject_LookupAttr(module, names_[arg], &value) < 0) return Next::Error;
      if (!value) return leave("the import of a name that the module does not have");
      watch_.finish_attribute(module, names_[arg], value);
      push(value);
      return Next::Go;
    }
    case GET_YIELD_FROM_ITER: {
      PyObject* iterable = sp_[-1];
      if (PyCoro_CheckExact(iterable)) return leave("coroutines");
      if (PyGen_CheckExact(iterable)) return Next::Go;
      watch_.read_iterable(iterable);
      return replace(1, new_iterator(iterable));
    }
    case SEND: return send(arg);
    case SWAP: std::swap(sp_[-1], sp_[-static_cast<int>(arg)]); return Next::Go;
    case COPY: push(Py_XNewRef(sp_[-static_cast<int>(arg)])); return Next::Go;
    case POP_TOP: Py_DECREF(pop()); return Next::Go;
    case PUSH_NULL: push(nullptr); return Next::Go;
    case RETURN_GENERATOR: return Next::Generator;
    case RETURN_VALUE:
      result_ = pop();
      watch_.leave_function(result_);
      return Next::Return;
    case YIELD_VALUE:
      if (!view_.generator || !PyGen_CheckExact(view_.generator)) return leave("coroutines");
      result_ = pop();
      watch_.leave_function(result_);
      mg_generator_suspended(view_.generator);
      return Next::Return;
    default: return leave(("bytecode instruction " + std::to_string(opcode)).c_str());
  }
}

// Where CPython looks up from its work, too: signals, other threads.
Next FrameRun::serve_break() {
  if (!mg_must_break(thread_)) [[likely]]
    return Next::Go;
  runtime::PauseWatch pause;
  return mg_serve_break(thread_) < 0 ? Next::Error : Next::Go;
}

Next FrameRun::step() {
  const mg_instruction& instruction = code_[pc_];
  at_ = pc_;
  pc_ = instruction.next;
  *view_.executing = view_.first_code_unit + at_;
  switch (instruction.opcode) {
    case NOP:
    case PRECALL:
    case EXTENDED_ARG: return Next::Go;
    case RESUME:
    case JUMP_BACKWARD:
    case POP_JUMP_BACKWARD_IF_TRUE:
    case POP_JUMP_BACKWARD_IF_FALSE:
    case POP_JUMP_BACKWARD_IF_NONE:
    case POP_JUMP_BACKWARD_IF_NOT_NONE:
      if (++watch_.loops > kMaxLoops) watch_.give_up("the call runs too long to be watched");
      if (instruction.opcode != RESUME || instruction.arg < 2) {  // while a generator delegates, the inner one is asked
        if (thread_->async_exc) return leave("an exception that another thread has sent");
        if (Next next = serve_break(); next != Next::Go) return next;
      }
      if (instruction.opcode == RESUME) return Next::Go;
      [[fallthrough]];
    default: return step_variables(instruction.opcode, instruction.arg);
  }
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
  while (sp_ > keep) Py_XDECREF(*--sp_);
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
  if (Py_REFCNT(value) == 1) watch_.mark_fresh(value);
  Py_XDECREF(type);
  Py_XDECREF(traceback);
  push(value);
  pc_ = found.handler;
  return true;
}

PyObject* FrameRun::run(bool throwing) {
  if (Py_EnterRecursiveCall("")) return nullptr;
  previous_ = mg_frame_take(thread_, frame_);
  Next next = Next::Go;
  if (throwing) {
    at_ = pc_ - 1;
    next = Next::Error;
  }
  for (;;) {
    if (next == Next::Go) {
      if (!watch_.alive()) [[unlikely]] {
        at_ = pc_;
        next = Next::Leave;
      } else {
        next = step();
        if (next == Next::Go) [[likely]]
          continue;
      }
    }
    if (next == Next::Error || next == Next::Raise) {
      if (handle_error(next == Next::Error)) {
        next = Next::Go;
        continue;
      }
      break;
    }
    if (next == Next::Return) break;
    // CPython runs this frame from here on.
    int resume = keyword_names_ ? keyword_names_at_ : code_[at_].restart;
    mg_frame_give_back(thread_, frame_, previous_, sp_);
    mg_frame_resume_before(frame_, resume);
    Py_LeaveRecursiveCall();
    PyObject* result = mg_eval_default(thread_, frame_, 0);
    if (result && next == Next::Generator) watch_.mark_fresh(result);
    return result;
  }
  mg_frame_give_back(thread_, frame_, previous_, sp_);
  Py_LeaveRecursiveCall();
  return result_;
}

constexpr size_t kMaxDepth = 400;  // of watched frames: each takes C stack as well

}  // namespace

PyObject* watch_frame(PyThreadState* thread, mg_frame* frame, int throwing) {
  Watch* watch = Watch::current();
  if (!watch || !watch->alive()) return mg_eval_default(thread, frame, throwing);
  if (mg_is_tracing(thread)) {
    watch->give_up("a debugger or profiler follows the thread");
    return mg_eval_default(thread, frame, throwing);
  }
  if (watch->running.size() >= kMaxDepth) {
    watch->give_up("the call is nested more than " + std::to_string(kMaxDepth) + " Python functions deep");
    return mg_eval_default(thread, frame, throwing);
  }
  mg_frame_view view;
  mg_frame_read(frame, &view);
  if (view.generator) {
    if (!watch->is_fresh(view.generator)) {
      watch->give_up("the call resumes a generator that existed before it");
      return mg_eval_default(thread, frame, throwing);
    }
  } else {
    watch->enter_function(view.function, view.locals);
  }
  const mg_instruction* code = mg_decoded(view.code);
  if (!code) {
    PyErr_Clear();
    watch->give_up("a code object could not be read");
    return mg_eval_default(thread, frame, throwing);
  }
  FrameRun run(*watch, thread, frame, code);
  watch->running.emplace_back(view.code, run.position());
  PyObject* result = run.run(throwing);
  watch->running.pop_back();
  return result;
}

}  // namespace magneto::trace
