// What users say about functions that watched calls may meet: magneto.disallow_in_graph and its like.
#pragma once
#include <Python.h>

#include <cstdint>
#include <string>

namespace magneto::trace {

enum class Rule : uint8_t {
  None,
  Allow,     // its Python is nobody's business: only the tensor work inside it is recorded
  Disallow,  // runs as Python; the program is cut there. Also what magneto.disable and magneto.run return
  Aside,     // likewise; not because somebody says so, but because looking inside does not pay
  Forbid,    // an error
  Constant,  // what it returns is taken for granted
  Label,     // begins or ends a region for profilers, in which programs run nothing
};

// False: error set. The rule of a code object holds for every function that has it.
bool set_rule(PyObject* callable, Rule rule);
Rule rule_of(PyObject* callable);
inline bool cuts(Rule rule) { return rule == Rule::Disallow || rule == Rule::Aside; }

// For people, why a call with these arguments cuts a program.
std::string why_cut(PyObject* callable, PyObject* const* args, size_t count);

}  // namespace magneto::trace
