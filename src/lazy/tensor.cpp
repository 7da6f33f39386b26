// The implementation behind lazy tensors. It has no storage: nobody can ask it for memory.
#include "lazy/tensor.h"

#include <c10/core/TensorImpl.h>

#include <algorithm>
#include <utility>

#include "lazy/autocast.h"
#include "record/trace_tensor.h"

namespace magneto::lazy {

namespace {

constexpr c10::DispatchKeySet kBits({c10::DispatchKey::Conjugate, c10::DispatchKey::Negative});

class LazyImpl final : public c10::TensorImpl {
 public:
  LazyImpl(ContentsPtr contents, c10::DispatchKeySet bits, caffe2::TypeMeta dtype)
      : TensorImpl(c10::DispatchKeySet(c10::DispatchKey::Lazy) | kAutocastKeys | bits, dtype,
                   c10::Device(c10::kLazy, 0)),
        contents_(std::move(contents)) {
    set_storage_access_should_throw();
  }

  const ContentsPtr& contents() const { return contents_; }

  c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(const c10::VariableVersion& version,
                                                         bool allow_change) const override {
    return copy(version, allow_change);
  }
  c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(c10::VariableVersion&& version,
                                                         bool allow_change) const override {
    return copy(std::move(version), allow_change);
  }
  void shallow_copy_from(const c10::intrusive_ptr<TensorImpl>& other) override {
    contents_ = static_cast<const LazyImpl&>(*other).contents_;
    copy_tensor_metadata(other.get(), this, version_counter(), allow_tensor_metadata_change());
  }

  const char* tensorimpl_type_name() const override { return "magneto::LazyImpl"; }

 private:
  template <class Version>
  c10::intrusive_ptr<TensorImpl> copy(Version&& version, bool allow_change) const {
    auto result = c10::make_intrusive<LazyImpl>(contents_, key_set_ & kBits, data_type_);
    copy_tensor_metadata(this, result.get(), std::forward<Version>(version), allow_change);
    return result;
  }

  ContentsPtr contents_;
};

const LazyImpl& impl_of(const at::Tensor& lazy) { return static_cast<const LazyImpl&>(*lazy.unsafeGetTensorImpl()); }

}  // namespace

Layout::Layout(const at::Tensor& tensor)
    : dtype(tensor.scalar_type()),
      bits(tensor.key_set() & kBits),
      sizes(tensor.sizes().begin(), tensor.sizes().end()),
      strides(tensor.strides().begin(), tensor.strides().end()),
      offset(tensor.storage_offset()),
      is_number(tensor.unsafeGetTensorImpl()->is_wrapped_number()) {}

bool Layout::fits(const at::Tensor& tensor) const {
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  return dtype == tensor.scalar_type() && offset == tensor.storage_offset() &&
         std::ranges::equal(sizes, tensor.sizes()) && std::ranges::equal(strides, tensor.strides()) &&
         bits == (impl.key_set() & kBits) && is_number == impl.is_wrapped_number();
}

at::Tensor Layout::trace(c10::Device device) const {
  auto as_symbols = [](const auto& numbers) { return c10::fromIntArrayRefSlow(numbers); };
  at::Tensor trace = record::make_trace(as_symbols(sizes), as_symbols(strides), offset, dtype, device);
  c10::TensorImpl& impl = *trace.unsafeGetTensorImpl();
  if (bits.has(c10::DispatchKey::Conjugate)) impl._set_conj(true);
  if (bits.has(c10::DispatchKey::Negative)) impl._set_neg(true);
  if (is_number) impl.set_wrapped_number(true);
  return trace;
}

Contents& contents_of(const at::Tensor& lazy) { return *impl_of(lazy).contents(); }
const ContentsPtr& share_contents(const at::Tensor& lazy) { return impl_of(lazy).contents(); }

at::Tensor make_lazy(ContentsPtr contents, const Layout& layout) {
  auto impl = c10::make_intrusive<LazyImpl>(std::move(contents), layout.bits, c10::scalarTypeToTypeMeta(layout.dtype));
  impl->set_sizes_and_strides(layout.sizes, layout.strides, layout.offset);
  if (layout.is_number) impl->set_wrapped_number(true);
  return at::Tensor(std::move(impl));
}

at::Tensor make_lazy(at::Tensor real) {
  Layout layout(real);
  auto contents = c10::make_intrusive<Contents>();
  contents->real = std::move(real);
  return make_lazy(std::move(contents), layout);
}

at::Tensor alias(const at::Tensor& lazy) { return make_lazy(share_contents(lazy), Layout(lazy)); }

void become(const at::Tensor& lazy, const at::Tensor& other) {
  c10::TensorImpl& impl = *lazy.unsafeGetTensorImpl();
  bool may_change = impl.allow_tensor_metadata_change();
  impl.set_allow_tensor_metadata_change(true);
  impl.shallow_copy_from(other.getIntrusivePtr());
  impl.set_allow_tensor_metadata_change(may_change);
}

}  // namespace magneto::lazy
