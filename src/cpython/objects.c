// Private facts about objects: dict and type versions, where __dict__ lives, bound slot wrappers.
#define Py_BUILD_CORE 1
#include <Python.h>

#include "internal/pycore_object.h"
#if PY_VERSION_HEX >= 0x030d0000
#include "internal/pycore_descrobject.h"
#include "internal/pycore_setobject.h"
#endif

#include "cpython/cpython.h"

uint64_t mg_dict_version(PyObject* dict) { return ((PyDictObject*)dict)->ma_version_tag; }

PyObject** mg_dict_slot(PyObject* object) {
#if PY_VERSION_HEX >= 0x030c0000
  // An object that keeps its values inline has no dict to speak of until somebody asks for it.
  if (Py_TYPE(object)->tp_flags & Py_TPFLAGS_MANAGED_DICT) {
    PyObject* dict = PyObject_GenericGetDict(object, NULL);
    if (!dict) {
      PyErr_Clear();
      return NULL;
    }
    Py_DECREF(dict);
  }
#endif
#if PY_VERSION_HEX >= 0x030d0000
  if (Py_TYPE(object)->tp_flags & Py_TPFLAGS_MANAGED_DICT) {
    return (PyObject**)&_PyObject_ManagedDictPointer(object)->dict;
  }
  return _PyObject_ComputedDictPointer(object);
#elif PY_VERSION_HEX >= 0x030c0000
  if (Py_TYPE(object)->tp_flags & Py_TPFLAGS_MANAGED_DICT) {
    return (PyObject**)&_PyObject_DictOrValuesPointer(object)->dict;
  }
  return _PyObject_ComputedDictPointer(object);
#else
  PyObject** slot = _PyObject_GetDictPtr(object);
  if (!slot) PyErr_Clear();
  return slot;
#endif
}

unsigned int mg_type_version(PyTypeObject* type) {
#if PY_VERSION_HEX < 0x030d0000
  if (!(type->tp_flags & Py_TPFLAGS_VALID_VERSION_TAG)) return 0;
#endif
  return type->tp_version_tag;
}

bool mg_method_wrapper(PyObject* object, PyWrapperDescrObject** descriptor, PyObject** self) {
  struct wrapper {
    PyObject_HEAD
    PyWrapperDescrObject* descriptor;
    PyObject* self;
  };
  if (Py_TYPE(object) != &_PyMethodWrapper_Type) return false;
  *descriptor = ((struct wrapper*)object)->descriptor;
  *self = ((struct wrapper*)object)->self;
  return true;
}

int mg_set_update(PyObject* set, PyObject* iterable) { return _PySet_Update(set, iterable); }

PyObject* mg_lru_cache_dict(PyObject* wrapper) {
  struct lru_cache {
    PyObject_HEAD
    void *previous, *next;
    Py_hash_t hash;
    PyObject *key, *result;
    void* call;
    int typed;
    PyObject* cache;
    Py_ssize_t hits;
    PyObject* function;
  };
  struct lru_cache* lru = (struct lru_cache*)wrapper;
  if (Py_TYPE(wrapper)->tp_basicsize < (Py_ssize_t)sizeof *lru) return NULL;
  // The layout is private: believe it only if the function is where it says.
  PyObject* function = PyObject_GetAttrString(wrapper, "__wrapped__");
  if (!function) PyErr_Clear();
  bool as_expected = function && lru->function == function;
  Py_XDECREF(function);
  return as_expected && lru->cache && PyDict_CheckExact(lru->cache) ? lru->cache : NULL;
}
