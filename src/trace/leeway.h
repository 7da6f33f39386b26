// What stays open in a capture beside what the arguments leave open.
#pragma once
#include <vector>

#include "cpython/ref.h"

namespace magneto::trace {

// Stands for the variables of closures among names that are open.
inline PyObject* cell_key() {
  static PyObject* const key = PyUnicode_InternFromString("cell_contents");
  return key;
}

struct Leeway {
  std::vector<py::Ref> keys;  // names of attributes and the like that hold another number or tensor in each call
  bool answers = false;       // numbers, and sizes of tensors, that the call asks for

  bool empty() const { return keys.empty() && !answers; }
};

}  // namespace magneto::trace
