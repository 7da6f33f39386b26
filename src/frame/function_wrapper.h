// What the callables that stand for a function (CompiledFunction, ScopedFunction) have in common as Python types.
#pragma once
#include <Python.h>

namespace magneto::frame {

// The beginning of such an object. `function` stays until the object is freed: somebody may still call.
struct FunctionWrapper {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  PyObject* function;
  PyObject* dict;
  PyObject* weak_references;
};

extern PyMemberDef kWrapperMembers[];

// For the types' slots; traverse_wrapper and clear_wrapper as parts of theirs, too.
int traverse_wrapper(PyObject* object, visitproc visit, void* arg);
int clear_wrapper(PyObject* object);
void destroy_wrapper(PyObject* object);
PyObject* bind_wrapper(PyObject* object, PyObject* instance, PyObject* owner);  // as a method, like a function
// __reduce__: by its name, like a function.
PyObject* reduce_wrapper(PyObject* object, PyObject*);

}  // namespace magneto::frame
