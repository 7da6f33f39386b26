// Whether an object can be dropped without anybody noticing.
#pragma once
#include <Python.h>

namespace magneto::guard {

// Whether no code runs and no weak reference goes dead if `object` and what only it holds die. `ours` of its references
// do not count: those that go away as well, and those that Magneto holds itself. Runs no Python code.
bool dies_quietly(PyObject* object, Py_ssize_t ours);

// The same for what a change drops: of a dict or list, its item `key`; without a key, all that a cell or container
// holds.
bool drops_quietly(PyObject* container, PyObject* key, Py_ssize_t ours);

}  // namespace magneto::guard
