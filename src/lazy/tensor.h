// Lazy tensors: what they look like is known; what they hold is a tensor of the backing device, or will be one.
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/util/SmallVector.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <memory>

namespace magneto::lazy {

struct Run;

// Shared by all tensors that are the same view of the same memory.
struct Contents final : c10::intrusive_ptr_target {
  at::Tensor real;           // on the backing device; undefined until `run` has made it
  std::shared_ptr<Run> run;  // the step that makes it, once that was ended
  uint64_t step = 0;         // the last one that it had to do with; owned, like `id`, by the lock of the device
  uint32_t id = 0;           // which of the values of that step it is
};
using ContentsPtr = c10::intrusive_ptr<Contents>;

struct Layout {
  explicit Layout(const at::Tensor& tensor);

  bool operator==(const Layout&) const = default;
  bool fits(const at::Tensor& tensor) const;
  // On the backing device, without data.
  at::Tensor trace(c10::Device device) const;

  c10::ScalarType dtype;
  c10::DispatchKeySet bits;  // conjugate and negative
  c10::SmallVector<int64_t, 4> sizes, strides;
  int64_t offset;
  bool is_number;  // a wrapped one
};

inline bool is_lazy(const at::Tensor& tensor) { return tensor.key_set().has(c10::DispatchKey::Lazy); }
Contents& contents_of(const at::Tensor& lazy);
const ContentsPtr& share_contents(const at::Tensor& lazy);

at::Tensor make_lazy(ContentsPtr contents, const Layout& layout);
at::Tensor make_lazy(at::Tensor real);
// Another tensor for the same contents.
at::Tensor alias(const at::Tensor& lazy);
// From now on `lazy` looks like `other` and holds what that holds.
void become(const at::Tensor& lazy, const at::Tensor& other);

}  // namespace magneto::lazy
