// What the evaluator does with objects in a way of its own: attributes, methods, and building lists, sets and texts.
#define Py_BUILD_CORE 1
#include "cpython/cpython.h"

#if PY_VERSION_HEX >= 0x030d0000
#include "internal/pycore_list.h"
#include "internal/pycore_object.h"
#include "internal/pycore_setobject.h"
#include "internal/pycore_unicodeobject.h"
#endif

bool mg_get_attribute(PyObject* object, PyObject* name, PyObject** value) {
#if PY_VERSION_HEX >= 0x030d0000
  return PyObject_GetOptionalAttr(object, name, value) >= 0;
#else
  return _PyObject_LookupAttr(object, name, value) >= 0;
#endif
}

bool mg_get_method(PyObject* object, PyObject* name, PyObject** method) {
  return _PyObject_GetMethod(object, name, method) != 0;
}

bool mg_list_extend(PyObject* list, PyObject* iterable) {
  PyObject* none = _PyList_Extend((PyListObject*)list, iterable);
  Py_XDECREF(none);
  return none != NULL;
}

bool mg_set_update(PyObject* set, PyObject* iterable) { return _PySet_Update(set, iterable) == 0; }

PyObject* mg_join_texts(PyObject* const* texts, Py_ssize_t count) {
  PyObject* nothing = PyUnicode_New(0, 0);
  PyObject* joined = nothing ? _PyUnicode_JoinArray(nothing, texts, count) : NULL;
  Py_XDECREF(nothing);
  return joined;
}
