// What decoding code objects shares, and data kept with them for as long as they live; for the sources of this folder
// only.
#pragma once
#include "cpython/cpython.h"

// Fills in `operation` and `operand` of decoded instructions, and joins those that are one operation.
void translate(mg_instruction* code, int count);

// Gives memory from PyMem_Malloc, or NULL with an error set.
typedef void* (*make_extra)(PyCodeObject* code);

static void free_extra(void* data) { PyMem_Free(data); }

// What `make` gave for this code object the first time; NULL: error set. `slot` is -1 until first used.
static inline void* code_extra(PyCodeObject* code, Py_ssize_t* slot, make_extra make) {
  if (*slot < 0) *slot = mg_code_data_slot(free_extra);
  if (*slot < 0) return NULL;
  void* data = mg_code_data(code, *slot);
  if (data) return data;
  data = make(code);
  if (data && !mg_set_code_data(code, *slot, data)) {
    PyMem_Free(data);
    return NULL;
  }
  return data;
}
