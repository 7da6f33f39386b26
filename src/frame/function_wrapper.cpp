// The slots that callables around a function share.
#include "frame/function_wrapper.h"

#include <structmember.h>

#include <cstddef>

namespace magneto::frame {

namespace {

FunctionWrapper* as_wrapper(PyObject* object) { return reinterpret_cast<FunctionWrapper*>(object); }

}  // namespace

PyMemberDef kWrapperMembers[] = {
    {"fn", T_OBJECT, offsetof(FunctionWrapper, function), READONLY, "The function as it was written."},
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(FunctionWrapper, vectorcall), READONLY, nullptr},
    {"__dictoffset__", T_PYSSIZET, offsetof(FunctionWrapper, dict), READONLY, nullptr},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(FunctionWrapper, weak_references), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr}};

int traverse_wrapper(PyObject* object, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(object));
  Py_VISIT(as_wrapper(object)->function);
  Py_VISIT(as_wrapper(object)->dict);
  return 0;
}

int clear_wrapper(PyObject* object) {
  Py_CLEAR(as_wrapper(object)->dict);
  return 0;
}

void destroy_wrapper(PyObject* object) {
  PyTypeObject* type = Py_TYPE(object);
  PyObject_GC_UnTrack(object);
  if (as_wrapper(object)->weak_references) PyObject_ClearWeakRefs(object);
  type->tp_clear(object);
  Py_CLEAR(as_wrapper(object)->function);
  type->tp_free(object);
  Py_DECREF(type);
}

PyObject* reduce_wrapper(PyObject* object, PyObject*) {
  PyObject* name = PyObject_GetAttrString(object, "__qualname__");
  if (name && PyUnicode_Check(name)) return name;
  if (name || PyErr_ExceptionMatches(PyExc_AttributeError))
    PyErr_Format(PyExc_TypeError, "cannot pickle %R: it has no name under which it could be found again", object);
  Py_XDECREF(name);
  return nullptr;
}

PyObject* bind_wrapper(PyObject* object, PyObject* instance, PyObject*) {
  if (!instance || instance == Py_None) return Py_NewRef(object);
  return PyMethod_New(object, instance);
}

}  // namespace magneto::frame
