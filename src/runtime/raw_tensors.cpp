// How they are made: from an implementation of a tensor that is given a storage, sizes and strides.
#include "runtime/raw_tensors.h"

#include <ATen/ops/_foreach_copy.h>

namespace magneto::runtime {

uint32_t version_of(const at::Tensor& tensor) {
  const auto& counter = tensor.unsafeGetTensorImpl()->version_counter();
  return counter.enabled() ? static_cast<uint32_t>(counter.current_version()) : 0;
}

void set_version(const at::Tensor& tensor, uint32_t version) {
  c10::VariableVersion counter = tensor.unsafeGetTensorImpl()->version_counter();
  if (counter.enabled()) counter.set_version(version);
}

void bump(const at::Tensor& tensor, uint32_t times) {
  for (; times > 0; --times) tensor.unsafeGetTensorImpl()->bump_version();
}

at::Tensor tensor_over(const c10::Storage& storage, const Look& look) {
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(storage), look.keys, look.dtype);
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(look.sizes, look.strides, look.offset);
  bump(tensor, look.version);
  return tensor;
}

namespace {

at::Tensor flat_over(const at::Tensor& tensor, caffe2::TypeMeta dtype, int64_t length, int64_t offset) {
  auto all = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(tensor.storage()), tensor.key_set(), dtype);
  const int64_t stride = 1;
  all.unsafeGetTensorImpl()->set_sizes_and_strides(c10::IntArrayRef(length), c10::IntArrayRef(stride), offset);
  return all;
}

}  // namespace

int64_t span(c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  int64_t last = 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] == 0) return 0;
    last += (sizes[i] - 1) * strides[i];
  }
  return last + 1;
}

at::Tensor flat(const at::Tensor& tensor) {
  return flat_over(tensor, tensor.dtype(), span(tensor.sizes(), tensor.strides()), tensor.storage_offset());
}

at::Tensor whole_memory(const at::Tensor& tensor) {
  auto bytes = static_cast<int64_t>(tensor.storage().nbytes());
  auto type = bytes % 8 == 0 ? at::kLong : bytes % 4 == 0 ? at::kInt : at::kByte;
  int64_t length = bytes / static_cast<int64_t>(c10::elementSize(type));
  return flat_over(tensor, c10::scalarTypeToTypeMeta(type), length, 0);
}

void copy_all(std::vector<at::Tensor>& targets, const std::vector<at::Tensor>& sources) {
  std::vector<at::Tensor> to, from;
  std::vector<bool> done(targets.size(), false);
  for (size_t i = 0; i < targets.size(); ++i) {
    if (done[i]) continue;
    to.clear();
    from.clear();
    for (size_t k = i; k < targets.size(); ++k) {
      if (targets[k].scalar_type() != targets[i].scalar_type()) continue;
      if (sources[k].scalar_type() != sources[i].scalar_type()) continue;
      done[k] = true;
      if (targets[k].numel() == 0) continue;
      to.push_back(targets[k]);
      from.push_back(sources[k]);
    }
    if (to.size() == 1) {
      to[0].copy_(from[0], /*non_blocking=*/true);
    } else if (!to.empty()) {
      at::_foreach_copy_(to, from, /*non_blocking=*/true);
    }
  }
}

bool share_memory(const at::Tensor& a, const at::Tensor& b) { return a.storage().is_alias_of(b.storage()); }

}  // namespace magneto::runtime
