// The one file that includes torch's Python headers.
#include "runtime/torch_python.h"

#include <torch/csrc/autograd/python_variable.h>

#include <cstddef>
#include <vector>

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
  PyGILState_STATE gil = PyGILState_Ensure();
  PyErr_SetString(type, text.c_str());
  python_error error;
  error.persist();
  PyGILState_Release(gil);
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
