// The evaluator of the interpreter, and who else is looking at frames.
#define Py_BUILD_CORE 1
#include <Python.h>

#include "internal/pycore_interp.h"

#include "cpython/cpython.h"

const char* mg_why_unsupported(void) {
#if PY_VERSION_HEX >= 0x030e0000
  return "capturing needs CPython 3.11 to 3.13; on this version compiled functions run eagerly";
#else
  return NULL;
#endif
}

PyObject* mg_eval_default(PyThreadState* thread, mg_frame* frame, int throwing) {
  return _PyEval_EvalFrameDefault(thread, frame, throwing);
}

#if PY_VERSION_HEX >= 0x030c0000
int mg_c_recursion_left(PyThreadState* thread) { return thread->c_recursion_remaining; }
void mg_recursion_use(PyThreadState* thread, int frames) { thread->py_recursion_remaining -= frames; }
#else
int mg_c_recursion_left(PyThreadState* thread) {
  (void)thread;
  return INT_MAX;
}
void mg_recursion_use(PyThreadState* thread, int frames) { thread->recursion_remaining -= frames; }
#endif

bool mg_is_tracing(PyThreadState* thread) {
  if (thread->c_tracefunc || thread->c_profilefunc) return true;
#if PY_VERSION_HEX >= 0x030c0000
  for (size_t i = 0; i < Py_ARRAY_LENGTH(thread->interp->monitors.tools); ++i)
    if (thread->interp->monitors.tools[i]) return true;
#endif
  return false;
}

bool mg_is_tracing_lines(PyThreadState* thread) {
#if PY_VERSION_HEX >= 0x030c0000
  uint8_t* tools = thread->interp->monitors.tools;
  if (tools[PY_MONITORING_EVENT_LINE] || tools[PY_MONITORING_EVENT_INSTRUCTION]) return true;
#endif
  return thread->c_tracefunc != NULL;
}

bool mg_is_monitored(PyCodeObject* code) {
#if PY_VERSION_HEX >= 0x030c0000
  if (!code->_co_monitoring) return false;
  for (size_t i = 0; i < Py_ARRAY_LENGTH(code->_co_monitoring->local_monitors.tools); ++i)
    if (code->_co_monitoring->local_monitors.tools[i]) return true;
#else
  (void)code;
#endif
  return false;
}

mg_eval_function mg_get_eval_function(void) { return _PyInterpreterState_GetEvalFrameFunc(PyInterpreterState_Get()); }

void mg_set_eval_function(mg_eval_function function) {
  _PyInterpreterState_SetEvalFrameFunc(PyInterpreterState_Get(), function);
}
