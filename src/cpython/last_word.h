// A weak reference that runs C++ code when its object dies.
#pragma once
#include <functional>

#include "cpython/ref.h"

namespace magneto::py {

// The weak reference, which must be kept; empty: an error is set. `act` runs with the GIL, where anything may die.
Ref when_dead(PyObject* object, std::function<void()> act);

}  // namespace magneto::py
