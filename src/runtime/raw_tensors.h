// Tensors over given memory, made and copied without anything that autograd or a mode would see.
#pragma once
#include <ATen/core/Tensor.h>

#include <vector>

namespace magneto::runtime {

uint32_t version_of(const at::Tensor& tensor);
void set_version(const at::Tensor& tensor, uint32_t version);
void bump(const at::Tensor& tensor, uint32_t times);

// All that a run needs to make such a tensor again.
struct Look {
  explicit Look(const at::Tensor& tensor)
      : keys(tensor.key_set()),
        dtype(tensor.dtype()),
        sizes(tensor.sizes()),
        strides(tensor.strides()),
        offset(tensor.storage_offset()),
        version(version_of(tensor)) {}

  c10::DispatchKeySet keys;
  caffe2::TypeMeta dtype;
  c10::SmallVector<int64_t, 4> sizes;
  c10::SmallVector<int64_t, 4> strides;
  int64_t offset;
  uint32_t version;
};

// Without a dispatched operator, and so without one that a mode or autograd would see.
at::Tensor tensor_over(const c10::Storage& storage, const Look& look);

// How many elements lie between the first and the last in memory, with these two.
int64_t span(c10::IntArrayRef sizes, c10::IntArrayRef strides);
// From the first to the last element as they lie in memory, whatever the strides.
at::Tensor flat(const at::Tensor& tensor);
// All of its memory, in units as large as its size allows.
at::Tensor whole_memory(const at::Tensor& tensor);

// One kernel for each pair of types.
void copy_all(std::vector<at::Tensor>& targets, const std::vector<at::Tensor>& sources);

bool share_memory(const at::Tensor& a, const at::Tensor& b);

}  // namespace magneto::runtime
