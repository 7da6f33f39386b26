// Between Python objects and torch's tensors, without torch's own Python headers, which cost half a minute per file.
#pragma once
#include <Python.h>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Scalar.h>
#include <c10/core/SymNodeImpl.h>

#include <exception>
#include <memory>
#include <optional>
#include <string>

namespace magneto::runtime {

// `tensor` must be an instance of torch.Tensor. Its layout is checked against torch's header in torch_python.cpp.
inline const at::Tensor& unpack_tensor(PyObject* tensor) {
  return *reinterpret_cast<const at::Tensor*>(reinterpret_cast<const char*>(tensor) + sizeof(PyObject));
}

// A new reference; null with a Python error set.
PyObject* wrap_tensor(at::Tensor&& tensor);
// torch.Tensor and torch.nn.Parameter; null before torch is imported.
PyTypeObject* tensor_class();
PyTypeObject* parameter_class();
// Of the innermost torch function mode of this thread, if there is just one and it is a default device: that. Takes the
// GIL.
std::optional<c10::Device> default_device();

// The number for which torch's argument parser made `tensor`: in `x * x.shape[0]` it is a tensor with a placeholder for
// contents. None if it is a real tensor.
std::optional<c10::Scalar> wrapped_number(const at::Tensor& tensor);
// A torch.SymInt, SymFloat or SymBool, or a plain number: a new reference; null with a Python error set.
PyObject* wrap_number(const c10::Scalar& number);
// The number that a torch.SymInt, SymFloat or SymBool is; None for other objects.
std::optional<c10::Scalar> symbolic_number(PyObject* object);
// The node that torch wrapped on its way through Python; `node` itself if it did not.
c10::SymNode unwrap_node(const c10::SymNode& node);

// Sets the Python error that eager would have raised for `error`. GIL held.
void set_python_error(const std::exception_ptr& error);

// For use inside kernels: unwinds as an exception that torch's own bindings turn into `type(text)`. Takes the GIL.
[[noreturn]] void throw_python_error(PyObject* type, const std::string& text);

// The same for the Python error that is set. GIL held.
[[noreturn]] void throw_set_error();

// Collects torch's warnings of this thread, as torch's own bindings do, and hands them to Python's `warnings`.
class WarningScope {
 public:
  WarningScope();
  ~WarningScope();
  WarningScope(const WarningScope&) = delete;
  WarningScope& operator=(const WarningScope&) = delete;
  // With the GIL held and no error set. False: a filter turned a warning into an error, which is set.
  bool emit();

 private:
  struct Handler;
  std::unique_ptr<Handler> handler_;
  void* previous_;
};

}  // namespace magneto::runtime
