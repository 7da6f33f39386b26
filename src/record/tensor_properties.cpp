// Reads tensor metadata from the implementation.
#include "record/tensor_properties.h"

#include "cpython/ref.h"
#include "runtime/torch_python.h"

// From torch/csrc/DynamicTypes.h and Device.h; see torch_python.h for why they are not included.
struct THPDtype;
struct THPLayout;
namespace torch {
THPDtype* getTHPDtype(at::ScalarType type);
THPLayout* getTHPLayout(at::Layout layout);
}  // namespace torch
PyObject* THPDevice_New(const at::Device& device);

namespace magneto::record {
namespace {

using c10::DispatchKey;

PyObject* tuple_of(c10::IntArrayRef numbers) {
  py::Ref tuple = py::Ref::steal(PyTuple_New(static_cast<Py_ssize_t>(numbers.size())));
  for (size_t i = 0; tuple && i < numbers.size(); ++i) {
    PyObject* number = PyLong_FromLongLong(numbers[i]);
    if (!number) return nullptr;
    PyTuple_SET_ITEM(tuple.get(), static_cast<Py_ssize_t>(i), number);
  }
  return tuple.release();
}

struct Property {
  const char* name;
  PyObject* (*read)(const at::Tensor& tensor);
};

constexpr Property kProperties[] = {
    {"dtype", [](const at::Tensor& t) { return Py_NewRef((PyObject*)torch::getTHPDtype(t.scalar_type())); }},
    {"device", [](const at::Tensor& t) { return THPDevice_New(t.device()); }},
    {"layout", [](const at::Tensor& t) { return Py_NewRef((PyObject*)torch::getTHPLayout(t.layout())); }},
    {"ndim", [](const at::Tensor& t) { return PyLong_FromLongLong(t.dim()); }},
    {"shape", [](const at::Tensor& t) { return tuple_of(t.sizes()); }},
    {"stride", [](const at::Tensor& t) { return tuple_of(t.strides()); }},
    {"storage_offset", [](const at::Tensor& t) { return PyLong_FromLongLong(t.storage_offset()); }},
    {"numel", [](const at::Tensor& t) { return PyLong_FromLongLong(t.numel()); }},
    {"requires_grad", [](const at::Tensor& t) { return PyBool_FromLong(t.requires_grad()); }},
    {"is_leaf", [](const at::Tensor& t) { return PyBool_FromLong(t.is_leaf()); }},
    {"is_conj", [](const at::Tensor& t) { return PyBool_FromLong(t.is_conj()); }},
    {"is_neg", [](const at::Tensor& t) { return PyBool_FromLong(t.is_neg()); }},
    {"is_inference", [](const at::Tensor& t) { return PyBool_FromLong(t.is_inference()); }},
};

}  // namespace

std::string why_not_checked(PyObject* object) {
  const auto& tensor = runtime::unpack_tensor(object);
  if (!tensor.defined()) return "it holds nothing";
  if (tensor.key_set().has(DispatchKey::Python)) return "its class handles operations in Python";
  if (tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides()) return "its sizes are symbolic";
  return tensor.is_nested() ? "it is nested" : "";
}

const std::vector<std::string>& property_names() {
  static const auto& names = *[] {
    auto* all = new std::vector<std::string>;
    for (const Property& property : kProperties) all->push_back(property.name);
    return all;
  }();
  return names;
}

PyObject* property_of(PyObject* object, size_t index) {
  if (!why_not_checked(object).empty()) return nullptr;
  PyObject* value = nullptr;
  try {
    value = kProperties[index].read(runtime::unpack_tensor(object));
  } catch (const std::exception&) {  // such as the strides of a sparse tensor
  }
  if (!value) PyErr_Clear();
  return value;
}

}  // namespace magneto::record
