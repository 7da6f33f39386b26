// The entries of the method tables in which torch's C functions stand.
#pragma once
#include <Python.h>

#include "cpython/ref.h"

namespace magneto::record {

// Of a method descriptor or a C function; null for other objects.
inline PyMethodDef* method_table_entry(PyObject* callable) {
  if (Py_TYPE(callable) == &PyMethodDescr_Type) return reinterpret_cast<PyMethodDescrObject*>(callable)->d_method;
  if (PyCFunction_CheckExact(callable)) return reinterpret_cast<PyCFunctionObject*>(callable)->m_ml;
  return nullptr;
}

// An attribute of a class in the module, or of the module itself; null, without an error, if there is none.
inline py::Ref find_in(PyObject* module, const char* owner, const char* name) {
  py::Ref from = owner ? py::Ref::steal(PyObject_GetAttrString(module, owner)) : py::Ref::borrow(module);
  py::Ref found = from ? py::Ref::steal(PyObject_GetAttrString(from.get(), name)) : py::Ref();
  if (!found) PyErr_Clear();
  return found;
}

}  // namespace magneto::record
