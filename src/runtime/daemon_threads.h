// Daemon threads at the interpreter's exit.
//
// CPython up to 3.13 ends a thread that asks for the GIL then by pthread_exit, which unwinds the stack: destructors of
// ours would drop references without the GIL. Such a thread is stopped instead, as CPython 3.14 does.
#pragma once
#include <unistd.h>

#include <exception>

namespace magneto::runtime {

// Calls `body`, which may run Python code. Stands around every such call of a thread that owns Python objects.
template <class Body>
auto run_python(Body body) {
  try {
    return body();
  } catch (...) {
    while (!std::current_exception()) pause();  // the unwinding of pthread_exit carries none of C++'s exceptions
    throw;
  }
}

}  // namespace magneto::runtime
