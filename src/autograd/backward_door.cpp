// In front of the engine's run_backward: our hook has to be there, and threads must not get in each other's way.
//
// The engine holds for an instant, while it enters a backward, that nobody else may enter one that is compiled, and
// raises NotImplementedError to another thread that does. Nothing has run by then, and so the call is made again.
#include <Python.h>
#include <pthread.h>
#include <sched.h>

#include <cstring>
#include <utility>

#include "autograd/engine_hook.h"
#include "cpython/gil.h"
#include "cpython/text.h"
#include "record/method_table.h"
#include "runtime/state.h"

namespace magneto::autograd {

namespace {

constexpr int kTries = 10000;

// Written once, at import.
PyCFunctionWithKeywords behind = nullptr;

// Clears the error if it is the one.
bool was_in_the_way() {
  if (!PyErr_ExceptionMatches(PyExc_NotImplementedError)) return false;
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  PyErr_NormalizeException(&type, &value, &traceback);
  py::Ref text = py::Ref::steal(PyObject_Str(value));
  if (text && py::text(text.get()).starts_with("Re-entrant into Compiled Autograd")) {
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(traceback);
    return true;
  }
  PyErr_Restore(type, value, traceback);
  return false;
}

PyObject* run_backward(PyObject* self, PyObject* arguments, PyObject* keywords) {
  RecordedBackward recorded;
  for (int tries = 0;; ++tries) {
    keep_hook();
    PyObject* result = behind(self, arguments, keywords);
    if (result || tries == kTries || !was_in_the_way()) return result;
    PyThreadState* thread = PyEval_SaveThread();
    sched_yield();
    PyEval_RestoreThread(thread);
  }
}

// The other threads, and their backwards, are the parent's.
void forget_other_threads() {
  runtime::ProcessState& process = runtime::process_state();
  process.threads_in_backwards = runtime::thread_state().backwards > 0;
  process.backward_compilers = compiles(runtime::thread_state().autograd_compiler);
}

}  // namespace

void install_door() {
  pthread_atfork(nullptr, nullptr, &forget_other_threads);
  py::Ref module = py::Ref::steal(PyImport_ImportModule("torch._C"));
  py::Ref method = module ? record::find_in(module.get(), "_ImperativeEngine", "run_backward") : py::Ref();
  PyErr_Clear();
  PyMethodDef* entry = method ? record::method_table_entry(method.get()) : nullptr;
  if (!entry || entry->ml_flags != (METH_VARARGS | METH_KEYWORDS)) return;  // threads get in each other's way then
  behind = reinterpret_cast<PyCFunctionWithKeywords>(reinterpret_cast<void (*)()>(entry->ml_meth));
  entry->ml_meth = reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&run_backward));
}

}  // namespace magneto::autograd
