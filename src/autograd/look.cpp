// How tensors are compared with what was captured.
#include "autograd/look.h"

#include <algorithm>

namespace magneto::autograd {

Look::Look(const at::Tensor& tensor)
    : keys(tensor.key_set().raw_repr()), dtype(tensor.scalar_type()), is_strided(tensor.layout() == c10::kStrided) {
  if (!is_strided) return;
  offset = tensor.storage_offset();
  for (int64_t size : tensor.sizes()) sizes.push_back({size});
  strides.append(tensor.strides().begin(), tensor.strides().end());
}

bool Look::fits(const at::Tensor& tensor, SymbolValues& values) const {
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  if (impl.key_set().raw_repr() != keys || tensor.scalar_type() != dtype) return false;
  if (!is_strided) return true;
  if (impl.has_symbolic_sizes_strides()) return false;
  c10::IntArrayRef now = impl.sizes();
  if (now.size() != sizes.size()) return false;
  for (size_t i = 0; i < now.size(); ++i)
    if (!sizes[i].fits(now[i], values)) return false;
  return is_open || std::ranges::equal(impl.strides(), strides);
}

std::string Look::text() const {
  std::string text;
  for (const Size& size : sizes) text += (text.empty() ? "" : ", ") + std::to_string(size.number);
  return "[" + text + "]";
}

}  // namespace magneto::autograd
