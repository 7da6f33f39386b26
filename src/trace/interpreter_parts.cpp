// The instructions that build objects, handle exceptions, and serve generators.

#include <vector>

#include "runtime/state.h"
#include "trace/frame_run.h"

namespace magneto::trace {

// ---- building objects

Next FrameRun::list_extend(uint32_t arg) {
  py::Ref iterable = pop_ref();
  PyObject* list = sp_[-static_cast<int>(arg)];
  watch_.read_iterable(iterable.get());
  if (mg_list_extend(list, iterable.get())) return Next::Go;
  if (PyErr_ExceptionMatches(PyExc_TypeError) && !Py_TYPE(iterable.get())->tp_iter &&
      !PySequence_Check(iterable.get())) {
    PyErr_Clear();
    PyErr_Format(PyExc_TypeError, "Value after * must be an iterable, not %.200s", Py_TYPE(iterable.get())->tp_name);
  }
  return Next::Error;
}

Next FrameRun::dict_update(uint32_t arg) {
  static PyObject* keys_name = PyUnicode_InternFromString("keys");
  PyTypeObject* type = Py_TYPE(sp_[-1]);
  bool is_dict = PyDict_Check(sp_[-1]);
  if (!is_dict && (watch_.kind_of(type) != Kind::Instance || !_PyType_Lookup(type, keys_name)))
    return leave("{**x} with something that is no mapping");
  py::Ref from = pop_ref();
  watch_.read_iterable(from.get());
  if (!is_dict)
    watch_.read_attribute(from.get(), keys_name);
  else if (!mg_has_only_text_keys(from.get()))
    watch_.read_deep(from.get());  // __eq__ and __hash__ of the keys
  ConsumerScope consumer(watch_);
  if (PyDict_Update(sp_[-static_cast<int>(arg)], from.get()) == 0) return Next::Go;
  if (PyErr_ExceptionMatches(PyExc_AttributeError))
    PyErr_Format(PyExc_TypeError, "'%.200s' object is not a mapping", type->tp_name);
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

namespace {

// By str, repr or ascii, or as it is.
PyObject* converted(PyObject* value, uint32_t how) {
  switch (how) {
    case 1: return PyObject_Str(value);
    case 2: return PyObject_Repr(value);
    case 3: return PyObject_ASCII(value);
    default: return Py_NewRef(value);
  }
}

void set_attribute(PyObject* made, uint32_t which, PyObject* owned) {
  auto* function = (PyFunctionObject*)made;
  PyObject*& place = which == 8   ? function->func_closure
                     : which == 4 ? function->func_annotations
                     : which == 2 ? function->func_kwdefaults
                                  : function->func_defaults;
  place = owned;
}

}  // namespace

Next FrameRun::format_value(uint32_t arg) {
  PyObject* spec = (arg & 4) ? sp_[-1] : nullptr;
  PyObject* value = spec ? sp_[-2] : sp_[-1];
  watch_.read_printed(value);
  py::Ref text = py::Ref::steal(converted(value, arg & 3));
  if (!text) return Next::Error;
  PyObject* result = PyUnicode_CheckExact(text.get()) && !spec ? text.release() : PyObject_Format(text.get(), spec);
  return replace(spec ? 2 : 1, result);
}

Next FrameRun::make_function(uint32_t flags) {
  py::Ref code = pop_ref();
  PyObject* function = PyFunction_New(code.get(), view_.globals);
  if (!function) return Next::Error;
  for (uint32_t which : {8, 4, 2, 1})
    if (flags & which) set_attribute(function, which, pop());
  watch_.mark_fresh(function);
  push(function);
  return Next::Go;
}

Next FrameRun::step_build(uint8_t operation, uint32_t arg) {
  switch (operation) {
    case MG_BUILD_TUPLE: {
      PyObject* tuple = PyTuple_New(arg);
      if (!tuple) return Next::Error;
      for (int i = static_cast<int>(arg) - 1; i >= 0; --i) PyTuple_SET_ITEM(tuple, i, pop());
      watch_.mark_fresh(tuple);
      push(tuple);
      return Next::Go;
    }
    case MG_BUILD_LIST: {
      PyObject* list = PyList_New(arg);
      if (!list) return Next::Error;
      for (int i = static_cast<int>(arg) - 1; i >= 0; --i) PyList_SET_ITEM(list, i, pop());
      watch_.mark_fresh(list);
      push(list);
      return Next::Go;
    }
    case MG_BUILD_SET: {
      py::Ref set = py::Ref::steal(PySet_New(nullptr));
      for (int i = static_cast<int>(arg); set && i > 0; --i)
        if (read_key(sp_[-i]); PySet_Add(set.get(), sp_[-i]) < 0) return Next::Error;
      if (set) watch_.mark_fresh(set.get());
      return replace(static_cast<int>(arg), set.release());
    }
    case MG_BUILD_MAP: {
      py::Ref map = py::Ref::steal(PyDict_New());
      for (int i = static_cast<int>(arg); map && i > 0; --i)
        if (read_key(sp_[-2 * i]); PyDict_SetItem(map.get(), sp_[-2 * i], sp_[-2 * i + 1]) < 0) return Next::Error;
      if (map) watch_.mark_fresh(map.get());
      return replace(static_cast<int>(2 * arg), map.release());
    }
    case MG_BUILD_CONST_KEY_MAP: {
      py::Ref map = py::Ref::steal(PyDict_New());
      PyObject* keys = sp_[-1];
      for (int i = static_cast<int>(arg); map && i > 0; --i)
        if (PyDict_SetItem(map.get(), PyTuple_GET_ITEM(keys, arg - i), sp_[-1 - i]) < 0) return Next::Error;
      if (map) watch_.mark_fresh(map.get());
      return replace(static_cast<int>(arg) + 1, map.release());
    }
    case MG_BUILD_STRING: {
      return replace(static_cast<int>(arg), mg_join_texts(sp_ - arg, arg));
    }
    case MG_BUILD_SLICE: {
      for (int i = 1; i <= static_cast<int>(arg); ++i) watch_.read_operand(sp_[-i]);  // their __index__
      PyObject* step = arg == 3 ? sp_[-1] : nullptr;
      int extra = arg == 3;
      return replace(static_cast<int>(arg), PySlice_New(sp_[-2 - extra], sp_[-1 - extra], step));
    }
    case MG_FORMAT_VALUE: return format_value(arg);
    case MG_CONVERT_VALUE: watch_.read_printed(sp_[-1]); return replace(1, converted(sp_[-1], arg));
    case MG_LIST_TO_TUPLE: {
      PyObject* tuple = PyList_AsTuple(sp_[-1]);
      if (tuple) watch_.mark_fresh(tuple);
      return replace(1, tuple);
    }
    case MG_LIST_EXTEND: return list_extend(arg);
    case MG_SET_UPDATE: {
      py::Ref iterable = pop_ref();
      watch_.read_iterable(iterable.get());
      if (watch_.kind_of(Py_TYPE(iterable.get())) != Kind::Iterator)
        watch_.read_deep(iterable.get());  // __eq__, __hash__
      ConsumerScope consumer(watch_);
      return mg_set_update(sp_[-static_cast<int>(arg)], iterable.get()) ? Next::Go : Next::Error;
    }
    case MG_DICT_UPDATE: return dict_update(arg);
    case MG_DICT_MERGE: return dict_merge(arg);
    case MG_LIST_APPEND: {
      py::Ref value = pop_ref();
      return PyList_Append(sp_[-static_cast<int>(arg)], value.get()) < 0 ? Next::Error : Next::Go;
    }
    case MG_SET_ADD: {
      py::Ref value = pop_ref();
      read_key(value.get());
      return PySet_Add(sp_[-static_cast<int>(arg)], value.get()) < 0 ? Next::Error : Next::Go;
    }
    case MG_MAP_ADD: {
      py::Ref value = pop_ref(), key = pop_ref();
      read_key(key.get());
      return PyDict_SetItem(sp_[-static_cast<int>(arg)], key.get(), value.get()) < 0 ? Next::Error : Next::Go;
    }
    case MG_MAKE_FUNCTION: return make_function(arg);
    case MG_SET_FUNCTION_ATTRIBUTE:
      set_attribute(sp_[-1], arg, std::exchange(sp_[-2], sp_[-1]));
      --sp_;
      return Next::Go;
    case MG_UNPACK_SEQUENCE: return unpack(arg);
    case MG_UNPACK_EX: return unpack_with_star(arg);
    default: return step_flow(operation, arg);
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
  if (iterator.get() == sequence) {
    watch_.read_iterator(sequence);
  } else if (iterator) {
    watch_.advance_iterator(iterator.get());
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

// ---- exceptions, with, generators

namespace {

bool is_clause_valid(PyObject* type) {
  if (!PyTuple_Check(type)) return PyExceptionClass_Check(type);
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(type); ++i)
    if (!PyExceptionClass_Check(PyTuple_GET_ITEM(type, i))) return false;
  return true;
}

}  // namespace

py::Ref FrameRun::run_alone(int operands, int results, PyObject* name) {
  const mg_instruction& instruction = code_[at_];
  mg_lone_instruction lone{instruction.opcode,
                           name ? 0 : static_cast<int>(instruction.arg),
                           operands,
                           results,
                           view_.globals,
                           view_.names,
                           name};
  return py::Ref::steal(mg_run_instruction(thread_, &lone, sp_ - operands));
}

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

// except*: the groups that a clause takes, and what is left for the next one.
Next FrameRun::split_group() {
  if (!is_clause_valid(sp_[-1])) return leave("an except* clause with something that is no exception class");
  watch_.read_types_of(sp_[-2]);
  py::Ref both = run_alone(2, 2);
  if (!both) return Next::Error;
  PyObject *rest = PyTuple_GET_ITEM(both.get(), 0), *match = PyTuple_GET_ITEM(both.get(), 1);
  mark_groups(rest);
  mark_groups(match);
  replace(2, Py_NewRef(rest));
  push(Py_NewRef(match));
  return Next::Go;
}

// What an except* statement raises in the end, or None.
Next FrameRun::join_groups() {
  py::Ref raised = run_alone(2, 1);
  if (raised) mark_groups(raised.get());
  return replace(2, raised.release());
}

// Groups are split into new ones of the same exceptions.
void FrameRun::mark_groups(PyObject* exception) {
  if (!PyObject_TypeCheck(exception, (PyTypeObject*)PyExc_BaseExceptionGroup)) return;
  watch_.mark_fresh(exception);
  PyObject* inner = ((PyBaseExceptionGroupObject*)exception)->excs;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(inner); ++i) mark_groups(PyTuple_GET_ITEM(inner, i));
}

bool FrameRun::notices_errors() const {
  const runtime::TensorPlug& plug = runtime::tensor_plug();
  mg_handler handler{at_, 0, false};
  for (bool ends_block; mg_find_own_handler(view_.code, handler.handler, &handler, &ends_block);) {
    PyObject* code_or_exit = ends_block ? stack_[handler.depth - 1] : (PyObject*)view_.code;
    if (!plug.ignores_errors(code_or_exit)) return true;
  }
  return false;
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
  watch_.handover.clear();
  watch_.handover.expect(enter.get());
  PyObject* result = watch_.enter_block(enter.get(), sp_);
  NodeId node = watch_.handover.take_returned();
  if (!result) return Next::Error;
  push(result, node);
  return Next::Go;
}

Next FrameRun::send(uint32_t arg) {
  py::Ref value = pop_ref();
  PyObject* receiver = sp_[-1];
  watch_.read_iterator(receiver);
  PyObject* result = nullptr;
  watch_.handover.clear();
  watch_.handover.generator = receiver;
  PySendResult status = PyIter_Send(receiver, value.get(), &result);
  NodeId node = watch_.handover.take_returned();
  if (status == PYGEN_ERROR) return Next::Error;
  if (status == PYGEN_NEXT) {
    push(result, PyGen_CheckExact(receiver) ? node : kKnown);
    return Next::Go;
  }
  pc_ = static_cast<int>(arg);
  return replace(1, result);
}

// An exception leaves the inner generator of `yield from`: StopIteration has its result, others go on.
Next FrameRun::cleanup_throw() {
  PyObject* exception = sp_[-1];
  if (!PyErr_GivenExceptionMatches(exception, PyExc_StopIteration)) {
    PyErr_Restore(Py_NewRef((PyObject*)Py_TYPE(exception)), Py_NewRef(exception), PyException_GetTraceback(exception));
    return Next::Raise;
  }
  PyObject* value = Py_NewRef(((PyStopIterationObject*)exception)->value);
  replace(3, Py_NewRef(Py_None));
  push(value);
  return Next::Go;
}

// An exception leaves a generator: StopIteration would look like its end.
Next FrameRun::forbid_stop_iteration() {
  PyObject* exception = sp_[-1];
  if (!PyErr_GivenExceptionMatches(exception, PyExc_StopIteration)) return Next::Go;
  if (!PyGen_CheckExact(view_.generator)) return leave("coroutines");
  py::Ref message = py::Ref::steal(PyUnicode_FromString("generator raised StopIteration"));
  PyObject* error = message ? PyObject_CallOneArg(PyExc_RuntimeError, message.get()) : nullptr;
  if (!error) return Next::Error;
  PyException_SetCause(error, Py_NewRef(exception));
  PyException_SetContext(error, Py_NewRef(exception));
  watch_.mark_fresh(error);
  return replace(1, error);
}

Next FrameRun::return_value(PyObject* owned, NodeId node) {
  watch_.handover.clear();
  watch_.handover.returned = made_ ? watch_.node_of_new(made_) : node;
  result_ = owned;
  watch_.leave_function(result_);
  return Next::Return;
}

Next FrameRun::yield(bool delegates) {
  if (!view_.generator || !PyGen_CheckExact(view_.generator)) return leave("coroutines");
  NodeId node = is_direct_ ? node_at(sp_ - 1) : kKnown;
  if (node == kKnown) settle_top(1);
  set_node(sp_ - 1, kKnown);
  suspend_nodes();
  result_ = pop();
  watch_.handover.clear();
  watch_.handover.returned = node;
  watch_.leave_function(result_);
  if (mg_is_handled(view_.code, at_)) watch_.open_generators.push_back(view_.generator);
  mg_frame_resume_before(frame_, pc_);
  mg_generator_suspended(view_.generator, delegates);
  return Next::Yield;
}

Next FrameRun::step_rare(uint8_t operation, uint32_t arg) {
  switch (operation) {
    case MG_PUSH_EXC_INFO: {
      PyObject* exception = sp_[-1];
      _PyErr_StackItem* handled = thread_->exc_info;
      sp_[-1] = handled->exc_value ? handled->exc_value : Py_NewRef(Py_None);
      handled->exc_value = Py_NewRef(exception);
      push(exception);
      return Next::Go;
    }
    case MG_POP_EXCEPT: {
      PyObject* old = thread_->exc_info->exc_value;
      PyObject* outer = pop();
      thread_->exc_info->exc_value =
          Py_IsNone(outer) ? nullptr : outer;  // from 3.13 on, None hides what is further out
      if (Py_IsNone(outer)) Py_DECREF(outer);
      Py_XDECREF(old);
      return Next::Go;
    }
    case MG_CHECK_EXC_MATCH: {
      if (!is_clause_valid(sp_[-1])) return leave("an except clause with something that is no exception class");
      int matches = PyErr_GivenExceptionMatches(sp_[-2], sp_[-1]);
      return replace(1, Py_NewRef(matches ? Py_True : Py_False));
    }
    case MG_CHECK_EG_MATCH: return split_group();
    case MG_PREP_RERAISE_STAR: return join_groups();
    case MG_RERAISE: {
      if (arg) *view_.executing = view_.first_code_unit + PyLong_AsLong(sp_[-static_cast<int>(arg) - 1]);
      PyObject* value = pop();
      PyErr_Restore(Py_NewRef((PyObject*)Py_TYPE(value)), value, PyException_GetTraceback(value));
      return Next::Raise;
    }
    case MG_RAISE_VARARGS: return raise(arg);
    case MG_LOAD_ASSERTION_ERROR: push(Py_NewRef(PyExc_AssertionError)); return Next::Go;
    case MG_BEFORE_WITH: return before_with();
    case MG_WITH_EXCEPT_START: {
      PyObject *exit = sp_[-4], *value = sp_[-1];
      py::Ref traceback = py::Ref::steal(PyException_GetTraceback(value));
      PyObject* args[] = {(PyObject*)Py_TYPE(value), value, traceback ? traceback.get() : Py_None};
      return push_result(watch_.call(exit, args, 3, nullptr));
    }
    case MG_GET_YIELD_FROM_ITER: {
      PyObject* iterable = sp_[-1];
      if (PyCoro_CheckExact(iterable)) return leave("coroutines");
      if (PyGen_CheckExact(iterable)) return Next::Go;
      watch_.read_iterable(iterable);
      return replace(1, new_iterator(iterable));
    }
    case MG_SEND: return send(arg);
    case MG_END_SEND: {
      py::Ref value = pop_ref();
      return replace(1, value.release());
    }
    case MG_CLEANUP_THROW: return cleanup_throw();
    case MG_STOP_ITERATION_ERROR: return forbid_stop_iteration();
    case MG_SWAP: std::swap(sp_[-1], sp_[-static_cast<int>(arg)]); return Next::Go;
    case MG_COPY: push(Py_XNewRef(sp_[-static_cast<int>(arg)])); return Next::Go;
    case MG_POP_TOP: Py_DECREF(pop()); return Next::Go;
    case MG_PUSH_NULL: push(nullptr); return Next::Go;
    case MG_RETURN_GENERATOR: return Next::Generator;
    case MG_RETURN_VALUE: {
      if (!is_direct_ || view_.generator || made_) settle_top(1);
      NodeId node = std::exchange(node_at(sp_ - 1), kKnown);
      return return_value(pop(), node);
    }
    case MG_RETURN_CONST: return return_value(Py_NewRef(constants_[arg]), kKnown);
    case MG_YIELD_VALUE: return yield(arg != 0);
    default: return step_match(operation, arg);
  }
}

}  // namespace magneto::trace
