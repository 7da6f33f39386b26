// The names of the parameters and buffers of a module, for recordings that meet hundreds of them.
#pragma once
#include <Python.h>

#include <ATen/core/Tensor.h>
#include <c10/util/flat_hash_map.h>

#include <string>

#include "cpython/ref.h"

namespace magneto::python {

class StateNames {
 public:
  struct Named {
    at::Tensor tensor;  // keeps the address from being used again
    std::string name;
    bool is_parameter;
  };

  // With the GIL held. A module that keeps them in another way than torch's has none here.
  explicit StateNames(PyObject* module);
  const Named* find(const at::Tensor& tensor) const;

 private:
  struct Module {
    std::string prefix;
    py::Ref object;
  };

  bool walk(PyObject* root);
  bool add_members(const Module& module, PyObject* attribute);
  void add(const at::Tensor& tensor, std::string name, bool is_parameter);

  ska::flat_hash_map<c10::TensorImpl*, Named> named_;
};

}  // namespace magneto::python
