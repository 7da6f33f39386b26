// Frames and the evaluator of CPython 3.11.
#define Py_BUILD_CORE 1
#include <Python.h>
#include <frameobject.h>

#include "internal/pycore_code.h"
#include "internal/pycore_frame.h"
#include "internal/pycore_interp.h"

#include "cpython/cpython.h"

const char* mg_why_unsupported(void) { return NULL; }

void mg_frame_read(mg_frame* frame, mg_frame_view* view) {
  view->function = frame->f_func;
  view->code = frame->f_code;
  view->globals = frame->f_globals;
  view->builtins = frame->f_builtins;
  view->locals = frame->localsplus;
  view->stack_pointer = frame->localsplus + frame->stacktop;
  view->first_code_unit = (const uint16_t*)_PyCode_CODE(frame->f_code);
  view->executing = (const uint16_t**)&frame->prev_instr;
  view->generator =
      frame->owner == FRAME_OWNED_BY_GENERATOR ? (PyObject*)((char*)frame - offsetof(PyGenObject, gi_iframe)) : NULL;
}

int mg_frame_next_instruction(mg_frame* frame) { return _PyInterpreterFrame_LASTI(frame) + 1; }

mg_frame* mg_frame_take(PyThreadState* thread, mg_frame* frame) {
  mg_frame* previous = thread->cframe->current_frame;
  frame->previous = previous;
  frame->is_entry = true;
  frame->stacktop = -1;  // as in the evaluator: the frame's own note of the stack is stale while it runs
  thread->cframe->current_frame = frame;
  return previous;
}

void mg_frame_give_back(PyThreadState* thread, mg_frame* frame, mg_frame* previous, PyObject** stack_pointer) {
  frame->stacktop = (int)(stack_pointer - frame->localsplus);
  thread->cframe->current_frame = previous;
}

void mg_frame_resume_before(mg_frame* frame, int index) { frame->prev_instr = _PyCode_CODE(frame->f_code) + index - 1; }

void mg_generator_suspended(PyObject* generator) { ((PyGenObject*)generator)->gi_frame_state = FRAME_SUSPENDED; }

PyCodeObject* mg_frame_code(mg_frame* frame) { return frame->f_code; }

bool mg_must_break(PyThreadState* thread) { return _Py_atomic_load_relaxed(&thread->interp->ceval.eval_breaker) != 0; }

int mg_serve_break(PyThreadState* thread) {
  if (Py_MakePendingCalls() < 0) return -1;
  if (_Py_atomic_load_relaxed(&thread->interp->ceval.gil_drop_request)) {
    PyEval_SaveThread();
    PyEval_RestoreThread(thread);
  }
  return 0;
}

int mg_set_update(PyObject* set, PyObject* iterable) { return _PySet_Update(set, iterable); }
