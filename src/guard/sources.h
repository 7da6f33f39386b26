// Looks into objects without running Python code: attributes, items, lengths, keys, truth.
//
// Each function notes, if `reads` is not null, all that its answer depends on. Results are borrowed and null if there
// is nothing of the kind. Containers are looked at as they are stored, whatever methods a subclass overrides.
#pragma once
#include "guard/reads.h"

namespace magneto::guard {

// As inspect.getattr_static, but slots and the fields of functions give their values: descriptors are not called.
PyObject* find_attribute(PyObject* object, PyObject* name, Reads* reads);
// Of a list or tuple by index, of a dict by key.
PyObject* find_item(PyObject* object, PyObject* key, Reads* reads);
// The dict of a module, or the globals of a function.
PyObject* find_namespace(PyObject* object, Reads* reads);
// What a function finds in the cell of its free variable number `index`.
PyObject* find_in_closure(PyObject* function, Py_ssize_t index, Reads* reads);

// -1: it has none that can be told.
Py_ssize_t find_length(PyObject* object, Reads* reads);
int find_truth(PyObject* object, Reads* reads);
// A tuple of the keys of a dict in their order, if all of them are atoms.
py::Ref find_keys(PyObject* object, Reads* reads);

// Atoms, floats that are no number, and tuples of these.
bool is_constant(PyObject* object);
// Same types and values all through, to the bit for floats.
bool same_constant(PyObject* a, PyObject* b);

}  // namespace magneto::guard
