// Which tensors recordings and guards understand: dense ones on CPU or CUDA without wrappers around them.
#pragma once
#include <Python.h>

#include <c10/core/DispatchKeySet.h>
#include <c10/core/TensorImpl.h>

#include <string>

namespace magneto::record {

// Keys that a plain tensor may carry.
constexpr c10::DispatchKeySet kPlainKeys =
    c10::DispatchKeySet({c10::DispatchKey::CPU, c10::DispatchKey::CUDA, c10::DispatchKey::ADInplaceOrView,
                         c10::DispatchKey::Conjugate, c10::DispatchKey::Negative}) |
    c10::autograd_dispatch_keyset | c10::autocast_dispatch_keyset;

inline bool is_plain(const c10::TensorImpl& tensor) {
  return (tensor.key_set().raw_repr() & ~kPlainKeys.raw_repr()) == 0 && tensor.has_storage() &&
         !tensor.has_symbolic_sizes_strides();
}

// Empty if is_plain(tensor); otherwise "a sparse tensor" and the like.
std::string why_not_plain(const c10::TensorImpl& tensor);
// The same for an instance of torch.Tensor, whose Python type counts, too: "a tensor subclass MyTensor".
std::string why_not_plain(PyObject* tensor);

}  // namespace magneto::record
