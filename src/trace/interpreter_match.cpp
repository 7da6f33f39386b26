// The instructions of match statements.
#include "trace/frame_run.h"

namespace magneto::trace {

namespace {

// 1: it is new in the set, 0: it was there, -1: error set.
int add_once(PyObject* set, PyObject* item) {
  int known = PySet_Contains(set, item);
  if (known) return known < 0 ? -1 : 0;
  return PySet_Add(set, item) < 0 ? -1 : 1;
}

}  // namespace

Next FrameRun::push_parts(Parts parts) {
  py::Ref tuple = py::Ref::steal(PyTuple_New(static_cast<Py_ssize_t>(parts.size())));
  if (!tuple) return Next::Error;
  std::vector<NodeId> nodes;
  bool any = false;
  for (auto& [value, node] : parts) {
    if (watch_.provenance.is_known(node)) node = kKnown;
    any |= node != kKnown;
    PyTuple_SET_ITEM(tuple.get(), nodes.size(), value.release());
    nodes.push_back(node);
  }
  watch_.mark_fresh(tuple.get());
  NodeId holder = any ? watch_.provenance.add_holder(tuple.get(), std::move(nodes)) : kKnown;
  push(tuple.release(), holder);
  return Next::Go;
}

// Whether the class of the top counts as a sequence or a mapping, as abstract base classes may have it do.
Next FrameRun::match_flag(unsigned long flag) {
  PyTypeObject* type = Py_TYPE(sp_[-1]);
  if (watch_.alive() && type->tp_flags & Py_TPFLAGS_HEAPTYPE) {
    watch_.read_types_of(sp_[-1]);
    watch_.guards.read_abc_registry();
  }
  push(Py_NewRef(type->tp_flags & flag ? Py_True : Py_False));
  return Next::Go;
}

Next FrameRun::get_length() {
  watch_.read_truth(sp_[-1]);
  ConsumerScope consumer(watch_);
  Py_ssize_t length = PyObject_Size(sp_[-1]);
  return length < 0 ? Next::Error : push_result(PyLong_FromSsize_t(length));
}

// subject.get(key) for each key; false: error set, or, with no parts, one is missing.
bool FrameRun::get_values(PyObject* subject, PyObject* keys, Parts* parts) {
  static PyObject* get_name = PyUnicode_InternFromString("get");
  bool is_dict = PyDict_CheckExact(subject), takes_self = false;
  py::Ref get;
  if (!is_dict) {
    watch_.read_attribute(subject, get_name);
    PyObject* method = nullptr;
    takes_self = mg_get_method(subject, get_name, &method);
    if (!method) return false;
    get = py::Ref::steal(method);
    if (!takes_self) watch_.finish_attribute(subject, get_name, method);
  }
  py::Ref seen = py::Ref::steal(PySet_New(nullptr));
  py::Ref missing = py::Ref::steal(seen ? PyObject_CallNoArgs((PyObject*)&PyBaseObject_Type) : nullptr);
  if (!missing) return false;
  watch_.mark_fresh(missing.get());
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(keys); ++i) {
    PyObject* key = PyTuple_GET_ITEM(keys, i);
    read_key(key);
    if (int added = add_once(seen.get(), key); added <= 0) {
      if (!added) PyErr_Format(PyExc_ValueError, "mapping pattern checks duplicate key (%R)", key);
      return false;
    }
    NodeId node = kKnown;
    py::Ref value;
    if (is_dict) {
      node = watch_.look_up_key(subject, key);
      ConsumerScope consumer(watch_);
      value = py::Ref::borrow(PyDict_GetItemWithError(subject, key));
      if (value) node = watch_.carried(node, value.get());
    } else {
      PyObject* args[] = {subject, key, missing.get()};
      value = py::Ref::steal(watch_.call(get.get(), args + !takes_self, 2 + takes_self, nullptr));
    }
    if (!value || value.get() == missing.get()) return parts->clear(), false;
    parts->emplace_back(std::move(value), node);
  }
  return true;
}

Next FrameRun::match_keys() {
  PyObject *subject = sp_[-2], *keys = sp_[-1];
  Parts parts;
  bool found = !PyTuple_GET_SIZE(keys) || get_values(subject, keys, &parts);
  if (found) return push_parts(std::move(parts));
  return PyErr_Occurred() ? Next::Error : push_result(Py_NewRef(Py_None));
}

// One attribute of the subject; false: error set, or it has none.
bool FrameRun::match_attribute(PyTypeObject* type, PyObject* name, PyObject* seen, Parts* parts) {
  PyObject* subject = sp_[-3];
  if (int added = add_once(seen, name); added <= 0) {
    if (!added) PyErr_Format(PyExc_TypeError, "%s() got multiple sub-patterns for attribute %R", type->tp_name, name);
    return false;
  }
  NodeId node = watch_.look_up_attribute(subject, name);
  PyObject* value = nullptr;
  if (!mg_get_attribute(subject, name, &value) || !value) return false;
  watch_.finish_attribute(subject, name, value);
  parts->emplace_back(py::Ref::steal(value), watch_.carried(node, value));
  return true;
}

// The attributes that the class lists for positions, then those with names; false: error set, or one is missing.
bool FrameRun::match_attributes(PyTypeObject* type, PyObject* names, uint32_t positional, Parts* parts) {
  static PyObject* match_args_name = PyUnicode_InternFromString("__match_args__");
  py::Ref seen = py::Ref::steal(PySet_New(nullptr)), match_args;
  if (!seen) return false;
  if (positional) {
    PyObject* found = nullptr;
    watch_.read_attribute((PyObject*)type, match_args_name);
    if (!mg_get_attribute((PyObject*)type, match_args_name, &found)) return false;
    match_args = py::Ref::steal(found);
    if (found) watch_.finish_attribute((PyObject*)type, match_args_name, found);
    if (found && !PyTuple_CheckExact(found)) {
      PyErr_Format(PyExc_TypeError, "%s.__match_args__ must be a tuple (got %s)", type->tp_name,
                   Py_TYPE(found)->tp_name);
      return false;
    }
    bool is_whole = !found && type->tp_flags & _Py_TPFLAGS_MATCH_SELF;
    Py_ssize_t allowed = is_whole ? 1 : found ? PyTuple_GET_SIZE(found) : 0;
    if (allowed < static_cast<Py_ssize_t>(positional)) {
      PyErr_Format(PyExc_TypeError, "%s() accepts %zd positional sub-pattern%s (%u given)", type->tp_name, allowed,
                   allowed == 1 ? "" : "s", positional);
      return false;
    }
    if (is_whole) parts->emplace_back(py::Ref::borrow(sp_[-3]), node_at(sp_ - 3));
  }
  for (Py_ssize_t i = 0; match_args && i < static_cast<Py_ssize_t>(positional); ++i) {
    PyObject* name = PyTuple_GET_ITEM(match_args.get(), i);
    if (!PyUnicode_CheckExact(name)) {
      PyErr_Format(PyExc_TypeError, "__match_args__ elements must be strings (got %s)", Py_TYPE(name)->tp_name);
      return false;
    }
    if (!match_attribute(type, name, seen.get(), parts)) return false;
  }
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(names); ++i)
    if (!match_attribute(type, PyTuple_GET_ITEM(names, i), seen.get(), parts)) return false;
  return true;
}

Next FrameRun::match_class(uint32_t positional) {
  PyObject *subject = sp_[-3], *type = sp_[-2], *names = sp_[-1];
  if (!PyType_Check(type)) return replace(3, run_alone(3, 1).release());  // an error
  int matches = watch_.is_instance(subject, type);
  Parts parts;
  bool found = matches > 0 && match_attributes((PyTypeObject*)type, names, positional, &parts);
  if (PyErr_Occurred()) return Next::Error;
  for (int i = 0; i < 3; ++i) {
    set_node(sp_ - 1, kKnown);
    Py_DECREF(pop());
  }
  return found ? push_parts(std::move(parts)) : push_result(Py_NewRef(Py_None));
}

Next FrameRun::step_match(uint8_t operation, uint32_t arg) {
  switch (operation) {
    case MG_MATCH_SEQUENCE: return match_flag(Py_TPFLAGS_SEQUENCE);
    case MG_MATCH_MAPPING: return match_flag(Py_TPFLAGS_MAPPING);
    case MG_GET_LEN: return get_length();
    case MG_MATCH_KEYS: return match_keys();
    case MG_MATCH_CLASS: return match_class(arg);
    default: return step_scopes(operation, arg);
  }
}

}  // namespace magneto::trace
