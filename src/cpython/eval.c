// The evaluator of the interpreter, and who else is looking at frames.
#include "cpython/cpython.h"

PyObject* mg_eval_default(PyThreadState* thread, mg_frame* frame, int throwing) {
  return _PyEval_EvalFrameDefault(thread, frame, throwing);
}

bool mg_is_tracing(PyThreadState* thread) { return thread->c_tracefunc || thread->c_profilefunc; }

mg_eval_function mg_get_eval_function(void) { return _PyInterpreterState_GetEvalFrameFunc(PyInterpreterState_Get()); }

void mg_set_eval_function(mg_eval_function function) {
  _PyInterpreterState_SetEvalFrameFunc(PyInterpreterState_Get(), function);
}
