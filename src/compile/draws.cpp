// aten::bernoulli.p, the partner of aten::bernoulli_.float, gives contiguous tensors only. Kernels fill a dense tensor
// in the order of its memory, so it is shown the dimensions in that order.
#include "compile/draws.h"

#include <ATen/Context.h>
#include <ATen/core/List.h>
#include <ATen/ops/bernoulli.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <numeric>
#include <optional>

namespace magneto::compile {
namespace {

using graph::Op;
using graph::ValueId;

// Some libraries behind the kernel draw in the order of the dimensions instead, so it is tried out.
bool draws_in_memory_order(c10::Device device) {
  static std::optional<bool> answers[2];  // owned by the GIL
  std::optional<bool>& answer = answers[device.is_cuda()];
  if (answer) return *answer;
  c10::impl::ExcludeDispatchKeyGuard below_autograd(c10::autograd_dispatch_keyset_with_ADInplaceOrView);
  auto draw = [&](bool transposed) {
    at::Generator generator = at::globalContext().defaultGenerator(device).clone();
    at::Tensor memory = at::empty({8, 16}, at::device(device).dtype(at::kFloat));
    at::Tensor shown = transposed ? memory.t() : memory;
    shown.bernoulli_(0.5, generator);
    return memory;
  };
  answer = at::equal(draw(true), draw(false));
  return *answer;
}

ValueId permute(Builder& builder, const Op& like, ValueId value, const std::vector<int64_t>& dimensions) {
  Op op = op_like(like, "aten::permute");
  put(op, 0, value);
  op.args[1] = c10::List<int64_t>(dimensions);
  return builder.add(std::move(op));
}

ValueId draw(Builder& builder, Op call) {
  ValueId target = call.tensors[0].value;
  at::Tensor layout = builder.trace(target);
  std::vector<int64_t> order(static_cast<size_t>(layout.dim())), back(order);
  std::iota(order.begin(), order.end(), 0);
  auto is_outer = [&](int64_t a, int64_t b) { return layout.sym_stride(a) > layout.sym_stride(b); };
  std::ranges::stable_sort(order, is_outer);
  if (std::ranges::is_sorted(order)) return builder.add(std::move(call));
  if (!draws_in_memory_order(layout.device())) {
    Op copy = op_like(call, "aten::copy");
    put(copy, 0, target);
    put(copy, 1, builder.add(std::move(call)));
    return builder.add(std::move(copy));
  }
  for (size_t i = 0; i < order.size(); ++i) back[static_cast<size_t>(order[i])] = static_cast<int64_t>(i);
  Op like = op_like(call, call.handle);
  call.tensors[0].value = permute(builder, like, target, order);
  return permute(builder, like, builder.add(std::move(call)), back);
}

}  // namespace

Builder::Results append_partner(Builder& builder, Op call) {
  if (call.info->name != "aten::bernoulli.p") return builder.append(std::move(call));
  return {{0, graph::TensorRef::kWhole, draw(builder, std::move(call))}};
}

}  // namespace magneto::compile
