// Trace tensors: tensors that have everything but data, on which programs run while they are recorded without running.
//
// A trace tensor has the dtype, the device and the dispatch keys of the real tensor that it stands for, plus the
// recorder's key, so every operator on it passes autograd as usual and then reaches the recorder. Its storage has a
// size but no memory: a kernel that asks for data gets an error. Views share the storage of their base. Sizes may be
// symbolic; who asks a symbolic tensor for plain numbers specialises it to them.
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/SymIntArrayRef.h>

#include <optional>

#include "record/recorder_keys.h"

namespace magneto::record {

// A trace tensor with memory of its own, which ends with its last element.
at::Tensor make_trace(c10::SymIntArrayRef sizes, c10::SymIntArrayRef strides, c10::SymInt offset, c10::ScalarType dtype,
                      c10::Device device);

// A trace tensor over the memory of the trace tensor `base`. Like the view kernels it keeps the conjugate and negative
// bits of `base`.
at::Tensor make_trace_view(const at::Tensor& base, c10::SymIntArrayRef sizes, c10::SymIntArrayRef strides,
                           c10::SymInt offset, std::optional<c10::ScalarType> dtype = {});

// A trace tensor that looks like `real`: metadata, wrapped number or not, size of the storage; it never requires grad.
// `device` is for meta tensors that stand for tensors on another device.
at::Tensor trace_of(const at::Tensor& real, std::optional<c10::Device> device = {});

inline bool is_trace(const at::Tensor& tensor) {
  return tensor.defined() && tensor.unsafeGetTensorImpl()->key_set().has(kNoteKey);
}

inline bool is_symbolic(const at::Tensor& tensor) { return tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides(); }

// The device, also within a MetaScope.
inline c10::Device storage_device(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->unsafe_storage().device();
}

// Torch's own view kernels give plain implementations over the storage of a trace tensor: is_trace() but not this.
bool is_trace_impl(const at::Tensor& tensor);

// While alive, trace tensors of this thread say that they are on the meta device, so that torch's shape functions ask
// for no data, and trace tensors that are made on the meta device are on `device`.
class MetaScope {
 public:
  explicit MetaScope(c10::Device device);
  ~MetaScope();
  MetaScope(const MetaScope&) = delete;
  MetaScope& operator=(const MetaScope&) = delete;

  static bool is_on();

 private:
  std::optional<c10::Device> before_;
};

}  // namespace magneto::record
