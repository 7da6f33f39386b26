// Compares tensors with what was noted about them, in one pass over compact arrays.
#include "record/tensor_checks.h"

#include <torch/csrc/autograd/variable.h>

#include <algorithm>

#include "cpython/ref.h"
#include "graph/graph.h"
#include "record/plain_tensor.h"
#include "runtime/torch_python.h"

namespace magneto::record {
namespace {

// Conjugation, negation, inference mode, sparsity and wrappers all show in the key set. The storage offset is left
// out on purpose: no operator is chosen by it, and slices of one tensor differ in it.
struct Expected {
  PyTypeObject* type;
  uint64_t keys;
  caffe2::TypeMeta dtype;
  c10::Device device;
  bool requires_grad;
  uint32_t dim;
  uint32_t shape_at;  // sizes, then strides, in shapes_
  uint32_t mask_at;   // which of them matter, in masks_; kAll: all of them

  bool operator==(const Expected&) const = default;
};

// What TensorImpl::requires_grad answers, without its two calls.
bool requires_grad(const c10::TensorImpl& impl) {
  const auto* meta = static_cast<const torch::autograd::AutogradMeta*>(impl.autograd_meta());
  if (!meta) return false;
  return meta->is_view_ ? meta->requires_grad() : meta->requires_grad_ || meta->grad_fn_;
}

class Checks final : public runtime::TensorChecks {
 public:
  void add(PyObject* object) override {
    const at::Tensor& tensor = runtime::unpack_tensor(object);
    note(object, tensor, kAll);
    shapes_.insert(shapes_.end(), tensor.sizes().begin(), tensor.sizes().end());
    shapes_.insert(shapes_.end(), tensor.strides().begin(), tensor.strides().end());
  }

  void add(PyObject* object, const runtime::Dimensions& sizes, const runtime::Dimensions& strides) override {
    note(object, runtime::unpack_tensor(object), static_cast<uint32_t>(masks_.size()));
    for (const auto* dimensions : {&sizes, &strides}) {
      for (std::optional<int64_t> number : *dimensions) {
        shapes_.push_back(number.value_or(kAny));
        masks_.push_back(number ? -1 : 0);
      }
    }
  }

  ptrdiff_t first_mismatch(PyObject* const* tensors) const override {
    // Another class may have the address of one that died.
    for (const py::Ref& type : classes_)
      if (PyWeakref_GET_OBJECT(type.get()) == Py_None) return 0;
    const Expected* expected = expected_.data();
    for (size_t i = 0; i < expected_.size(); ++i) {
      if (!matches(expected[i], tensors[i])) [[unlikely]]
        return static_cast<ptrdiff_t>(i);
    }
    return -1;
  }

  size_t size() const override { return expected_.size(); }

  bool same_as(const runtime::TensorChecks& other) const override {
    const auto& checks = static_cast<const Checks&>(other);
    return expected_ == checks.expected_ && shapes_ == checks.shapes_ && masks_ == checks.masks_;
  }

  std::string explain(size_t index, PyObject* actual) const override;

 private:
  static constexpr uint32_t kAll = UINT32_MAX;
  static constexpr int64_t kAny = -1;

  void note(PyObject* object, const at::Tensor& tensor, uint32_t mask_at) {
    const auto* impl = tensor.unsafeGetTensorImpl();
    expected_.push_back({Py_TYPE(object), impl->key_set().raw_repr(), tensor.dtype(), tensor.device(),
                         tensor.requires_grad(), static_cast<uint32_t>(tensor.dim()),
                         static_cast<uint32_t>(shapes_.size()), mask_at});
    auto* type = reinterpret_cast<PyObject*>(Py_TYPE(object));
    bool is_torchs = Py_TYPE(object) == runtime::tensor_class() || Py_TYPE(object) == runtime::parameter_class();
    if (!is_torchs) classes_.push_back(py::Ref::steal(PyWeakref_NewRef(type, nullptr)));
  }

  bool matches(const Expected& expected, PyObject* object) const {
    if (Py_TYPE(object) != expected.type) return false;
    const c10::TensorImpl* impl = runtime::unpack_tensor(object).unsafeGetTensorImpl();
    if (impl->key_set().raw_repr() != expected.keys || impl->has_symbolic_sizes_strides()) return false;
    bool same_shape = expected.mask_at == kAll ? has_shape(expected, *impl) : has_masked_shape(expected, *impl);
    return same_shape && impl->dtype() == expected.dtype && impl->device() == expected.device &&
           requires_grad(*impl) == expected.requires_grad;
  }

  bool has_shape(const Expected& expected, const c10::TensorImpl& impl) const {
    auto sizes = impl.sizes();
    if (sizes.size() != expected.dim) return false;
    auto strides = impl.strides();
    const int64_t* shape = shapes_.data() + expected.shape_at;
    int64_t differ = 0;  // without branches: shapes are short and nearly always equal
    for (uint32_t i = 0; i < expected.dim; ++i) {
      differ |= (sizes[i] ^ shape[i]) | (strides[i] ^ shape[expected.dim + i]);
    }
    return differ == 0;
  }

  // Asks for strides only if one matters: not every layout has them.
  bool has_masked_shape(const Expected& expected, const c10::TensorImpl& impl) const {
    const int64_t *shape = shapes_.data() + expected.shape_at, *mask = masks_.data() + expected.mask_at;
    auto agree = [&](c10::IntArrayRef numbers, size_t at) {
      for (size_t i = 0; i < numbers.size(); ++i)
        if ((numbers[i] ^ shape[at + i]) & mask[at + i]) return false;
      return true;
    };
    auto sizes = impl.sizes();
    if (sizes.size() != expected.dim || !agree(sizes, 0)) return false;
    const int64_t* strides_mask = mask + expected.dim;
    return std::find(strides_mask, strides_mask + expected.dim, -1) == strides_mask + expected.dim ||
           agree(impl.strides(), expected.dim);
  }

  graph::Value value_of(const Expected& expected) const {
    auto shape = shapes_.begin() + expected.shape_at;
    return {graph::Role::Argument,
            c10::typeMetaToScalarType(expected.dtype),
            expected.device,
            {shape, shape + expected.dim},
            {shape + expected.dim, shape + 2 * expected.dim}};
  }

  std::vector<Expected> expected_;
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
  const Expected& expected = expected_.at(index);
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
