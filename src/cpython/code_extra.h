// Data kept with a code object for as long as it lives; for the sources of this folder only.
#pragma once
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

// Gives memory from PyMem_Malloc, or NULL with an error set.
typedef void* (*make_extra)(PyCodeObject* code);

static void free_extra(void* data) { PyMem_Free(data); }

// What `make` gave for this code object the first time; NULL: error set. `slot` is -1 until first used.
static inline void* code_extra(PyCodeObject* code, Py_ssize_t* slot, make_extra make) {
  if (*slot < 0) *slot = REQUEST_EXTRA(free_extra);
  if (*slot < 0) {
    PyErr_SetString(PyExc_RuntimeError, "CPython has no room left for data on code objects");
    return NULL;
  }
  void* data = NULL;
  if (GET_EXTRA((PyObject*)code, *slot, &data) < 0) return NULL;
  if (data) return data;
  data = make(code);
  if (data && SET_EXTRA((PyObject*)code, *slot, data) < 0) {
    PyMem_Free(data);
    return NULL;
  }
  return data;
}
