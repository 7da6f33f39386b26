// How dummies are made, and what operators made of them is translated back.
#include "record/rehearsal.h"

#include <ATen/Context.h>
#include <ATen/TensorUtils.h>
#include <ATen/core/Generator.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>

#include "cpython/gil.h"
#include "record/infer.h"
#include "record/plain_tensor.h"
#include "record/recorder_keys.h"
#include "record/tensor_items.h"
#include "record/trace_tensor.h"
#include "runtime/config.h"
#include "runtime/state.h"

namespace magneto::record {
namespace {

using c10::IValue;
using c10::OperatorHandle;
using c10::Stack;
using graph::SchemaInfo;

constexpr size_t kMostBytes = 16 << 20;

// Contents that suit most kernels: positive numbers, and indices that are in range.
at::Tensor make_memory(const at::Tensor& trace, c10::Device device) {
  auto bytes = at::detail::computeStorageNbytes(trace.sizes(), trace.strides(), trace.dtype().itemsize());
  auto count = static_cast<int64_t>(bytes / trace.dtype().itemsize());
  at::Tensor memory = at::empty({count}, at::TensorOptions().dtype(trace.dtype()).device(device));
  memory.fill_(c10::isIntegralType(trace.scalar_type(), /*includeBool=*/true) ? 0 : 1);
  return memory.as_strided(trace.sizes(), trace.strides());
}

class Rehearsal {
 public:
  Rehearsal(const SchemaInfo& info, Dummies kind) : info_(info), kind_(kind) {}

  at::Tensor dummy(const at::Tensor& trace) {
    if (!is_trace(trace)) return trace;  // its contents are known
    for (const Pair& pair : pairs_) {
      if (pair.trace.is_same(trace)) return pair.dummy;
    }
    c10::Device device = storage_device(trace);
    if (!device_ || trace.dim() > 0) device_ = device;
    at::Tensor made = kind_ == Dummies::Memory
                          ? make_memory(trace, device)
                          : at::empty_strided(trace.sizes(), trace.strides(),
                                              at::TensorOptions().dtype(trace.dtype()).device(c10::kMeta));
    if (trace.unsafeGetTensorImpl()->is_wrapped_number()) made.unsafeGetTensorImpl()->set_wrapped_number(true);
    made._set_conj(trace.is_conj());
    made._set_neg(trace.is_neg());
    pairs_.push_back({trace, made});
    return made;
  }

  at::Tensor trace(const at::Tensor& result) {
    if (!is_plain(*result.unsafeGetTensorImpl()) && !result.is_meta()) {
      throw NotInferable(Refusal::Unsupported, info_.name + " made " + why_not_plain(*result.unsafeGetTensorImpl()));
    }
    for (const Pair& pair : pairs_) {
      if (pair.dummy.is_same(result)) return pair.trace;
    }
    for (const Pair& pair : pairs_) {
      if (!pair.dummy.is_alias_of(result)) continue;
      auto offset = pair.trace.sym_storage_offset() - pair.dummy.storage_offset() + result.storage_offset();
      auto view = make_trace_view(pair.trace, result.sym_sizes(), result.sym_strides(), offset, result.scalar_type());
      view._set_conj(result.is_conj());
      view._set_neg(result.is_neg());
      return view;
    }
    at::Tensor made = kind_ == Dummies::Meta ? trace_of(result, device()) : trace_of(result);
    pairs_.push_back({made, result});
    return made;
  }

  // Operators that write may have changed the layout of what they wrote.
  void copy_layouts() {
    for (const Pair& pair : pairs_) {
      const at::Tensor &from = pair.dummy, &to = pair.trace;
      if (from.sizes() == to.sizes() && from.strides() == to.strides()) continue;
      auto* impl = to.unsafeGetTensorImpl();
      auto bytes =
          at::detail::computeStorageNbytes(from.sizes(), from.strides(), from.dtype().itemsize(), to.storage_offset());
      impl->set_sizes_and_strides(from.sizes(), from.strides());
      auto* storage = impl->unsafe_storage().unsafeGetStorageImpl();
      if (storage->nbytes() < bytes) storage->set_nbytes(bytes);
    }
  }

  c10::Device device() const { return device_.value_or(c10::kCPU); }
  void prefer(std::optional<c10::Device> device) {
    if (device) device_ = device;
  }

 private:
  struct Pair {
    at::Tensor trace, dummy;
  };
  const SchemaInfo& info_;
  const Dummies kind_;
  c10::SmallVector<Pair, 8> pairs_;
  std::optional<c10::Device> device_;  // of the results
};

bool is_generator(const c10::Argument& argument) {
  const auto& type = argument.type();
  auto kind = type->kind() == c10::TypeKind::OptionalType ? type->containedType(0)->kind() : type->kind();
  return kind == c10::TypeKind::GeneratorType;
}

// Draws from a copy, so that the program's own random numbers stay what they are.
void replace_generators(const OperatorHandle& op, c10::Device device, Stack& stack) {
  const auto& arguments = op.schema().arguments();
  size_t base = stack.size() - arguments.size();
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (!is_generator(arguments[i])) continue;
    IValue& value = stack[base + i];
    const auto& generator = value.isNone() ? at::globalContext().defaultGenerator(device) : value.toGenerator();
    value = generator.clone();
  }
}

// Where the results belong that factories make on the meta device.
std::optional<c10::Device> move_to_meta(const OperatorHandle& op, Stack& stack) {
  const auto& arguments = op.schema().arguments();
  size_t base = stack.size() - arguments.size();
  std::optional<c10::Device> device;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].name() != "device") continue;
    IValue& value = stack[base + i];
    if (!value.isNone()) device = value.toDevice();
    value = c10::Device(c10::kMeta);
  }
  return device;
}

void allow_meta(const SchemaInfo& info) {
  py::Gil gil;
  if (runtime::config().meta_kernels)
    runtime::count("meta_kernels", info.name);
  else
    throw NotInferable(Refusal::Unsupported, "an operator without a shape rule (" + info.name + ")");
}

}  // namespace

bool fits_memory(const OperatorHandle& op, const SchemaInfo& info, const Stack& stack) {
  const auto& arguments = op.schema().arguments();
  bool draws_by_itself = info.random && std::none_of(arguments.begin(), arguments.end(), is_generator);
  if (draws_by_itself) return false;
  size_t bytes = 0;
  for (size_t i = stack.size() - arguments.size(); i < stack.size(); ++i) {
    each_tensor(stack[i], [&](const at::Tensor& tensor) { bytes += tensor.nbytes(); });
  }
  return bytes <= kMostBytes;
}

void rehearse(const OperatorHandle& op, const SchemaInfo& info, Dummies kind, Stack* stack) {
  if (kind == Dummies::Meta) allow_meta(info);
  c10::impl::ExcludeDispatchKeyGuard off(kBothKeys | c10::autograd_dispatch_keyset_with_ADInplaceOrView);
  runtime::PauseWatch pause;
  size_t base = stack->size() - info.written.size();
  Rehearsal rehearsal(info, kind);
  for (size_t i = base; i < stack->size(); ++i) {
    map_tensors((*stack)[i], [&](const at::Tensor& tensor) { return rehearsal.dummy(tensor); });
  }
  if (kind == Dummies::Meta) rehearsal.prefer(move_to_meta(op, *stack));
  if (info.random) replace_generators(op, rehearsal.device(), *stack);
  op.callBoxed(stack);
  if (info.writes) rehearsal.copy_layouts();
  for (size_t i = base; i < stack->size(); ++i) {
    map_tensors((*stack)[i], [&](const at::Tensor& tensor) { return rehearsal.trace(tensor); });
  }
}

}  // namespace magneto::record
