// Reads, writes and runs frames in CPython's place.
#include "cpython/frame_layout.h"

#include "internal/pycore_ceval.h"
#include "internal/pycore_interp.h"

PyCodeObject* mg_frame_code(mg_frame* frame) { return code_of(frame); }

mg_frame* mg_frame_of(PyFrameObject* object) { return object->f_frame; }

void mg_frame_read(mg_frame* frame, mg_frame_view* view) {
  view->function = (PyFunctionObject*)FRAME_FUNCTION(frame);
  view->code = code_of(frame);
  view->globals = frame->f_globals;
  view->builtins = frame->f_builtins;
  view->names = frame->f_locals;
  view->locals = frame->localsplus;
  view->stack_pointer = frame->localsplus + frame->stacktop;
  view->first_code_unit = (const uint16_t*)_PyCode_CODE(code_of(frame));
  view->executing = (const uint16_t**)&EXECUTING(frame);
  view->generator = (PyObject*)generator_of(frame);
}

int mg_frame_executing(mg_frame* frame) { return _PyInterpreterFrame_LASTI(frame); }

int mg_frame_next_instruction(mg_frame* frame) { return _PyInterpreterFrame_LASTI(frame) - BEFORE_FIRST; }

static mg_frame* skip_frames_of_c(mg_frame* frame) {
#if EVALUATOR_CLEARS
  while (frame && frame->owner == FRAME_OWNED_BY_CSTACK) frame = frame->previous;
#endif
  return frame;
}

mg_frame* mg_frame_innermost(PyThreadState* thread) { return skip_frames_of_c(CURRENT_FRAME(thread)); }

mg_frame* mg_frame_outward(mg_frame* frame) { return skip_frames_of_c(frame->previous); }

void mg_frame_resume_before(mg_frame* frame, int index) {
  EXECUTING(frame) = _PyCode_CODE(code_of(frame)) + index + BEFORE_FIRST;
}

mg_frame* mg_frame_take(PyThreadState* thread, mg_frame* frame) {
  link_frame(thread, frame);
#if !EVALUATOR_CLEARS
  frame->is_entry = true;
#endif
  frame->stacktop = -1;  // as in the evaluator: the frame's own note of the stack is stale while it runs
  return frame->previous;
}

void mg_frame_give_back(PyThreadState* thread, mg_frame* frame, mg_frame* previous, PyObject** stack_pointer) {
  frame->stacktop = (int)(stack_pointer - frame->localsplus);
  CURRENT_FRAME(thread) = previous;
}

void mg_frame_finish(PyThreadState* thread, mg_frame* frame) {
#if EVALUATOR_CLEARS
  mg_frame_clear(thread, frame);
#else
  (void)thread, (void)frame;
#endif
}

mg_frame* mg_generator_frame(PyObject* generator) {
  PyGenObject* owner = (PyGenObject*)generator;
  return PyGen_CheckExact(generator) && owner->gi_frame_state < FRAME_EXECUTING ? frame_in(owner) : NULL;
}

void mg_generator_suspended(PyObject* generator, bool delegates) {
  PyGenObject* suspended = (PyGenObject*)generator;
  suspended->gi_frame_state = FRAME_SUSPENDED;
#if PY_VERSION_HEX >= 0x030d0000
  if (delegates) suspended->gi_frame_state = FRAME_SUSPENDED_YIELD_FROM;
#else
  (void)delegates;
#endif
#if EVALUATOR_CLEARS
  PyThreadState_Get()->exc_info = suspended->gi_exc_state.previous_item;
  suspended->gi_exc_state.previous_item = NULL;
  frame_in(suspended)->previous = NULL;
#endif
}

#if PY_VERSION_HEX >= 0x030c0000
bool mg_enter_frame(PyThreadState* thread) {
  if (thread->py_recursion_remaining <= 0 || thread->c_recursion_remaining <= 0) return false;
  --thread->py_recursion_remaining;
  --thread->c_recursion_remaining;
  return true;
}

void mg_leave_frame(PyThreadState* thread) {
  ++thread->py_recursion_remaining;
  ++thread->c_recursion_remaining;
}
#else
bool mg_enter_frame(PyThreadState* thread) {
  if (thread->recursion_remaining <= 0) return false;
  --thread->recursion_remaining;
  return true;
}

void mg_leave_frame(PyThreadState* thread) { ++thread->recursion_remaining; }
#endif

#if PY_VERSION_HEX >= 0x030d0000
bool mg_must_break(PyThreadState* thread) {
  // The collector waits for CPython's evaluator.
  const uintptr_t served = _PY_EVAL_EVENTS_MASK & ~_PY_GC_SCHEDULED_BIT;
  return _Py_atomic_load_uintptr_relaxed(&thread->eval_breaker) & served;
}
static bool must_drop_gil(PyThreadState* thread) {
  return _Py_eval_breaker_bit_is_set(thread, _PY_GIL_DROP_REQUEST_BIT);
}
#else
bool mg_must_break(PyThreadState* thread) { return _Py_atomic_load_relaxed(&thread->interp->ceval.eval_breaker) != 0; }
static bool must_drop_gil(PyThreadState* thread) {
  return _Py_atomic_load_relaxed(&thread->interp->ceval.gil_drop_request) != 0;
}
#endif

int mg_serve_break(PyThreadState* thread) {
  if (Py_MakePendingCalls() < 0) return -1;
  if (must_drop_gil(thread)) {
    PyEval_SaveThread();
    PyEval_RestoreThread(thread);
  }
  return 0;
}
