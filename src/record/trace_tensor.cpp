// The implementation behind trace tensors, and the ways to make one.
#include "record/trace_tensor.h"

#include <ATen/TensorUtils.h>
#include <c10/core/Allocator.h>
#include <c10/core/Storage.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/SmallVector.h>

#include <memory>
#include <string>
#include <typeinfo>
#include <utility>

#include "record/recorder.h"

namespace magneto::record {
namespace {

using c10::DispatchKeySet;
using c10::SymInt;
using c10::SymIntArrayRef;

// The device that the meta device stands for.
thread_local std::optional<c10::Device> meta_stands_for;

class TraceImpl final : public c10::TensorImpl {
 public:
  TraceImpl(c10::Storage storage, DispatchKeySet keys, caffe2::TypeMeta dtype)
      : TensorImpl(std::move(storage), keys, dtype) {
    set_custom_device(true);
  }
  TraceImpl(ImplType, c10::Storage storage, DispatchKeySet keys, caffe2::TypeMeta dtype)
      : TensorImpl(VIEW, std::move(storage), keys, dtype) {
    set_custom_device(true);
  }

  c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(const c10::VariableVersion& version,
                                                         bool allow_change) const override {
    return copy(version, allow_change);
  }
  c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(c10::VariableVersion&& version,
                                                         bool allow_change) const override {
    return copy(std::move(version), allow_change);
  }
  void shallow_copy_from(const c10::intrusive_ptr<TensorImpl>& other) override {
    TensorImpl::shallow_copy_from(other);
    set_custom_device(true);
  }

  void release_resources() override {
    if (Recorder* recorder = Recorder::active()) recorder->forget(this);
    TensorImpl::release_resources();
  }

  c10::Device device_custom() const override { return meta_stands_for ? c10::Device(c10::kMeta) : device_default(); }

  // Asked for only if something is symbolic.
  c10::IntArrayRef sizes_custom() const override { return specialise(sym_sizes_default(), numbers().sizes); }
  int64_t size_custom(int64_t dimension) const override {
    return sym_size_custom(dimension).guard_int(__FILE__, __LINE__);  // and not of the others, too
  }
  c10::IntArrayRef strides_custom() const override { return specialise(sym_strides_default(), numbers().strides); }
  int64_t numel_custom() const override { return sym_numel_default().guard_int(__FILE__, __LINE__); }
  int64_t storage_offset_custom() const override { return sym_storage_offset_default().guard_int(__FILE__, __LINE__); }
  int64_t dim_custom() const override { return static_cast<int64_t>(sym_sizes_default().size()); }

  const char* tensorimpl_type_name() const override { return "magneto::TraceImpl"; }

 private:
  using List = c10::SmallVector<int64_t, 4>;
  struct Numbers {
    List sizes, strides;
  };

  template <class Version>
  c10::intrusive_ptr<TensorImpl> copy(Version&& version, bool allow_change) const {
    auto result = c10::make_intrusive<TraceImpl>(c10::Storage(storage_), key_set_, data_type_);
    copy_tensor_metadata(this, result.get(), std::forward<Version>(version), allow_change);
    result->set_custom_device(true);
    return result;
  }

  Numbers& numbers() const {
    if (!numbers_) numbers_ = std::make_unique<Numbers>();
    return *numbers_;
  }

  c10::IntArrayRef specialise(SymIntArrayRef symbolic, List& numbers) const {
    numbers.clear();
    for (const SymInt& number : symbolic) numbers.push_back(number.guard_int(__FILE__, __LINE__));
    return numbers;
  }

  mutable std::unique_ptr<Numbers> numbers_;
};

// Storages of trace tensors never get memory.
struct NoMemory final : c10::Allocator {
  c10::DataPtr allocate(size_t) override { return {}; }
  void copy_data(void*, const void*, size_t) const override {}
};

struct TraceStorage final : c10::StorageImpl {
  using StorageImpl::StorageImpl;
  void release_resources() override {
    if (Recorder* recorder = Recorder::active()) recorder->forget(this);
    StorageImpl::release_resources();
  }
};

c10::Storage make_storage(SymInt bytes, c10::Device device) {
  static NoMemory& allocator = *new NoMemory;
  static const std::string message =
      "a tensor was asked for its data while its program is being recorded without being run";
  auto storage = c10::make_intrusive<TraceStorage>(c10::StorageImpl::use_byte_size_t(), std::move(bytes),
                                                   c10::DataPtr(nullptr, device), &allocator, /*resizable=*/true);
  storage->release_data_and_set_meta_custom_data_ptr_error_msg_(message);
  return c10::Storage(std::move(storage));
}

bool is_symbolic(SymIntArrayRef sizes, SymIntArrayRef strides, const SymInt& offset) {
  return offset.is_heap_allocated() || !c10::asIntArrayRefSlowOpt(sizes) || !c10::asIntArrayRefSlowOpt(strides);
}

// Where something is symbolic: enough for dense tensors, which all symbolic ones with memory of their own are.
SymInt storage_bytes(SymIntArrayRef sizes, SymIntArrayRef strides, const SymInt& offset, size_t item, bool symbolic) {
  if (!symbolic) {
    return at::detail::computeStorageNbytes(c10::asIntArrayRefUnchecked(sizes), c10::asIntArrayRefUnchecked(strides),
                                            item, offset.as_int_unchecked());
  }
  SymInt bytes = static_cast<int64_t>(item);
  for (const SymInt& size : sizes) bytes *= size;
  return bytes + offset * static_cast<int64_t>(item);
}

void set_layout(TraceImpl& impl, SymIntArrayRef sizes, SymIntArrayRef strides, SymInt offset, bool symbolic) {
  if (!symbolic) {
    impl.set_sizes_and_strides(c10::asIntArrayRefUnchecked(sizes), c10::asIntArrayRefUnchecked(strides),
                               offset.as_int_unchecked());
  } else {
    impl.set_sizes_and_strides(sizes, strides, std::move(offset));
  }
}

DispatchKeySet keys_for(c10::Device device) {
  return DispatchKeySet(c10::computeDispatchKey(std::nullopt, std::nullopt, device)) | DispatchKeySet(kNoteKey);
}

}  // namespace

at::Tensor make_trace(SymIntArrayRef sizes, SymIntArrayRef strides, SymInt offset, c10::ScalarType dtype,
                      c10::Device device) {
  auto type = c10::scalarTypeToTypeMeta(dtype);
  if (meta_stands_for && device.is_meta()) device = *meta_stands_for;
  bool symbolic = is_symbolic(sizes, strides, offset);
  auto impl = c10::make_intrusive<TraceImpl>(
      make_storage(storage_bytes(sizes, strides, offset, type.itemsize(), symbolic), device), keys_for(device), type);
  set_layout(*impl, sizes, strides, std::move(offset), symbolic);
  return at::Tensor(std::move(impl));
}

at::Tensor make_trace_view(const at::Tensor& base, SymIntArrayRef sizes, SymIntArrayRef strides, SymInt offset,
                           std::optional<c10::ScalarType> dtype) {
  const auto* from = base.unsafeGetTensorImpl();
  auto type = dtype ? c10::scalarTypeToTypeMeta(*dtype) : from->dtype();
  auto impl = c10::make_intrusive<TraceImpl>(c10::TensorImpl::VIEW, c10::Storage(from->unsafe_storage()),
                                             from->key_set(), type);
  bool symbolic = is_symbolic(sizes, strides, offset);
  set_layout(*impl, sizes, strides, std::move(offset), symbolic);
  return at::Tensor(std::move(impl));
}

at::Tensor trace_of(const at::Tensor& real, std::optional<c10::Device> device) {
  const auto* from = real.unsafeGetTensorImpl();
  constexpr DispatchKeySet bits({c10::DispatchKey::Conjugate, c10::DispatchKey::Negative});
  c10::Device place = device.value_or(real.device());
  if (meta_stands_for && place.is_meta()) place = *meta_stands_for;
  auto impl = c10::make_intrusive<TraceImpl>(make_storage(real.storage().sym_nbytes(), place),
                                             keys_for(place) | (from->key_set() & bits), from->dtype());
  SymInt offset = real.sym_storage_offset();
  bool symbolic = is_symbolic(real.sym_sizes(), real.sym_strides(), offset);
  set_layout(*impl, real.sym_sizes(), real.sym_strides(), std::move(offset), symbolic);
  if (from->is_wrapped_number()) impl->set_wrapped_number(true);
  return at::Tensor(std::move(impl));
}

bool is_trace_impl(const at::Tensor& tensor) { return typeid(*tensor.unsafeGetTensorImpl()) == typeid(TraceImpl); }

MetaScope::MetaScope(c10::Device device) : before_(std::exchange(meta_stands_for, device)) {}
MetaScope::~MetaScope() { meta_stands_for = before_; }
bool MetaScope::is_on() { return meta_stands_for.has_value(); }

}  // namespace magneto::record
