// What the value stack holds before each instruction: how much, and where it saved the exception of an outer handler.
#define Py_BUILD_CORE 1
#include <Python.h>
#include <opcode.h>

#include "cpython/code_extra.h"

// Where on the stack the running handlers saved the exceptions of the handlers around them, outermost first. CPython
// compiles no deeper nesting.
typedef struct {
  int32_t count;
  int32_t positions[CO_MAXBLOCKS];
} handlers_inside;

typedef struct {
  const mg_instruction* code;
  mg_flow* flow;
  mg_handler* handlers;  // per code unit; .handler is -1 where there is none
  handlers_inside* inside;
  int32_t* work;
  int work_size;
  int units;
} walk;

static bool is_jump(int opcode) {
  switch (opcode) {
    case JUMP_FORWARD:
    case JUMP_BACKWARD:
    case JUMP_BACKWARD_NO_INTERRUPT:
    case FOR_ITER:
    case SEND:
#if PY_VERSION_HEX >= 0x030c0000
    case POP_JUMP_IF_TRUE:
    case POP_JUMP_IF_FALSE:
    case POP_JUMP_IF_NONE:
    case POP_JUMP_IF_NOT_NONE:
#else
    case POP_JUMP_FORWARD_IF_TRUE:
    case POP_JUMP_FORWARD_IF_FALSE:
    case POP_JUMP_FORWARD_IF_NONE:
    case POP_JUMP_FORWARD_IF_NOT_NONE:
    case POP_JUMP_BACKWARD_IF_TRUE:
    case POP_JUMP_BACKWARD_IF_FALSE:
    case POP_JUMP_BACKWARD_IF_NONE:
    case POP_JUMP_BACKWARD_IF_NOT_NONE:
    case JUMP_IF_TRUE_OR_POP:
    case JUMP_IF_FALSE_OR_POP:
#endif
      return true;
    default: return false;
  }
}

static bool jumps_back(int opcode) {
  switch (opcode) {
    case JUMP_BACKWARD:
    case JUMP_BACKWARD_NO_INTERRUPT:
#if PY_VERSION_HEX < 0x030c0000
    case POP_JUMP_BACKWARD_IF_TRUE:
    case POP_JUMP_BACKWARD_IF_FALSE:
    case POP_JUMP_BACKWARD_IF_NONE:
    case POP_JUMP_BACKWARD_IF_NOT_NONE:
#endif
      return true;
    default: return false;
  }
}

int mg_jump_target(const mg_instruction* instruction) {
  if (!is_jump(instruction->opcode)) return -1;
  int distance = (int)instruction->arg;
  return instruction->next + (jumps_back(instruction->opcode) ? -distance : distance);
}

static bool falls_through(int opcode) {
  switch (opcode) {
    case RETURN_VALUE:
    case RAISE_VARARGS:
    case RERAISE:
    case JUMP_FORWARD:
    case JUMP_BACKWARD:
    case JUMP_BACKWARD_NO_INTERRUPT:
#ifdef RETURN_CONST
    case RETURN_CONST:
#endif
      return false;
    default: return true;
  }
}

static int stack_effect(const mg_instruction* instruction, bool jumping) {
  switch (instruction->opcode) {
    case RETURN_GENERATOR: return 1;  // what is sent first lies there when the generator goes on
#ifdef PRECALL  // the compiler counts the arguments as gone after PRECALL, which only looks at them
    case PRECALL: return 0;
    case CALL: return -(int)instruction->arg - 1;
#endif
    default: return PyCompile_OpcodeStackEffectWithJump(instruction->opcode, (int)instruction->arg, jumping);
  }
}

static void arrive(walk* w, int index, int depth, const handlers_inside* inside) {
  if (index < 0 || index >= w->units || w->flow[index].depth >= 0) return;
  w->flow[index] = (mg_flow){depth, inside->count ? inside->positions[0] : -1};
  w->inside[index] = *inside;
  w->work[w->work_size++] = index;
}

static void leave_by_exception(walk* w, int index) {
  const mg_handler* handler = &w->handlers[index];
  if (handler->handler < 0) return;
  handlers_inside inside = w->inside[index];
  while (inside.count && inside.positions[inside.count - 1] >= handler->depth) --inside.count;
  arrive(w, handler->handler, handler->depth + handler->push_offset + 1, &inside);
}

static void swap(handlers_inside* inside, int one, int other) {
  for (int i = 0; i < inside->count; ++i) {
    int32_t* position = &inside->positions[i];
    if (*position == one || *position == other) *position = one + other - *position;
  }
}

static void leave(walk* w, int index) {
  const mg_instruction* instruction = &w->code[index];
  int depth = w->flow[index].depth;
  handlers_inside inside = w->inside[index];
  switch (instruction->opcode) {
    case PUSH_EXC_INFO:
      if (inside.count < CO_MAXBLOCKS) inside.positions[inside.count++] = depth - 1;
      break;
    case POP_EXCEPT:
      if (inside.count) --inside.count;
      break;
    case SWAP: swap(&inside, depth - 1, depth - (int)instruction->arg); break;
  }
  if (instruction->opcode != PUSH_EXC_INFO) leave_by_exception(w, index);  // which cannot raise
  int target = mg_jump_target(instruction);
  if (target >= 0) arrive(w, target, depth + stack_effect(instruction, true), &inside);
  if (falls_through(instruction->opcode))
    arrive(w, instruction->next, depth + stack_effect(instruction, false), &inside);
}

static void* make_flow(PyCodeObject* code) {
  walk w = {mg_decoded(code)};
  if (!w.code) return NULL;
  w.units = mg_code_units(code);
  size_t units = (size_t)w.units;
  w.flow = PyMem_Malloc(units * sizeof *w.flow);
  w.handlers = PyMem_Malloc(units * sizeof *w.handlers);
  w.inside = PyMem_Malloc(units * sizeof *w.inside);
  w.work = PyMem_Malloc(units * sizeof *w.work);
  if (w.flow && w.handlers && w.inside && w.work) {
    for (size_t i = 0; i < units; ++i) w.flow[i] = (mg_flow){-1, -1};
    mg_handlers(code, w.handlers);
    arrive(&w, 0, 0, &(handlers_inside){0});
    while (w.work_size) leave(&w, w.work[--w.work_size]);
  } else {
    PyMem_Free(w.flow);
    w.flow = (mg_flow*)PyErr_NoMemory();
  }
  PyMem_Free(w.handlers);
  PyMem_Free(w.inside);
  PyMem_Free(w.work);
  return w.flow;
}

const mg_flow* mg_code_flow(PyCodeObject* code) {
  static Py_ssize_t slot = -1;
  return code_extra(code, &slot, make_flow);
}
