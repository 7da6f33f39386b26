// Names what sets a tensor apart from a plain one.
#include "record/plain_tensor.h"

#include "runtime/torch_python.h"

namespace magneto::record {

std::string why_not_plain(const c10::TensorImpl& tensor) {
  using c10::DispatchKey;
  if (is_plain(tensor)) return "";
  auto keys = tensor.key_set();
  if (keys.has(DispatchKey::Python)) return "a tensor with Python dispatch";
  if (keys.has(DispatchKey::FuncTorchGradWrapper) || keys.has(DispatchKey::FuncTorchBatched)) {
    return "a tensor inside a functorch transform";
  }
  if (keys.has(DispatchKey::Functionalize)) return "a functional tensor wrapper";
  if (tensor.is_sparse() || tensor.is_sparse_compressed()) return "a sparse tensor";
  if (tensor.is_quantized()) return "a quantized tensor";
  if (tensor.is_nested()) return "a nested tensor";
  if (!tensor.device().is_cpu() && !tensor.device().is_cuda()) return "a tensor on device " + tensor.device().str();
  if (tensor.has_symbolic_sizes_strides()) return "a tensor with symbolic sizes";
  if (!tensor.has_storage()) return "a tensor without storage";
  c10::DispatchKeySet unusual(c10::DispatchKeySet::RAW, keys.raw_repr() & ~kPlainKeys.raw_repr());
  return "a tensor with the dispatch key " + std::string(c10::toString(unusual.highestPriorityTypeId()));
}

std::string why_not_plain(PyObject* tensor) {
  PyTypeObject* type = Py_TYPE(tensor);
  if (type != runtime::tensor_class() && type != runtime::parameter_class()) {
    return std::string("a tensor subclass ") + type->tp_name;
  }
  return why_not_plain(*runtime::unpack_tensor(tensor).unsafeGetTensorImpl());
}

}  // namespace magneto::record
