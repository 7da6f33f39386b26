// What the tracer knows about functions written in C: a table of models.
#pragma once
#include <Python.h>

#include <string>

namespace magneto::trace {

enum class Model : uint8_t {
  Unknown,
  Pure,          // looks at its arguments, however deep, and answers
  Types,         // looks at the types and identities of its arguments only
  Identity,      // the address of its argument matters
  Is,            // compares two addresses
  Print,         // Pure, and shows the names of classes and functions
  Format,        // Print, but the text may name attributes
  Abc,           // Types, and at the registry of abstract base classes
  GetAttribute,  // (object, name[, default])
  SetAttribute,  // (object, name, value)
  DeleteAttribute,
  DictLookup,  // self is a dict; (key[, default])
  Layout,      // looks at which items self (or the argument) has, but into none, and answers with something new
  Contents,    // looks at the items as well
  DictPop,     // (key[, default]): changes self only if the key is there
  Mutate,      // changes self
  New,         // makes an object: __new__ of a plain type
  Init,        // initialises self: __init__ of a plain type
  Next,        // advances the iterator
  Iterate,     // iter()
  ClassCall,   // type.__call__
  ContextGet,
  ContextSet,
  ContextReset,
  InstanceDict,  // vars(object)
  Frames,        // looks at the frames of its callers, or changes how they run
  RecursionLimit,
  Reduce,  // object.__reduce_ex__
  Own,     // one of ours, which tells the watch itself
};

// The model of a C function, method descriptor, slot wrapper or bound version of one of these. `self` receives the
// bound object (borrowed), or null if the first argument is meant.
Model model_of(PyObject* callable, PyObject** self);
// Whether what it does depends on who calls it, or changes how callers run.
bool looks_at_frames(PyObject* callable);
// "dict.pop", "time.time": for people.
std::string callable_name(PyObject* callable);
bool is_len(PyObject* callable);
bool is_sum(PyObject* callable);
// A function of ours: (callable, positional arguments[, keyword arguments]).
PyObject* call_with_star();
// One, (object), that gives the attribute of this name. Borrowed; null: error set.
PyObject* attribute_getter(PyObject* name);
// A function of ours, (value, object), that sets the attribute of this name. Borrowed; null: error set.
PyObject* attribute_setter(PyObject* name);
// Lets the bindings name functions of model Own.
void add_own_function(PyObject* function);

}  // namespace magneto::trace
