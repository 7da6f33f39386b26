// The callable that magneto.compile returns: call, guard, run.
#pragma once
#include <Python.h>

namespace magneto::frame {

// Creates the type `CompiledFunction`; null with an error set.
PyTypeObject* make_compiled_function_type(const char* module_name);

}  // namespace magneto::frame
