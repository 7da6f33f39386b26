// CPython versions without an interpreter of ours: nothing is ever watched.
#include "trace/watch.h"

namespace magneto::trace {

PyObject* watch_frame(PyThreadState*, struct _PyInterpreterFrame*, int) { return nullptr; }

}  // namespace magneto::trace
