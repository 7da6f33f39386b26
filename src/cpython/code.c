// Decodes code objects: plain instructions and the exception table.
#define Py_BUILD_CORE 1
#include <Python.h>

#if PY_VERSION_HEX >= 0x030d0000
#define NEED_OPCODE_METADATA
#include "internal/pycore_opcode_metadata.h"
#else
#define NEED_OPCODE_TABLES
#include "internal/pycore_opcode.h"
#endif
#include <opcode.h>
#include <string.h>

#include "cpython/cpython.h"

int mg_code_units(PyCodeObject* code) { return (int)Py_SIZE(code); }

uint8_t mg_opcode_caches(uint8_t opcode) { return _PyOpcode_Caches[opcode]; }

bool mg_decode(PyCodeObject* code, mg_instruction* instructions) {
  PyObject* bytes = PyCode_GetCode(code);
  if (!bytes) return false;
  const uint8_t* units = (const uint8_t*)PyBytes_AS_STRING(bytes);
  int count = (int)(PyBytes_GET_SIZE(bytes) / 2);
  memset(instructions, 0, sizeof(mg_instruction) * (size_t)count);
  uint32_t extended = 0;
  int restart = -1;
  for (int i = 0; i < count;) {
    uint8_t opcode = units[2 * i];
    uint32_t arg = units[2 * i + 1] | (extended << 8);
    int next = i + 1 + _PyOpcode_Caches[opcode];
    if (restart < 0) restart = i;
    instructions[i] = (mg_instruction){opcode, arg, next, restart};
    if (opcode == EXTENDED_ARG) {
      extended = arg;
    } else {
      extended = 0;
      restart = -1;
    }
    i = next;
  }
  Py_DECREF(bytes);
  return true;
}

// Six bits a byte, most significant first; bit 6 says that more follow.
static const uint8_t* read_varint(const uint8_t* p, int* value) {
  int v = *p & 63;
  while (*p & 64) {
    ++p;
    v = (v << 6) | (*p & 63);
  }
  *value = v;
  return p + 1;
}

bool mg_find_handler(PyCodeObject* code, int index, mg_handler* found) {
  const uint8_t* p = (const uint8_t*)PyBytes_AS_STRING(code->co_exceptiontable);
  const uint8_t* end = p + PyBytes_GET_SIZE(code->co_exceptiontable);
  while (p < end) {
    int start, size, handler, depth_and_flag;
    p = read_varint(p, &start);
    p = read_varint(p, &size);
    p = read_varint(p, &handler);
    p = read_varint(p, &depth_and_flag);
    if (start > index) break;
    if (index < start + size) {
      found->handler = handler;
      found->depth = depth_and_flag >> 1;
      found->push_offset = depth_and_flag & 1;
      return true;
    }
  }
  return false;
}

#if PY_VERSION_HEX >= 0x030c0000
#define REQUEST_EXTRA PyUnstable_Eval_RequestCodeExtraIndex
#define GET_EXTRA PyUnstable_Code_GetExtra
#define SET_EXTRA PyUnstable_Code_SetExtra
#else
#define REQUEST_EXTRA _PyEval_RequestCodeExtraIndex
#define GET_EXTRA _PyCode_GetExtra
#define SET_EXTRA _PyCode_SetExtra
#endif

static void free_decoded(void* decoded) { PyMem_Free(decoded); }

const mg_instruction* mg_decoded(PyCodeObject* code) {
  static Py_ssize_t extra_index = -1;
  if (extra_index < 0) extra_index = REQUEST_EXTRA(free_decoded);
  if (extra_index < 0) {
    PyErr_SetString(PyExc_RuntimeError, "CPython has no room left for data on code objects");
    return NULL;
  }
  void* decoded = NULL;
  if (GET_EXTRA((PyObject*)code, extra_index, &decoded) < 0) return NULL;
  if (decoded) return decoded;
  decoded = PyMem_Calloc((size_t)mg_code_units(code) + 1, sizeof(mg_instruction));
  if (!decoded) return (const mg_instruction*)PyErr_NoMemory();
  if (!mg_decode(code, decoded) || SET_EXTRA((PyObject*)code, extra_index, decoded) < 0) {
    PyMem_Free(decoded);
    return NULL;
  }
  return decoded;
}
