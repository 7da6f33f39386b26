// Decodes code objects: plain instructions, the exception table, lines.
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

#include "cpython/code_extra.h"

int mg_code_units(PyCodeObject* code) { return (int)Py_SIZE(code); }

#ifndef KW_NAMES
#define KW_NAMES (-1)
#endif

uint8_t mg_opcode_caches(uint8_t opcode) { return _PyOpcode_Caches[opcode]; }

bool mg_decode(PyCodeObject* code, mg_instruction* instructions) {
  PyObject* bytes = PyCode_GetCode(code);
  if (!bytes) return false;
  const uint8_t* units = (const uint8_t*)PyBytes_AS_STRING(bytes);
  int count = (int)(PyBytes_GET_SIZE(bytes) / 2);
  memset(instructions, 0, sizeof(mg_instruction) * (size_t)count);
  uint32_t extended = 0;
  int restart = -1;  // -1: the next instruction stands for itself
  bool keywords = false;
  for (int i = 0; i < count;) {
    int opcode = units[2 * i];
    uint32_t arg = units[2 * i + 1] | (extended << 8);
    int next = i + 1 + _PyOpcode_Caches[opcode];
    if (restart < 0) restart = i;
    instructions[i] =
        (mg_instruction){.opcode = (uint8_t)opcode, .arg = arg, .next = next, .lead = (uint16_t)(i - restart)};
    bool extended_follows = opcode == EXTENDED_ARG;
    extended = extended_follows ? arg : 0;
    // KW_NAMES leaves the names in the evaluator, outside the frame: it is part of the call that follows.
    keywords = opcode == KW_NAMES || (keywords && opcode != CALL);
    if (!extended_follows && !keywords) restart = -1;
    i = next;
  }
  Py_DECREF(bytes);
  translate(instructions, count);
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

typedef struct {
  int start, size;
  mg_handler handler;
} handler_range;

static const uint8_t* read_range(const uint8_t* p, handler_range* range) {
  int depth_and_flag;
  p = read_varint(p, &range->start);
  p = read_varint(p, &range->size);
  p = read_varint(p, &range->handler.handler);
  p = read_varint(p, &depth_and_flag);
  range->handler.depth = depth_and_flag >> 1;
  range->handler.push_offset = depth_and_flag & 1;
  return p;
}

bool mg_find_handler(PyCodeObject* code, int index, mg_handler* found) {
  const uint8_t* p = (const uint8_t*)PyBytes_AS_STRING(code->co_exceptiontable);
  const uint8_t* end = p + PyBytes_GET_SIZE(code->co_exceptiontable);
  while (p < end) {
    handler_range range;
    p = read_range(p, &range);
    if (range.start > index) break;
    if (index < range.start + range.size) {
      *found = range.handler;
      return true;
    }
  }
  return false;
}

bool mg_find_own_handler(PyCodeObject* code, int index, mg_handler* found, bool* ends_block) {
  const mg_instruction* decoded = mg_decoded(code);
  *ends_block = false;
  if (!decoded) return PyErr_Clear(), true;
  for (int around = 0; around < CO_MAXBLOCKS; ++around, index = found->handler) {
    if (!mg_find_handler(code, index, found)) return false;
    const mg_instruction* first = &decoded[found->handler];
    if (first->opcode != PUSH_EXC_INFO) continue;
    *ends_block = decoded[first->next].opcode == WITH_EXCEPT_START;
    return true;
  }
  return true;
}

bool mg_is_handled(PyCodeObject* code, int index) {
  mg_handler found;
  bool ends_block;
  return mg_find_own_handler(code, index, &found, &ends_block);
}

void mg_handlers(PyCodeObject* code, mg_handler* handlers) {
  int units = mg_code_units(code);
  for (int i = 0; i < units; ++i) handlers[i].handler = -1;
  const uint8_t* p = (const uint8_t*)PyBytes_AS_STRING(code->co_exceptiontable);
  const uint8_t* end = p + PyBytes_GET_SIZE(code->co_exceptiontable);
  while (p < end) {
    handler_range range;
    p = read_range(p, &range);
    for (int i = range.start; i < range.start + range.size && i < units; ++i) handlers[i] = range.handler;
  }
}

int mg_line(PyCodeObject* code, int index) { return PyCode_Addr2Line(code, 2 * index); }

static void* make_decoded(PyCodeObject* code) {
  mg_instruction* decoded = PyMem_Calloc((size_t)mg_code_units(code) + 1, sizeof *decoded);
  if (!decoded) return PyErr_NoMemory();
  if (mg_decode(code, decoded)) return decoded;
  PyMem_Free(decoded);
  return NULL;
}

const mg_instruction* mg_decoded(PyCodeObject* code) {
  static Py_ssize_t slot = -1;
  return code_extra(code, &slot, make_decoded);
}
