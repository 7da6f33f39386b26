// Which operators are cast to what, and the casts of parameters that a block shares.
#include "lazy/autocast.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "lazy/tensor.h"
#include "record/tensor_items.h"

namespace magneto::lazy {

namespace {

using c10::DispatchKey;
using c10::DispatchKeySet;
using c10::OperatorHandle;
using c10::Stack;

// On the CPU. All others that torch has an autocast kernel for compute in float32.
constexpr std::array<std::string_view, 21> kLower = {
    "aten::_addmm_activation",
    "aten::_convolution",
    "aten::_native_multi_head_attention",
    "aten::addbmm",
    "aten::addmm",
    "aten::baddbmm",
    "aten::bmm",
    "aten::conv1d",
    "aten::conv2d",
    "aten::conv3d",
    "aten::conv_tbc",
    "aten::conv_transpose1d",
    "aten::conv_transpose2d",
    "aten::conv_transpose3d",
    "aten::linalg_vecdot",
    "aten::linear",
    "aten::matmul",
    "aten::mkldnn_rnn_layer",
    "aten::mm",
    "aten::prelu",
    "aten::scaled_dot_product_attention",
};
constexpr std::array<std::string_view, 3> kWidest = {"aten::cat", "aten::index_copy", "aten::stack"};

constexpr c10::ScalarType dtype_of(DispatchKey key) { return key == kAutocastToHalf ? at::kHalf : at::kBFloat16; }

using Weak = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

// Casts of parameters that an autocast block makes once, as torch does for other devices. When the outermost block
// ends, torch drops the casts that it has, among them one of `witness`: so do we when that is gone.
class Casts {
 public:
  at::Tensor find(const at::Tensor& tensor, c10::ScalarType to) {
    std::unordered_map<c10::TensorImpl*, std::pair<Weak, at::Tensor>> dropped;
    std::lock_guard lock(lock_);
    if (witness_cast_.expired()) {
      dropped.swap(made_);
      witness_cast_ = Weak(cast_of_witness().getIntrusivePtr());
    }
    auto found = made_.find(tensor.unsafeGetTensorImpl());
    return found != made_.end() && found->second.second.scalar_type() == to ? found->second.second : at::Tensor();
  }
  void add(const at::Tensor& tensor, const at::Tensor& cast) {
    std::lock_guard lock(lock_);
    made_.insert_or_assign(tensor.unsafeGetTensorImpl(), std::pair(Weak(tensor.getIntrusivePtr()), cast));
  }

 private:
  at::Tensor cast_of_witness() const {
    return at::autocast::cached_cast(at::autocast::get_autocast_dtype(at::kCPU), witness_, at::kCPU);
  }

  std::mutex lock_;
  std::unordered_map<c10::TensorImpl*, std::pair<Weak, at::Tensor>> made_;
  const at::Tensor witness_ = at::zeros({1}, at::kFloat).requires_grad_();
  Weak witness_cast_{c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>()};
};

Casts& casts() {
  static Casts& casts = *new Casts;
  return casts;
}

bool is_castable(const at::Tensor& tensor) {
  return is_lazy(tensor) && tensor.is_floating_point() && tensor.scalar_type() != at::kDouble;
}

at::Tensor cast(const at::Tensor& tensor, c10::ScalarType to, c10::ScalarType lower) {
  if (!is_castable(tensor) || tensor.scalar_type() == to) return tensor;
  bool is_shared = to == lower && tensor.scalar_type() == at::kFloat && tensor.requires_grad() && tensor.is_leaf() &&
                   !tensor.is_view() && at::autocast::is_autocast_cache_enabled();
  if (!is_shared) return tensor.to(to);
  if (at::Tensor known = casts().find(tensor, to); known.defined()) return known;
  at::Tensor made = tensor.to(to);
  casts().add(tensor, made);
  return made;
}

c10::ScalarType widest(c10::ArrayRef<c10::IValue> args, c10::ScalarType lower) {
  c10::ScalarType found = lower;
  for (const c10::IValue& arg : args) {
    record::each_tensor(arg, [&](const at::Tensor& tensor) {
      if (is_lazy(tensor) && tensor.is_floating_point()) found = c10::promoteTypes(found, tensor.scalar_type());
    });
  }
  return found;
}

enum class Policy { Lower, Float, Widest };

template <DispatchKey key, Policy policy>
void cast_and_call(const OperatorHandle& op, DispatchKeySet, Stack* stack) {
  c10::impl::ExcludeDispatchKeyGuard off(c10::autocast_dispatch_keyset);
  constexpr c10::ScalarType lower = dtype_of(key);
  size_t count = op.schema().arguments().size();
  c10::ScalarType to = policy == Policy::Lower   ? lower
                       : policy == Policy::Float ? at::kFloat
                                                 : widest(torch::jit::last(*stack, count), lower);
  for (size_t i = stack->size() - count; i < stack->size(); ++i)
    record::map_tensors((*stack)[i], [&](const at::Tensor& tensor) { return cast(tensor, to, lower); });
  op.callBoxed(stack);
}

template <DispatchKey key>
void add_kernels(std::vector<c10::RegistrationHandleRAII>& held) {
  c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
  auto add = [&]<Policy policy>(const OperatorHandle& op) {
    auto kernel = c10::KernelFunction::makeFromBoxedFunction<&cast_and_call<key, policy>>();
    held.push_back(
        dispatcher.registerImpl(op.operator_name(), key, std::move(kernel), std::nullopt, nullptr, "magneto"));
  };
  held.push_back(dispatcher.registerFallback(key, c10::KernelFunction::makeFallthrough(), "magneto"));
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    auto op = dispatcher.findSchema(name);
    if (!op || !op->hasKernelForDispatchKey(DispatchKey::AutocastCPU)) continue;
    if (std::ranges::find(kLower, name.name) != kLower.end())
      add.template operator()<Policy::Lower>(*op);
    else if (std::ranges::find(kWidest, name.name) != kWidest.end())
      add.template operator()<Policy::Widest>(*op);
    else
      add.template operator()<Policy::Float>(*op);
  }
}

}  // namespace

void install_autocast() {
  c10::InferenceMode off(false);
  casts();                                                     // whose witness is an ordinary tensor
  auto& held = *new std::vector<c10::RegistrationHandleRAII>;  // never destroyed, as the other kernels
  add_kernels<kAutocastToBFloat16>(held);
  add_kernels<kAutocastToHalf>(held);
}

}  // namespace magneto::lazy
