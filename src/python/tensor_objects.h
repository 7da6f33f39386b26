// Between Python objects and tensors, for the bindings.
#pragma once
#include <nanobind/nanobind.h>

#include <string>
#include <utility>

#include "runtime/torch_python.h"

namespace magneto::python {

inline nanobind::object wrap(at::Tensor tensor) {
  PyObject* object = runtime::wrap_tensor(std::move(tensor));
  if (!object) throw nanobind::python_error();
  return nanobind::steal(object);
}

inline bool is_tensor(nanobind::handle object) { return PyObject_TypeCheck(object.ptr(), runtime::tensor_class()); }

// TypeError, which begins with `what`, if it is none.
inline const at::Tensor& unwrap(nanobind::handle object, const std::string& what) {
  if (!is_tensor(object)) {
    std::string found = Py_TYPE(object.ptr())->tp_name;
    throw nanobind::type_error((what + ": expected a torch.Tensor, got " + found).c_str());
  }
  return runtime::unpack_tensor(object.ptr());
}

}  // namespace magneto::python
