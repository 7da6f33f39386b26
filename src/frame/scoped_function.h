// The callable that magneto.disable and magneto.run return: the function, called in another way of running things.
#pragma once
#include <Python.h>

namespace magneto::frame {

// Creates the type `ScopedFunction`; null with an error set.
PyTypeObject* make_scoped_function_type(const char* module_name);

}  // namespace magneto::frame
