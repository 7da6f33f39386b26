// Compares tensors with what was noted about them, in one pass over compact arrays.
#include "record/tensor_checks.h"

#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cstring>

#include "cpython/ref.h"
#include "graph/graph.h"
#include "record/plain_tensor.h"
#include "runtime/torch_python.h"

namespace magneto::record {
namespace {

// What is expected of a tensor. Conjugation, negation, inference mode, sparsity and wrappers all show in the key set.
// The storage offset is left out on purpose: no operator is chosen by it, and slices of one tensor differ in it.
struct Kind {
  PyTypeObject* type;
  uint64_t keys;
  uint64_t traits;  // as the tensor had them that was noted; kUnknown: its fields do not tell
  caffe2::TypeMeta dtype;
  c10::Device device;
  bool requires_grad;
  bool strides_follow;  // from traits and sizes
  uint32_t dim;
  uint32_t shape_at;  // sizes, then strides, in shapes_, and in masks_ which bits of them matter
};

constexpr uint64_t kUnknown = UINT64_MAX;

// Where a plain tensor keeps what its methods tell.
struct Fields : c10::TensorImpl {
  // Whether they are where the functions below look for them.
  static bool are_known(const c10::TensorImpl& impl) {
    constexpr auto dtype = &Fields::data_type_;
    constexpr auto keys = &Fields::key_set_;
    constexpr auto matches = &Fields::matches_policy;
    auto distance = reinterpret_cast<const char*>(&(impl.*keys)) - reinterpret_cast<const char*>(&(impl.*dtype));
    return distance == sizeof(uint64_t) && is_plain(impl) && !(impl.*matches)(SizesStridesPolicy::CustomStrides);
  }

  // Data type, device and flags, which stand side by side in front of the keys. Among the flags are those that say
  // whether the shape and the device are in fields at all.
  static uint64_t traits(const c10::TensorImpl& impl) {
    constexpr auto dtype = &Fields::data_type_;
    uint64_t bytes;
    std::memcpy(&bytes, &(impl.*dtype), sizeof bytes);
    return bytes;
  }

  static const c10::impl::SizesAndStrides& shape(const c10::TensorImpl& impl) {
    constexpr auto shape = &Fields::sizes_and_strides_;
    return impl.*shape;
  }
};

// What TensorImpl::requires_grad answers, without two of its calls.
bool requires_grad(const c10::TensorImpl& impl) {
  const auto* meta = static_cast<const torch::autograd::AutogradMeta*>(impl.autograd_meta());
  if (!meta) return false;
  return meta->requires_grad_ || (meta->is_view_ ? meta->requires_grad() : meta->grad_fn_ != nullptr);
}

class Checks final : public runtime::TensorChecks {
 public:
  void add(PyObject* object, const std::vector<int>& open) override {
    const at::Tensor& tensor = runtime::unpack_tensor(object);
    size_t dim = tensor.sizes().size(), at = shapes_.size();
    shapes_.insert(shapes_.end(), tensor.sizes().begin(), tensor.sizes().end());
    shapes_.insert(shapes_.end(), tensor.strides().begin(), tensor.strides().end());
    masks_.resize(shapes_.size(), -1);
    auto leave = [&](size_t i) { shapes_[i] = kAny, masks_[i] = 0; };
    for (int dimension : open) leave(at + static_cast<size_t>(dimension));
    for (size_t i = 0; i < dim && !open.empty(); ++i) leave(at + dim + i);
    note(object, tensor);
  }

  void add(PyObject* object, const runtime::Dimensions& sizes, const runtime::Dimensions& strides) override {
    for (const auto* dimensions : {&sizes, &strides}) {
      for (std::optional<int64_t> number : *dimensions) {
        shapes_.push_back(number.value_or(kAny));
        masks_.push_back(number ? -1 : 0);
      }
    }
    note(object, runtime::unpack_tensor(object));
  }

  ptrdiff_t first_mismatch(PyObject* const* tensors) const override {
    // Another class may have the address of one that died.
    for (const py::Ref& type : classes_)
      if (PyWeakref_GET_OBJECT(type.get()) == Py_None) return 0;
    for (size_t i = 0; i < kinds_of_.size(); ++i) {
      if (!matches(kinds_[kinds_of_[i]], tensors[i])) [[unlikely]]
        return static_cast<ptrdiff_t>(i);
    }
    return -1;
  }

  std::optional<std::vector<int>> changed_sizes(size_t index, PyObject* object) const override {
    const Kind& kind = kinds_[kinds_of_[index]];
    if (Py_TYPE(object) != kind.type) return std::nullopt;
    const c10::TensorImpl& impl = *runtime::unpack_tensor(object).unsafeGetTensorImpl();
    bool alike = impl.key_set().raw_repr() == kind.keys && requires_grad(impl) == kind.requires_grad &&
                 !impl.has_symbolic_sizes_strides() && impl.dim() == kind.dim && impl.dtype() == kind.dtype &&
                 impl.device() == kind.device;
    if (!alike) return std::nullopt;
    std::vector<int> changed;
    for (uint32_t i = 0; i < kind.dim; ++i)
      if ((impl.sizes()[i] ^ shapes_[kind.shape_at + i]) & masks_[kind.shape_at + i])
        changed.push_back(static_cast<int>(i));
    return changed;
  }

  size_t size() const override { return kinds_of_.size(); }

  bool same_as(const runtime::TensorChecks& other) const override {
    const auto& checks = static_cast<const Checks&>(other);
    if (size() != checks.size()) return false;
    for (size_t i = 0; i < size(); ++i)
      if (!expect_the_same(kinds_[kinds_of_[i]], checks, checks.kinds_[checks.kinds_of_[i]])) return false;
    return true;
  }

  std::string explain(size_t index, PyObject* actual) const override;

 private:
  static constexpr int64_t kAny = -1;

  // The shape stands at the end already.
  void note(PyObject* object, const at::Tensor& tensor) {
    const auto& impl = *tensor.unsafeGetTensorImpl();
    auto dim = static_cast<uint32_t>(tensor.dim());
    auto shape_at = static_cast<uint32_t>(shapes_.size() - 2 * dim);
    bool known = Fields::are_known(impl);
    Kind kind{Py_TYPE(object),
              impl.key_set().raw_repr(),
              known ? Fields::traits(impl) : kUnknown,
              tensor.dtype(),
              tensor.device(),
              tensor.requires_grad(),
              known && impl.is_contiguous() && has_unique_strides(dim, shape_at),
              dim,
              shape_at};
    kinds_of_.push_back(index_of(kind));
    auto* type = reinterpret_cast<PyObject*>(Py_TYPE(object));
    bool is_torchs = Py_TYPE(object) == runtime::tensor_class() || Py_TYPE(object) == runtime::parameter_class();
    if (!is_torchs) classes_.push_back(py::Ref::steal(PyWeakref_NewRef(type, nullptr)));
  }

  // Whether these are the strides of every contiguous tensor of these sizes; a dimension of size 1 may have any.
  bool has_unique_strides(uint32_t dim, uint32_t shape_at) const {
    const int64_t *sizes = shapes_.data() + shape_at, *strides = sizes + dim;
    auto mask = masks_.begin() + shape_at;
    if (std::find(mask, mask + 2 * dim, 0) != mask + 2 * dim) return false;
    uint64_t stride = 1;
    for (uint32_t i = dim; i-- > 0; stride *= static_cast<uint64_t>(sizes[i]))
      if (sizes[i] < 2 || static_cast<uint64_t>(strides[i]) != stride) return false;
    return true;
  }

  // The weights of a model are of few kinds: looked up among the latest, they stay in the nearest cache.
  uint32_t index_of(const Kind& kind) {
    constexpr size_t kLatest = 32;
    for (size_t i = kinds_.size(); i > 0 && i + kLatest > kinds_.size(); --i) {
      if (kinds_[i - 1].traits != kind.traits || !expect_the_same(kinds_[i - 1], *this, kind)) continue;
      shapes_.resize(kind.shape_at), masks_.resize(kind.shape_at);
      return static_cast<uint32_t>(i - 1);
    }
    kinds_.push_back(kind);
    return static_cast<uint32_t>(kinds_.size() - 1);
  }

  bool expect_the_same(const Kind& a, const Checks& other, const Kind& b) const {
    auto equal = [&](const std::vector<int64_t>& ours, const std::vector<int64_t>& theirs) {
      return std::equal(ours.begin() + a.shape_at, ours.begin() + a.shape_at + 2 * a.dim, theirs.begin() + b.shape_at);
    };
    return a.type == b.type && a.keys == b.keys && a.dtype == b.dtype && a.device == b.device &&
           a.requires_grad == b.requires_grad && a.dim == b.dim && equal(shapes_, other.shapes_) &&
           equal(masks_, other.masks_);
  }

  bool matches(const Kind& kind, PyObject* object) const {
    if (Py_TYPE(object) != kind.type) return false;
    const c10::TensorImpl& impl = *runtime::unpack_tensor(object).unsafeGetTensorImpl();
    if (impl.key_set().raw_repr() != kind.keys || requires_grad(impl) != kind.requires_grad) return false;
    if (Fields::traits(impl) == kind.traits && kind.traits != kUnknown) [[likely]]
      return has_fields(kind, Fields::shape(impl));
    return !impl.has_symbolic_sizes_strides() && has_shape(kind, impl) && impl.dtype() == kind.dtype &&
           impl.device() == kind.device;
  }

  bool has_fields(const Kind& kind, const c10::impl::SizesAndStrides& shape) const {
    if (shape.size() != kind.dim) return false;
    const int64_t *expected = shapes_.data() + kind.shape_at, *mask = masks_.data() + kind.shape_at;
    int64_t differ = 0;  // without branches: shapes are short and nearly always equal
    auto compare = [&](const int64_t* numbers, size_t at) {
      for (size_t i = 0; i < kind.dim; ++i) differ |= (numbers[i] ^ expected[at + i]) & mask[at + i];
    };
    compare(shape.sizes_data(), 0);
    if (!kind.strides_follow) compare(shape.strides_data(), kind.dim);  // often a cache line of their own
    return differ == 0;
  }

  // Asks for strides only if one matters: not every layout has them.
  bool has_shape(const Kind& kind, const c10::TensorImpl& impl) const {
    const int64_t *shape = shapes_.data() + kind.shape_at, *mask = masks_.data() + kind.shape_at;
    auto agree = [&](c10::IntArrayRef numbers, size_t at) {
      for (size_t i = 0; i < numbers.size(); ++i)
        if ((numbers[i] ^ shape[at + i]) & mask[at + i]) return false;
      return true;
    };
    auto sizes = impl.sizes();
    if (sizes.size() != kind.dim || !agree(sizes, 0)) return false;
    const int64_t* strides_mask = mask + kind.dim;
    return std::find(strides_mask, strides_mask + kind.dim, -1) == strides_mask + kind.dim ||
           agree(impl.strides(), kind.dim);
  }

  graph::Value value_of(const Kind& expected) const {
    auto shape = shapes_.begin() + expected.shape_at;
    return {graph::Role::Argument,
            c10::typeMetaToScalarType(expected.dtype),
            expected.device,
            {shape, shape + expected.dim},
            {shape + expected.dim, shape + 2 * expected.dim}};
  }

  std::vector<Kind> kinds_;
  std::vector<uint32_t> kinds_of_;  // by tensor
  std::vector<int64_t> shapes_, masks_;
  std::vector<py::Ref> classes_;  // weak references to the user's classes among the types
};

std::string describe(PyTypeObject* type, const graph::Value& value, bool requires_grad, uint64_t keys) {
  auto has = [&](c10::DispatchKey key) { return c10::DispatchKeySet(c10::DispatchKeySet::RAW, keys).has(key); };
  std::string text = graph::to_text(value);
  if (type != runtime::tensor_class()) text = std::string(type->tp_name) + " " + text;
  if (requires_grad) text += " requiring grad";
  if (has(c10::DispatchKey::Conjugate)) text += " conjugated";
  if (has(c10::DispatchKey::Negative)) text += " negated";
  if (!has(c10::DispatchKey::ADInplaceOrView)) text += " made in inference mode";
  return text;
}

std::string Checks::explain(size_t index, PyObject* actual) const {
  const Kind& expected = kinds_[kinds_of_.at(index)];
  for (const py::Ref& type : classes_)
    if (PyWeakref_GET_OBJECT(type.get()) == Py_None) return "of another class: the one it had is gone";
  std::string was = describe(expected.type, value_of(expected), expected.requires_grad, expected.keys);
  for (size_t at; (at = was.find("-1")) != std::string::npos;) was.replace(at, 2, "any");
  if (!PyObject_TypeCheck(actual, runtime::tensor_class())) {
    return std::string(Py_TYPE(actual)->tp_name) + ", was " + was;
  }
  const at::Tensor& tensor = runtime::unpack_tensor(actual);
  if (auto kind = why_not_plain(*tensor.unsafeGetTensorImpl()); !kind.empty()) return kind + ", was " + was;
  graph::Value value{graph::Role::Argument,
                     tensor.scalar_type(),
                     tensor.device(),
                     {tensor.sizes().begin(), tensor.sizes().end()},
                     {tensor.strides().begin(), tensor.strides().end()}};
  return describe(Py_TYPE(actual), value, tensor.requires_grad(), tensor.key_set().raw_repr()) + ", was " + was;
}

}  // namespace

std::unique_ptr<runtime::TensorChecks> make_tensor_checks() { return std::make_unique<Checks>(); }

}  // namespace magneto::record
