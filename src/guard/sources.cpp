// Looks into objects as CPython stores them.
#include "guard/sources.h"

#include <structmember.h>

#include <cstring>
#include <utility>

#include "cpython/cpython.h"
#include "guard/atoms.h"

namespace magneto::guard {

namespace {

bool is_heap_type(PyTypeObject* type) { return type->tp_flags & Py_TPFLAGS_HEAPTYPE; }

bool is_named(PyObject* name, const char* text) { return PyUnicode_CompareWithASCIIString(name, text) == 0; }

// Whether a class attribute goes before the instance's own is decided by its class.
void note_descriptor(PyObject* descriptor, Reads* reads) {
  if (!reads || !is_heap_type(Py_TYPE(descriptor))) return;
  reads->read_class(descriptor);
  reads->read_specials(Py_TYPE(descriptor));
}

PyObject** function_field(PyFunctionObject* function, PyObject* name) {
  if (is_named(name, "__code__")) return &function->func_code;
  if (is_named(name, "__defaults__")) return &function->func_defaults;
  if (is_named(name, "__kwdefaults__")) return &function->func_kwdefaults;
  if (is_named(name, "__name__")) return &function->func_name;
  if (is_named(name, "__qualname__")) return &function->func_qualname;
  return nullptr;
}

std::pair<lenfunc, lenfunc> length_slots(PyTypeObject* type) {
  return {type->tp_as_mapping ? type->tp_as_mapping->mp_length : nullptr,
          type->tp_as_sequence ? type->tp_as_sequence->sq_length : nullptr};
}

// Where the value of a slot is; null if the descriptor stands for something else.
PyObject** slot_field(PyObject* object, PyObject* descriptor) {
  if (Py_TYPE(descriptor) != &PyMemberDescr_Type || !PyObject_TypeCheck(object, PyDescr_TYPE(descriptor)))
    return nullptr;
  const PyMemberDef* member = ((PyMemberDescrObject*)descriptor)->d_member;
  if (member->type != T_OBJECT_EX && member->type != T_OBJECT) return nullptr;
  return reinterpret_cast<PyObject**>(reinterpret_cast<char*>(object) + member->offset);
}

// Only slots of Python classes can be empty; elsewhere CPython says None.
bool can_be_empty(PyObject* descriptor) {
  return Py_TYPE(descriptor) == &PyMemberDescr_Type &&
         ((PyMemberDescrObject*)descriptor)->d_member->type == T_OBJECT_EX;
}

// Of a list, tuple, dict or set: whether its class leaves the length to it.
bool has_own_length(PyObject* object) {
  PyTypeObject* type = Py_TYPE(object);
  for (PyTypeObject* container : {&PyList_Type, &PyTuple_Type, &PyDict_Type, &PySet_Type, &PyFrozenSet_Type})
    if (PyType_IsSubtype(type, container)) return length_slots(type) == length_slots(container);
  return false;
}

// What an attribute is that the class gives to all instances.
PyObject* find_through(PyObject* descriptor, PyObject* object, PyObject* name, Reads* reads) {
  if (Py_TYPE(descriptor) == &PyGetSetDescr_Type && is_named(name, "__class__")) return (PyObject*)Py_TYPE(object);
  if (Py_TYPE(descriptor) == &PyGetSetDescr_Type && is_named(name, "__dict__")) {  // noted with the instance
    PyObject** slot = mg_dict_slot(object);
    return slot ? *slot : descriptor;
  }
  PyObject** field = slot_field(object, descriptor);
  if (!field && PyFunction_Check(object)) field = function_field((PyFunctionObject*)object, name);
  if (!field) return descriptor;
  if (reads) reads->read_slot(object, descriptor, *field);
  return *field || can_be_empty(descriptor) ? *field : Py_None;
}

}  // namespace

PyObject* find_attribute(PyObject* object, PyObject* name, Reads* reads) {
  bool is_class = PyType_Check(object);
  auto* type = is_class ? (PyTypeObject*)object : Py_TYPE(object);
  if (reads) {
    if (is_class)
      reads->read_class(object);
    else
      reads->read_instance(object);
    reads->read_type(type, name);
  }
  PyObject* found = _PyType_Lookup(type, name);
  if (is_class && !found) {  // what it gets from its own class
    if (reads) reads->read_type(Py_TYPE(object), name);
    found = _PyType_Lookup(Py_TYPE(object), name);
  }
  if (is_class) return found;
  if (found) note_descriptor(found, reads);
  if (found && Py_TYPE(found)->tp_descr_set) return find_through(found, object, name, reads);
  PyObject** slot = mg_dict_slot(object);
  if (!slot || !*slot) return found;
  PyObject* own = find_key(*slot, name);
  if (reads) reads->read_key(*slot, name, own);
  return own ? own : found;
}

PyObject* find_item(PyObject* object, PyObject* key, Reads* reads) {
  if (reads) reads->read_class(object);
  if (PyDict_Check(object)) {
    PyObject* item = find_key(object, key);
    if (reads) reads->read_key(object, key, item);
    return item;
  }
  if ((!PyList_Check(object) && !PyTuple_Check(object)) || !PyLong_CheckExact(key)) return nullptr;
  if (reads && PyList_Check(object)) reads->read_list(object);  // tuples are noted by whoever leads to them
  Py_ssize_t index = PyLong_AsSsize_t(key);
  if (index == -1) PyErr_Clear();
  return index >= 0 && index < PySequence_Fast_GET_SIZE(object) ? PySequence_Fast_GET_ITEM(object, index) : nullptr;
}

PyObject* find_namespace(PyObject* object, Reads* reads) {
  if (PyFunction_Check(object)) {
    if (reads) reads->read_function((PyFunctionObject*)object);
    return PyFunction_GET_GLOBALS(object);
  }
  if (!PyModule_Check(object)) return nullptr;
  if (reads) reads->read_class(object);
  return PyModule_GetDict(object);
}

PyObject* find_in_closure(PyObject* function, Py_ssize_t index, Reads* reads) {
  if (reads) reads->read_function((PyFunctionObject*)function);
  PyObject* cells = PyFunction_GET_CLOSURE(function);
  if (!cells || index >= PyTuple_GET_SIZE(cells)) return nullptr;
  PyObject* cell = PyTuple_GET_ITEM(cells, index);
  if (reads) reads->read_cell(cell, PyCell_GET(cell));
  return PyCell_GET(cell);
}

Py_ssize_t find_length(PyObject* object, Reads* reads) {
  if (PyUnicode_CheckExact(object)) return PyUnicode_GET_LENGTH(object);
  if (PyBytes_CheckExact(object)) return PyBytes_GET_SIZE(object);
  if (!has_own_length(object)) return -1;
  if (reads) reads->read_length(object);
  if (reads && is_heap_type(Py_TYPE(object))) reads->read_specials(Py_TYPE(object));
  if (PyDict_Check(object)) return PyDict_GET_SIZE(object);
  return PyAnySet_Check(object) ? PySet_GET_SIZE(object) : PySequence_Fast_GET_SIZE(object);
}

int find_truth(PyObject* object, Reads* reads) {
  PyTypeObject* type = Py_TYPE(object);
  bool is_own = !type->tp_as_number || !type->tp_as_number->nb_bool;
  if (is_own && has_own_length(object)) return find_length(object, reads) > 0;
  if (object == Py_NotImplemented) return -1;  // warns
  if (is_constant(object)) {
    int truth = PyObject_IsTrue(object);
    if (truth < 0) PyErr_Clear();
    return truth;
  }
  if (reads) {
    reads->read_class(object);
    if (is_heap_type(type)) reads->read_specials(type);
  }
  bool has_code = (type->tp_as_number && type->tp_as_number->nb_bool) ||
                  (type->tp_as_mapping && type->tp_as_mapping->mp_length) ||
                  (type->tp_as_sequence && type->tp_as_sequence->sq_length);
  return has_code ? -1 : 1;
}

py::Ref find_keys(PyObject* object, Reads* reads) {
  if (!PyDict_Check(object)) return {};
  Py_ssize_t position = 0;
  PyObject *key, *value;
  while (PyDict_Next(object, &position, &key, &value))
    if (!is_atom(key)) return {};  // an ordered dict would ask it for its hash
  if (reads) reads->read_class(object), reads->read_items(object);
  PyTypeObject* kind = PyODict_Check(object) ? &PyODict_Type : &PyDict_Type;
  py::Ref iterator = py::Ref::steal(kind->tp_iter(object));
  py::Ref keys = iterator ? py::Ref::steal(PySequence_Tuple(iterator.get())) : py::Ref();
  if (!keys) PyErr_Clear();
  return keys;
}

bool is_constant(PyObject* object) {
  if (!PyTuple_CheckExact(object)) return is_atom(object) || PyFloat_CheckExact(object);
  // A tuple cannot hold itself without help from C, but it may be deep.
  if (Py_EnterRecursiveCall(" while looking at a constant")) return PyErr_Clear(), false;
  bool all = true;
  for (Py_ssize_t i = 0; all && i < PyTuple_GET_SIZE(object); ++i) all = is_constant(PyTuple_GET_ITEM(object, i));
  Py_LeaveRecursiveCall();
  return all;
}

bool same_constant(PyObject* a, PyObject* b) {
  if (a == b) return true;
  if (Py_TYPE(a) != Py_TYPE(b)) return false;
  if (PyFloat_CheckExact(a)) {
    double x = PyFloat_AS_DOUBLE(a), y = PyFloat_AS_DOUBLE(b);
    return std::memcmp(&x, &y, sizeof x) == 0;
  }
  if (!PyTuple_CheckExact(a)) return same_atom(a, b);
  if (PyTuple_GET_SIZE(a) != PyTuple_GET_SIZE(b)) return false;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(a); ++i)
    if (!same_constant(PyTuple_GET_ITEM(a, i), PyTuple_GET_ITEM(b, i))) return false;
  return true;
}

}  // namespace magneto::guard
