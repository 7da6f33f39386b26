// The kernels of the key Lazy: most calls are recorded; what hands contents on, or cannot be told without them, runs.
#include "lazy/kernels.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/alias.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <pthread.h>

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "graph/schema_info.h"
#include "lazy/autocast.h"
#include "lazy/describe.h"
#include "lazy/device.h"
#include "record/infer.h"
#include "record/tensor_items.h"
#include "runtime/state.h"

namespace magneto::lazy {
namespace {

using c10::DispatchKey;
using c10::DispatchKeySet;
using c10::IValue;
using c10::OperatorHandle;
using c10::Stack;

// ---- one operator at a time, on the backing device

// Operators on real tensors: nothing above the backend takes part a second time.
struct BelowModes {
  c10::impl::ExcludeDispatchKeyGuard off{c10::autograd_dispatch_keyset_with_ADInplaceOrView |
                                         c10::autocast_dispatch_keyset};
};

class FallBack {
 public:
  FallBack(const OperatorHandle& op, Stack* stack)
      : op_(op), info_(graph::schema_info(op)), stack_(*stack), base_(stack->size() - op.schema().arguments().size()) {}

  void run() {
    for (size_t i = base_; i < stack_.size(); ++i) {
      device()->replace_device(stack_[i]);
      record::map_tensors(stack_[i], [this](const at::Tensor& tensor) { return real(tensor); });
    }
    {
      BelowModes below;
      op_.callBoxed(&stack_);
    }
    for (const auto& [lazy, real] : pairs_)
      if (!Layout(lazy).fits(real)) become(lazy, make_lazy(real));
    for (size_t i = base_; i < stack_.size(); ++i)
      record::map_tensors(stack_[i], [this](const at::Tensor& tensor) { return lazy(tensor); });
  }

 private:
  at::Tensor real(const at::Tensor& tensor) {
    if (!is_lazy(tensor)) return tensor;
    bool writes = info_.writes || info_.hidden_writes;
    at::Tensor real = device()->real(tensor, writes);
    BelowModes below;
    // What is resized must not be resized for those that share it.
    pairs_.emplace_back(tensor, writes ? at::alias(real) : real);
    return pairs_.back().second;
  }

  at::Tensor lazy(const at::Tensor& tensor) {
    for (const auto& [lazy, real] : pairs_)
      if (real.is_same(tensor)) return lazy;
    return tensor.layout() == c10::kStrided ? make_lazy(tensor) : tensor;
  }

  const OperatorHandle& op_;
  const graph::SchemaInfo& info_;
  Stack& stack_;
  const size_t base_;
  std::vector<std::pair<at::Tensor, at::Tensor>> pairs_;
};

// What asks for contents, or changes a tensor's size.
void run_kernel(const OperatorHandle& op, DispatchKeySet, Stack* stack) { FallBack(op, stack).run(); }

void fall_back_kernel(const OperatorHandle& op, DispatchKeySet, Stack* stack) {
  device()->metrics().count(op.schema().name());
  FallBack(op, stack).run();
}

void record_kernel(const OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
  if (device()->is_forced(op.schema().name()) || !device()->record(op, stack)) fall_back_kernel(op, keys, stack);
}

// What follows from layouts alone.
void metadata_kernel(const OperatorHandle& op, DispatchKeySet, Stack* stack) {
  for (IValue& value : *stack) {
    record::map_tensors(value, [](const at::Tensor& tensor) {
      return is_lazy(tensor) ? Layout(tensor).trace(device()->backing()) : tensor;
    });
  }
  record::infer(op, graph::schema_info(op), DispatchKeySet(key_of(device()->backing())), stack);
}

// ---- between devices

void copy_kernel(const OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
  at::Tensor self = torch::jit::peek(*stack, 0, 3).toTensor();
  if (is_lazy(self)) return record_kernel(op, keys, stack);
  at::Tensor from = device()->real(torch::jit::peek(*stack, 1, 3).toTensor());
  torch::jit::drop(*stack, 3);
  BelowModes below;
  self.copy_(from);
  stack->emplace_back(std::move(self));
}

void to_copy_kernel(const OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
  constexpr size_t kCount = 7, kDevice = 3;
  at::Tensor self = torch::jit::peek(*stack, 0, kCount).toTensor();
  const IValue& to = torch::jit::peek(*stack, kDevice, kCount);
  bool to_lazy = to.isNone() ? is_lazy(self) : to.toDevice().is_lazy();
  if (is_lazy(self) && to_lazy) return record_kernel(op, keys, stack);
  if (is_lazy(self)) torch::jit::peek(*stack, 0, kCount) = device()->real(self);
  device()->replace_device(torch::jit::peek(*stack, kDevice, kCount));
  BelowModes below;
  op.callBoxed(stack);
  if (to_lazy) stack->back() = make_lazy(stack->back().toTensor());
}

// ---- the same contents in another tensor

void alias_kernel(const OperatorHandle&, DispatchKeySet, Stack* stack) {
  stack->back() = lazy::alias(stack->back().toTensor());
}

// aten::t_ and the like: the tensor becomes what the operator without the underscore returns.
void view_in_place_kernel(const OperatorHandle& op, DispatchKeySet, Stack* stack) {
  at::Tensor self = torch::jit::peek(*stack, 0, op.schema().arguments().size()).toTensor();
  std::string name = op.schema().name();
  name.pop_back();
  auto functional = c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), op.schema().overload_name().c_str());
  functional.redispatchBoxed(DispatchKeySet(DispatchKey::Lazy), stack);
  become(self, stack->back().toTensor());
  stack->back() = std::move(self);
}

void set_kernel(const OperatorHandle&, DispatchKeySet, Stack* stack) {
  at::Tensor source = torch::jit::pop(*stack).toTensor();
  TORCH_CHECK(is_lazy(source) && is_lazy(stack->back().toTensor()), "set_: expected two lazy tensors");
  become(stack->back().toTensor(), source);
}

// ---- composites that do something else on a device that they do not know

// As on the CPU, where others draw and scale in one operator.
void dropout_kernel(const OperatorHandle&, DispatchKeySet, Stack* stack) {
  bool train = torch::jit::pop(*stack).toBool();
  double p = torch::jit::pop(*stack).toDouble();
  at::Tensor input = torch::jit::pop(*stack).toTensor();
  TORCH_CHECK(p >= 0 && p <= 1, "dropout probability has to be between 0 and 1, but got ", p);
  if (p == 0 || !train || input.sym_numel() == 0)
    stack->emplace_back(std::move(input));
  else if (p == 1)
    stack->emplace_back(input.mul(at::zeros({}, input.options())));
  else
    stack->emplace_back(input.mul(at::empty_like(input).bernoulli_(1 - p).div_(1 - p)));
}

// Which way to go is asked as if the tensors were on the CPU.
void attention_kernel(const OperatorHandle& op, DispatchKeySet, Stack* stack) {
  constexpr size_t kCount = 8;
  constexpr int64_t kFlash = 1;
  auto args = torch::jit::last(*stack, kCount).vec();
  auto stand_in = [](const IValue& value) {
    std::optional<at::Tensor> tensor = value.toOptional<at::Tensor>();
    return tensor && tensor->defined() ? std::optional(Layout(*tensor).trace(c10::kCPU)) : std::nullopt;
  };
  auto scale = args[6].toOptional<double>();
  int64_t choice = 0;
  std::optional<at::Tensor> mask = args[3].toOptional<at::Tensor>();
  bool derives_mask = mask && mask->defined() && mask->requires_grad() && c10::GradMode::is_enabled();
  if (device()->backing().is_cpu() && !derives_mask) {
    auto chooser = c10::Dispatcher::singleton().findSchemaOrThrow("aten::_fused_sdp_choice", "");
    Stack asked;
    for (size_t i = 0; i < kCount; ++i) asked.push_back(i < 4 ? IValue(stand_in(args[i])) : args[i]);
    chooser.redispatchBoxed(DispatchKeySet(DispatchKey::CPU), &asked);
    choice = asked.back().toInt();
  }
  if (choice != kFlash) {
    return op.redispatchBoxed(DispatchKeySet(), stack);  // where composites have their kernel
  }
  if (mask && mask->defined() && mask->scalar_type() == at::kBool) {
    at::Tensor added = at::zeros_like(*mask, args[0].toTensor().scalar_type());
    mask = added.masked_fill_(mask->logical_not(), -std::numeric_limits<double>::infinity());
  }
  at::Tensor result = std::get<0>(at::_scaled_dot_product_flash_attention_for_cpu(
      args[0].toTensor(), args[1].toTensor(), args[2].toTensor(), args[4].toDouble(), args[5].toBool(), mask, scale));
  torch::jit::drop(*stack, kCount);
  stack->emplace_back(std::move(result));
}

// A sequence packs its sizes into a tensor of the CPU, wherever it is itself.
void pack_kernel(const OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
  fall_back_kernel(op, keys, stack);
  stack->back() = device()->real(stack->back().toTensor());
}

// ---- registration

struct Guard final : c10::impl::NoOpDeviceGuardImpl<c10::kLazy> {
  c10::Device getDevice() const override { return {c10::kLazy, 0}; }
  c10::Device exchangeDevice(c10::Device) const override { return getDevice(); }
  c10::Stream getStream(c10::Device) const noexcept override { return c10::Stream(c10::Stream::DEFAULT, getDevice()); }
  c10::Stream getNewStream(c10::Device device, int) const override { return getStream(device); }
  c10::Stream exchangeStream(c10::Stream stream) const noexcept override { return stream; }
};

using Kernel = void(const OperatorHandle&, DispatchKeySet, Stack*);

class Registrations {
 public:
  template <Kernel* kernel>
  void add(const c10::OperatorName& name, DispatchKey key = DispatchKey::Lazy) {
    held_.push_back(dispatcher_.registerImpl(name, key, c10::KernelFunction::makeFromBoxedFunction<kernel>(),
                                             std::nullopt, nullptr, "magneto"));
  }

  void add_all() {
    held_.push_back(dispatcher_.registerFallback(
        DispatchKey::Lazy, c10::KernelFunction::makeFromBoxedFunction<&record_kernel>(), "magneto"));
    for (const c10::OperatorName& name : dispatcher_.getAllOpNames())
      if (auto op = dispatcher_.findSchema(name)) add(*op);
    for (DispatchKey key : {DispatchKey::Lazy, DispatchKey::AutogradLazy}) {
      add<&dropout_kernel>({"aten::dropout", ""}, key);
      add<&attention_kernel>({"aten::scaled_dot_product_attention", ""}, key);
    }
  }

 private:
  // A fallback alone would lose to kernels for all backends.
  void add(const OperatorHandle& op) {
    const graph::SchemaInfo& info = graph::schema_info(op);
    const std::string& name = info.name;
    if (name == "aten::matmul.out" || name == "aten::linalg_matrix_power.out")  // which compare storages
      return add<&fall_back_kernel>(op.operator_name());
    bool is_composite = op.hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd);
    if ((is_composite && !op.hasKernelForDispatchKey(key_of(device()->backing()))) || op.schema().arguments().empty())
      return;
    if (name == "aten::copy_") return add<&copy_kernel>(op.operator_name());
    if (name == "aten::_to_copy") return add<&to_copy_kernel>(op.operator_name());
    if (name == "aten::alias" || name == "aten::detach") return add<&alias_kernel>(op.operator_name());
    if (name == "aten::_pack_padded_sequence") return add<&pack_kernel>(op.operator_name());
    if (name == "aten::set_.source_Tensor") return add<&set_kernel>(op.operator_name());
    if (name == "aten::resize_" || name == "aten::resize_as_") return add<&run_kernel>(op.operator_name());
    if (is_view_in_place(op)) return add<&view_in_place_kernel>(op.operator_name());
    if (info.answer == graph::Answer::Number || info.answer == graph::Answer::Value)
      return add<&run_kernel>(op.operator_name());
    if (info.answer == graph::Answer::Metadata) return add<&metadata_kernel>(op.operator_name());
    if (info.dynamic_shape && !info.indexing) return add<&fall_back_kernel>(op.operator_name());
    if (info.random && !takes_generator(op)) return;  // its parts do
    if (is_composite || op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutograd) ||
        op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutogradNonFunctional))
      add<&record_kernel>(op.operator_name());
  }

  static bool takes_generator(const OperatorHandle& op) {
    return std::ranges::any_of(op.schema().arguments(),
                               [](const auto& argument) { return argument.name() == "generator"; });
  }

  bool is_view_in_place(const OperatorHandle& op) const {
    std::string name = op.schema().name();
    if (!op.hasTag(at::Tag::inplace_view) || !name.ends_with('_')) return false;
    name.pop_back();
    auto functional = dispatcher_.findSchema({name, op.schema().overload_name()});
    return functional && graph::schema_info(*functional).returns_view;
  }

  c10::Dispatcher& dispatcher_ = c10::Dispatcher::singleton();
  std::vector<c10::RegistrationHandleRAII> held_;
};

}  // namespace

std::string install(c10::Device backing) {
  if (Device* known = device()) {
    if (known->backing() == backing) return "";
    return "the lazy device has been made already, over " + known->backing().str();
  }
  auto add = c10::Dispatcher::singleton().findSchemaOrThrow("aten::add", "Tensor");
  if (add.hasKernelForDispatchKey(DispatchKey::Lazy)) {
    return "torch's own lazy backend was initialised in this process, and there is one device `lazy` only: call "
           "magneto.lazy.init() in a process that does not do that";
  }
  // The one that torch has asks a backend of its own.
  static Guard& guard = *new Guard;
  c10::impl::DeviceGuardImplRegistrar registrar(c10::kLazy, &guard);
  runtime::process_state().lazy_device = new Device(backing);
  pthread_atfork([] { device()->before_fork(); }, [] { device()->after_fork(false); },
                 [] { device()->after_fork(true); });
  if (backing.is_cpu()) install_autocast();
  (new Registrations)->add_all();  // never destroyed: torch may be gone before us when the process exits
  return "";
}

}  // namespace magneto::lazy
