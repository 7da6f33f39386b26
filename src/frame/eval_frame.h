// magneto.eval_frame: a callback of this thread is asked about every Python frame before it runs, and may give it
// other code under a guard.
#pragma once
#include "cpython/cpython.h"
#include "runtime/state.h"

namespace magneto::frame {

// What one thread has turned on. A Python object in the thread's own dict, so that it ends with the thread.
struct ThreadHook {
  PyObject_HEAD
  PyObject* callback;  // owned; null: off, Py_False: run only
  PyObject* backend;   // owned; whose cache entries count, null: everybody's
  int uses;            // how often it counts among those who use the hook; 2: in a callback that turns another on
};

inline bool is_hooked() {
  const ThreadHook* hook = runtime::thread_state().frame_hook;
  return hook && hook->callback;
}

// Evaluates a frame of a hooked thread: as it is, with code from the cache, or with what the callback gives.
PyObject* evaluate_hooked(PyThreadState* thread, mg_frame* frame);

// The functions of magneto.eval_frame; null with an error set.
PyObject* set_eval_frame(PyObject* callback);
PyObject* set_guard_error_hook(PyObject* hook);

bool make_thread_hook_type(const char* module_name);

}  // namespace magneto::frame
