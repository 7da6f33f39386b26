// Comparison of atoms; never runs Python code.
#include "guard/atoms.h"

#include <cmath>
#include <cstring>

#include "runtime/tensor_plug.h"

namespace magneto::guard {

using runtime::tensor_plug;

bool is_atom(PyObject* object) {
  PyTypeObject* type = Py_TYPE(object);
  // Two NaNs of the same bits differ, unless they are the same object.
  if (type == &PyFloat_Type) return !std::isnan(PyFloat_AS_DOUBLE(object));
  return object == Py_None || type == &PyLong_Type || type == &PyBool_Type || type == &PyUnicode_Type ||
         type == &PyComplex_Type || type == &PyBytes_Type || object == Py_Ellipsis || object == Py_NotImplemented ||
         (!(type->tp_flags & Py_TPFLAGS_HEAPTYPE) && tensor_plug().is_immutable(type));
}

bool holds_only_atoms(PyObject* object) {
  if (is_atom(object)) return true;
  if (!PyTuple_CheckExact(object)) return false;
  if (Py_EnterRecursiveCall("")) return PyErr_Clear(), false;
  Py_ssize_t i = 0;
  while (i < PyTuple_GET_SIZE(object) && holds_only_atoms(PyTuple_GET_ITEM(object, i))) ++i;
  Py_LeaveRecursiveCall();
  return i == PyTuple_GET_SIZE(object);
}

bool are_one_key(PyObject* a, PyObject* b) {
  int equal = PyObject_RichCompareBool(a, b, Py_EQ);
  if (equal < 0) PyErr_Clear();
  return equal > 0;
}

bool same_atom(PyObject* a, PyObject* b) {
  if (a == b) return true;
  PyTypeObject* type = Py_TYPE(a);
  if (type != Py_TYPE(b) || !is_atom(a)) return false;
  if (type == &PyFloat_Type) {
    double x = PyFloat_AS_DOUBLE(a), y = PyFloat_AS_DOUBLE(b);
    return std::memcmp(&x, &y, sizeof x) == 0;
  }
  if (type == &PyComplex_Type) {
    Py_complex x = ((PyComplexObject*)a)->cval, y = ((PyComplexObject*)b)->cval;
    return std::memcmp(&x, &y, sizeof x) == 0;
  }
  return are_one_key(a, b);
}

}  // namespace magneto::guard
