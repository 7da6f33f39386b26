// Every Python function of the process, without being asked for one by one.
#pragma once
#include "cpython/cpython.h"
#include "runtime/state.h"

namespace magneto::frame {

// Watch: all Python code runs in our interpreter, and nothing is kept of it. Capture: every function behaves as if
// magneto.compile had been called on it.
using runtime::Everywhere;
void set_everywhere(Everywhere mode);

// Evaluates a frame that no watch is interested in, while a mode is on.
PyObject* evaluate_everywhere(PyThreadState* thread, mg_frame* frame, int throwing);

}  // namespace magneto::frame
