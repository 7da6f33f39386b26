// Follows what an object holds, as the garbage collector would.
#include "guard/deaths.h"

#include "guard/atoms.h"
#include "guard/reads.h"

namespace magneto::guard {

namespace {

struct Search {
  Py_ssize_t ours;
  int left = 1000;  // objects to look at; more are not worth the time

  bool is_quiet(PyObject* object) {
    if (!object || Py_REFCNT(object) > ours || is_atom(object)) return true;
    if (PyType_Check(object)) return true;  // it refers to itself: the collector ends it some time
    PyTypeObject* type = Py_TYPE(object);
    if (type->tp_finalize || type->tp_del || has_weak_references(object) || --left < 0) return false;
    if (PyFunction_Check(object)) {  // its globals outlive it
      auto* function = (PyFunctionObject*)object;
      return is_quiet(function->func_closure) && is_quiet(function->func_defaults) &&
             is_quiet(function->func_kwdefaults) && is_quiet(function->func_dict);
    }
    return holds_quiet(object);
  }

  bool holds_quiet(PyObject* object) {
    if (!PyObject_IS_GC(object) || !Py_TYPE(object)->tp_traverse) return true;
    auto visit = [](PyObject* part, void* search) -> int { return !static_cast<Search*>(search)->is_quiet(part); };
    return Py_TYPE(object)->tp_traverse(object, visit, this) == 0;
  }

  static bool has_weak_references(PyObject* object) {
    return PyType_SUPPORTS_WEAKREFS(Py_TYPE(object)) && *PyObject_GET_WEAKREFS_LISTPTR(object);
  }
};

}  // namespace

bool dies_quietly(PyObject* object, Py_ssize_t ours) { return Search{ours}.is_quiet(object); }

bool drops_quietly(PyObject* container, PyObject* key, Py_ssize_t ours) {
  if (key && PyDict_Check(container)) {
    bool is_unclear = false;
    PyObject* dropped = find_key(container, key, &is_unclear);
    return !is_unclear && dies_quietly(dropped, ours);
  }
  if (key && PyList_Check(container) && PyLong_CheckExact(key)) {
    Py_ssize_t size = PyList_GET_SIZE(container), index = PyLong_AsSsize_t(key);
    PyErr_Clear();
    if (index < 0) index += size;
    return index < 0 || index >= size || dies_quietly(PyList_GET_ITEM(container, index), ours);
  }
  return Search{ours}.holds_quiet(container);
}

}  // namespace magneto::guard
