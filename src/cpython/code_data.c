// What can be kept with a code object.
#include "cpython/code_extra.h"

Py_ssize_t mg_code_data_slot(void (*free_data)(void*)) {
  Py_ssize_t slot = REQUEST_EXTRA(free_data);
  if (slot < 0) PyErr_SetString(PyExc_RuntimeError, "CPython has no room left for data on code objects");
  return slot;
}

void* mg_code_data(PyCodeObject* code, Py_ssize_t slot) {
  void* data = NULL;
  GET_EXTRA((PyObject*)code, slot, &data);  // fails for what is not a code object only
  return data;
}

bool mg_set_code_data(PyCodeObject* code, Py_ssize_t slot, void* data) {
  return SET_EXTRA((PyObject*)code, slot, data) == 0;
}
