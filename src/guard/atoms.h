// Values that are compared by what they are, not by which object they are: numbers, strings, None, dtypes.
#pragma once
#include <Python.h>

namespace magneto::guard {

// True for values that can be compared and baked in.
bool is_atom(PyObject* object);
// An int or a float, and no subclass.
inline bool is_plain_number(PyObject* object) { return PyLong_CheckExact(object) || PyFloat_CheckExact(object); }
// True for atoms, and for tuples of nothing but atoms.
bool holds_only_atoms(PyObject* object);
// Same type and same value, to the bit for floats.
bool same_atom(PyObject* a, PyObject* b);
// Whether a dict takes two atoms for one key: 1, True and 1.0.
bool are_one_key(PyObject* a, PyObject* b);
// The very same object, or the same atom; null equals null only.
inline bool same_value(PyObject* a, PyObject* b) { return a == b || (a && b && same_atom(a, b)); }

}  // namespace magneto::guard
