// What the tracer knows about types: how each kind of object behaves when it is read, compared or called.
#pragma once
#include <Python.h>

#include "trace/watch.h"

namespace magneto::trace {

// Builds the tables by running a little Python: once, at import.
void build_type_tables();

Kind known_kind(PyTypeObject* type);
// A type that makes a new, ordinary object when called, and looks only at its arguments for that.
bool is_plain_constructor(PyTypeObject* type);
// type(cls).__call__ is a Python function.
bool metaclass_calls_python(PyTypeObject* metaclass);
// Written in Python or absent. `accessor`: "fget" or "fset".
bool property_is_python(PyObject* property, const char* accessor = "fget");
// __eq__ or __hash__ is written in Python.
bool has_python_equality(PyTypeObject* type);
// By which object it is, and without code of its own.
bool is_hashed_by_address(PyObject* object);
// Compared or printed by contents that guards do not see: exceptions, partials, list[int], ...
bool has_hidden_contents(PyObject* object);
// Makes its objects with a __new__ that is written in C.
bool has_plain_new(PyTypeObject* type);
// The __init__ that is called with all that the class is called with, and alone looks at that; or null.
PyObject* initialiser(PyTypeObject* type);
// A special method that is written in Python, and so is watched.
bool method_is_python(PyTypeObject* type, const char* name);
// Some special method is neither Python code, which is watched, nor the one of a C base: C code calls it unseen.
bool has_opaque_specials(PyTypeObject* type);
bool repr_is_python(PyTypeObject* type);
// A class whose objects run code of their own when they die: __del__.
bool has_finaliser(PyTypeObject* type);
// A descriptor (other than data descriptors) whose __get__ only binds.
bool is_binding_descriptor(PyTypeObject* type);

}  // namespace magneto::trace
