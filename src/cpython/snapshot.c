// Snapshots of frames: made by hand or taken from a live chain of calls.
#include "cpython/frame_layout.h"

#include <opcode.h>

#include "cpython/snapshot.h"

mg_snapshot* mg_snapshot_new(PyFunctionObject* function, PyCodeObject* code, int index, int depth) {
  size_t values = (size_t)(code->co_nlocalsplus + depth);
  mg_snapshot* snapshot = PyMem_Calloc(1, sizeof *snapshot + values * sizeof(PyObject*));
  if (!snapshot) return (mg_snapshot*)PyErr_NoMemory();
  snapshot->function = (PyFunctionObject*)Py_NewRef(function);
  snapshot->code = (PyCodeObject*)Py_NewRef(code);
  snapshot->index = index;
  snapshot->depth = depth;
  return snapshot;
}

void mg_snapshot_free(mg_snapshot* snapshot) {
  if (!snapshot) return;
  for (int i = 0; i < snapshot->code->co_nlocalsplus + snapshot->depth; ++i) Py_XDECREF(snapshot->values[i]);
  Py_DECREF(snapshot->function);
  Py_DECREF(snapshot->code);
  Py_XDECREF(snapshot->names);
  Py_XDECREF(snapshot->generator);
  Py_XDECREF(snapshot->handled);
  Py_XDECREF(snapshot->instead);
  PyMem_Free(snapshot);
}

result_kind result_of(const mg_instruction* instruction) {
  switch (instruction->opcode) {
    case STORE_ATTR:
    case DELETE_ATTR:
    case STORE_SUBSCR:
    case DELETE_SUBSCR:
#ifdef STORE_SLICE
    case STORE_SLICE:
#endif
      return kDropped;
#if PY_VERSION_HEX >= 0x030c0000
    case LOAD_ATTR: return instruction->arg & 1 ? kPushedAsMethod : kPushed;
#else
    case LOAD_METHOD: return kPushedAsMethod;
#endif
    case FOR_ITER: return kNextItem;
    case SEND: return kSentOn;
    default: return kPushed;
  }
}

int mg_snapshot_depth(PyCodeObject* code, int index, bool in_chain) {
  const mg_flow* flow = mg_code_flow(code);
  if (!flow) return -2;
  int units = mg_code_units(code);
  if (index < 0 || index >= units || flow[index].depth < 0) return -1;
  if (!in_chain) return flow[index].depth;
  const mg_instruction* instruction = &mg_decoded(code)[index];
  if (instruction->next >= units || flow[instruction->next].depth < 0) return -1;
  static const int pushes[] = {[kDropped] = 0, [kPushed] = 1, [kPushedAsMethod] = 2, [kNextItem] = 1, [kSentOn] = 1};
  return flow[instruction->next].depth - pushes[result_of(instruction)];
}

// ---- taking

static bool was_called_from_c(mg_frame* frame) {
#if PY_VERSION_HEX >= 0x030c0000
  return !frame->previous || frame->previous->owner == FRAME_OWNED_BY_CSTACK;
#else
  return frame->is_entry;
#endif
}

static bool is_complete_function(mg_frame* frame) {
  return !_PyFrame_IsIncomplete(frame) && PyFunction_Check(FRAME_FUNCTION(frame));
}

// While another frame runs, CPython's note may stand on the last inline cache of the instruction. -1: error set.
static int executing(mg_frame* frame) {
  const mg_instruction* decoded = mg_decoded(code_of(frame));
  if (!decoded) return -1;
  int index = mg_frame_executing(frame);
  while (index > 0 && !decoded[index].next) --index;
  return index;
}

mg_frame* mg_frame_caller(mg_frame* frame) {
  mg_frame* caller = frame->previous;
  bool from_c = was_called_from_c(frame);
#if PY_VERSION_HEX >= 0x030c0000
  if (from_c && caller) caller = caller->previous;
#endif
  if (!caller || !is_complete_function(caller)) return NULL;
  if (!from_c) return caller;
  // C code may stand between a loop and its generator, but it only hands values through.
  PyCodeObject* code = code_of(caller);
  int index = executing(caller);
  if (index < 0) return PyErr_Clear(), NULL;
  result_kind result = result_of(&mg_decoded(code)[index]);
  int depth = result == kNextItem || result == kSentOn ? mg_snapshot_depth(code, index, true) : -1;
  if (depth < 1) return PyErr_Clear(), NULL;
  PyObject* iterated = caller->localsplus[code->co_nlocalsplus + depth - 1];
  return frame->owner == FRAME_OWNED_BY_GENERATOR && iterated == (PyObject*)generator_of(frame) ? caller : NULL;
}

static mg_snapshot* take(mg_frame* frame, bool in_chain) {
  if (!is_complete_function(frame)) {
    PyErr_SetString(PyExc_ValueError, "cannot take a snapshot of a frame that has no function or has not started");
    return NULL;
  }
  PyCodeObject* code = code_of(frame);
  int index = executing(frame);
  int depth = index < 0 ? index : mg_snapshot_depth(code, index, in_chain);
  if (depth == -1 && !PyErr_Occurred())
    PyErr_Format(PyExc_ValueError, "cannot take a snapshot of %U at instruction %d", code->co_qualname, index);
  if (depth < 0) return NULL;
  mg_snapshot* snapshot = mg_snapshot_new((PyFunctionObject*)FRAME_FUNCTION(frame), code, index, depth);
  if (!snapshot) return NULL;
  for (int i = 0; i < code->co_nlocalsplus + depth; ++i) snapshot->values[i] = Py_XNewRef(frame->localsplus[i]);
  snapshot->names = Py_XNewRef(frame->f_locals);
  snapshot->generator = Py_XNewRef((PyObject*)generator_of(frame));
  return snapshot;
}

bool mg_snapshot_take(PyThreadState* thread, mg_frame* innermost, int count, mg_snapshot** chain) {
  _PyErr_StackItem* item = thread->exc_info;
  PyObject* handled = item->exc_value;
  mg_frame* frame = innermost;
  for (int i = count - 1; i >= 0; --i) {
    if (!frame) PyErr_SetString(PyExc_ValueError, "cannot take a snapshot of frames with C code between them");
    chain[i] = frame ? take(frame, i < count - 1) : NULL;
    if (!chain[i]) {
      while (++i < count) mg_snapshot_free(chain[i]);
      return false;
    }
    int saved = mg_code_flow(chain[i]->code)[chain[i]->index].saved;
    if (saved >= 0) {
      chain[i]->handled = Py_XNewRef(handled);
      handled = chain[i]->values[chain[i]->code->co_nlocalsplus + saved];
    }
    if (chain[i]->generator && item->previous_item) {
      item = item->previous_item;
      handled = item->exc_value;
    }
    frame = mg_frame_caller(frame);
  }
  return true;
}
