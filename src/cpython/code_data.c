// What can be kept with a code object.
#include "cpython/cpython.h"

#if PY_VERSION_HEX >= 0x030c0000
#define REQUEST_EXTRA PyUnstable_Eval_RequestCodeExtraIndex
#define GET_EXTRA PyUnstable_Code_GetExtra
#define SET_EXTRA PyUnstable_Code_SetExtra
#else
#define REQUEST_EXTRA _PyEval_RequestCodeExtraIndex
#define GET_EXTRA _PyCode_GetExtra
#define SET_EXTRA _PyCode_SetExtra
#endif

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
