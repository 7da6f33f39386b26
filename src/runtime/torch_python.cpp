// The one file that includes torch's Python headers.
#include "runtime/torch_python.h"

#include <ATen/PythonTorchFunctionTLS.h>
#include <torch/csrc/Device.h>
#include <torch/csrc/PyInterpreter.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/python_symnode.h>

#include <cmath>
#include <cstddef>
#include <vector>

#include "cpython/gil.h"
#include "cpython/ref.h"

namespace magneto::runtime {

static_assert(offsetof(THPVariable, cdata) == sizeof(PyObject));
static_assert(std::is_same_v<decltype(THPVariable::cdata), at::Tensor>);

PyObject* wrap_tensor(at::Tensor&& tensor) {
  try {
    return THPVariable_Wrap(std::move(tensor));
  } catch (...) {
    set_python_error(std::current_exception());
    return nullptr;
  }
}

PyTypeObject* tensor_class() { return reinterpret_cast<PyTypeObject*>(THPVariableClass); }
PyTypeObject* parameter_class() { return reinterpret_cast<PyTypeObject*>(ParameterClass); }

std::optional<c10::Device> default_device() {
  using Modes = at::impl::PythonTorchFunctionTLS;
  if (Modes::stack_len() != 1) return std::nullopt;
  py::Gil gil;
  static PyTypeObject* const context = [] {
    py::Ref module = py::Ref::steal(PyImport_ImportModule("torch.utils._device"));
    py::Ref type = py::Ref::steal(module ? PyObject_GetAttrString(module.get(), "DeviceContext") : nullptr);
    PyErr_Clear();
    return type && PyType_Check(type.get()) ? reinterpret_cast<PyTypeObject*>(type.release()) : nullptr;
  }();
  PyObject* mode = Modes::get_stack_at(0)->ptr(getPyInterpreter());
  if (Py_TYPE(mode) != context) return std::nullopt;
  py::Ref device = py::Ref::steal(PyObject_GetAttrString(mode, "device"));
  if (!device) PyErr_Clear();
  if (!device || !THPDevice_Check(device.get())) return std::nullopt;
  return reinterpret_cast<THPDevice*>(device.get())->device;
}

namespace {

// What torch writes instead of a symbolic int, float or bool.
bool is_placeholder(const at::Tensor& tensor) {
  constexpr int64_t kPlaceholder = 7777777;
  if (!tensor.unsafeGetTensorImpl()->is_wrapped_number() || !tensor.device().is_cpu()) return false;
  if (tensor.scalar_type() == c10::kLong) return *tensor.const_data_ptr<int64_t>() == kPlaceholder;
  if (tensor.scalar_type() == c10::kDouble) return std::isnan(*tensor.const_data_ptr<double>());
  return tensor.scalar_type() == c10::kBool;
}

}  // namespace

std::optional<c10::Scalar> wrapped_number(const at::Tensor& tensor) {
  if (!is_placeholder(tensor)) return std::nullopt;
  pybind11::gil_scoped_acquire gil;
  auto object = pybind11::reinterpret_steal<pybind11::object>(THPVariable_Wrap(tensor));
  return symbolic_number(pybind11::getattr(object, "_wrapped_number", pybind11::none()).ptr());
}

std::optional<c10::Scalar> symbolic_number(PyObject* object) {
  pybind11::handle number = object;
  if (torch::is_symint(number)) return c10::Scalar(number.cast<c10::SymInt>());
  if (torch::is_symfloat(number)) return c10::Scalar(number.cast<c10::SymFloat>());
  if (torch::is_symbool(number)) return c10::Scalar(number.cast<c10::SymBool>());
  return std::nullopt;
}

PyObject* wrap_number(const c10::Scalar& number) {
  try {
    // Of floats and conditions, torch's own casts know only nodes that are written in Python.
    if (number.isFloatingPoint() && number.toSymFloat().is_symbolic())
      return torch::get_symfloat_class()(pybind11::cast(number.toSymFloat().toSymNodeImpl())).release().ptr();
    if (number.isBoolean() && number.toSymBool().maybe_as_bool() == std::nullopt)
      return torch::get_symbool_class()(pybind11::cast(number.toSymBool().toSymNodeImpl())).release().ptr();
    pybind11::object made = number.isFloatingPoint() ? pybind11::cast(number.toSymFloat())
                            : number.isBoolean()     ? pybind11::cast(number.toSymBool())
                                                     : pybind11::cast(number.toSymInt());
    return made.release().ptr();
  } catch (...) {
    set_python_error(std::current_exception());
    return nullptr;
  }
}

c10::SymNode unwrap_node(const c10::SymNode& node) {
  auto* wrapper = dynamic_cast<torch::impl::PythonSymNodeImpl*>(node.get());
  if (!wrapper) return node;
  pybind11::gil_scoped_acquire gil;
  pybind11::handle object = wrapper->getPyObj();
  return pybind11::isinstance<c10::SymNodeImpl>(object) ? object.cast<c10::SymNode>() : node;
}

void set_python_error(const std::exception_ptr& error) {
  try {
    torch::translate_exception_to_python(error);
  } catch (const std::exception& unknown) {
    PyErr_SetString(PyExc_RuntimeError, unknown.what());
  } catch (...) {
    PyErr_SetString(PyExc_RuntimeError, "an operator failed with an unknown C++ exception");
  }
  if (!PyErr_Occurred()) PyErr_SetString(PyExc_RuntimeError, "an operator failed without saying why");
}

void throw_python_error(PyObject* type, const std::string& text) {
  py::Gil gil;
  PyErr_SetString(type, text.c_str());
  throw_set_error();
}

void throw_set_error() {
  python_error error;
  error.persist();
  throw error;
}

struct WarningScope::Handler final : c10::WarningHandler {
  void process(const c10::Warning& warning) override { warnings.push_back(warning); }
  std::vector<c10::Warning> warnings;
};

WarningScope::WarningScope()
    : handler_(std::make_unique<Handler>()), previous_(c10::WarningUtils::get_warning_handler()) {
  c10::WarningUtils::set_warning_handler(handler_.get());
}

WarningScope::~WarningScope() { c10::WarningUtils::set_warning_handler(static_cast<c10::WarningHandler*>(previous_)); }

bool WarningScope::emit() {
  auto warnings = std::move(handler_->warnings);
  handler_->warnings.clear();
  for (const auto& warning : warnings) {
    bool deprecated = std::holds_alternative<c10::Warning::DeprecationWarning>(warning.type());
    PyObject* category = deprecated ? PyExc_DeprecationWarning : PyExc_UserWarning;
    std::string text = warning.msg();
    if (!warning.verbatim()) {
      const auto& source = warning.source_location();
      text += std::string(" (Triggered internally at ") + source.file + ":" + std::to_string(source.line) + ".)";
    }
    if (PyErr_WarnEx(category, text.c_str(), 1) < 0) return false;
  }
  return true;
}

}  // namespace magneto::runtime
