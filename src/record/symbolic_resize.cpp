// What resizing and pooling are made of.
#include "record/symbolic_resize.h"

#include <ATen/ops/max_pool1d_with_indices.h>

#include <bit>
#include <cmath>

#include "record/rules_common.h"
#include "record/trace_tensor.h"

namespace magneto::record {
namespace {

using c10::IValue;
using c10::Stack;
using c10::SymInt;

constexpr const char* kResizing[] = {
    "aten::upsample_nearest1d.vec",        "aten::upsample_nearest2d.vec",        "aten::upsample_nearest3d.vec",
    "aten::_upsample_nearest_exact1d.vec", "aten::_upsample_nearest_exact2d.vec", "aten::_upsample_nearest_exact3d.vec",
    "aten::upsample_linear1d.vec",         "aten::upsample_bilinear2d.vec",       "aten::upsample_trilinear3d.vec",
    "aten::upsample_bicubic2d.vec",        "aten::_upsample_bilinear2d_aa.vec",   "aten::_upsample_bicubic2d_aa.vec",
};

// `size` times `factor`, cut off. Only factors for which floating point makes no difference leave the size open.
SymInt scaled(const SymInt& size, double factor) {
  if (factor >= 1 && factor <= 1024 && factor == std::floor(factor)) return size * static_cast<int64_t>(factor);
  double parts = 1 / factor;
  if (parts >= 1 && parts <= 1024 && std::has_single_bit(static_cast<uint64_t>(parts)) &&
      1 / std::floor(parts) == factor) {
    return size / static_cast<int64_t>(parts);
  }
  return static_cast<int64_t>(static_cast<double>(size.guard_int(__FILE__, __LINE__)) * factor);
}

std::vector<SymInt> output_sizes(const at::Tensor& input, const IValue& asked, const std::vector<double>& factors) {
  std::vector<SymInt> sizes;
  if (!asked.isNone()) {
    for (const SymInt& size : rules::sizes_of(asked)) sizes.push_back(size);
  } else {
    for (size_t i = 0; i < factors.size(); ++i) {
      sizes.push_back(scaled(input.sym_size(static_cast<int64_t>(2 + i)), factors[i]));
    }
  }
  return sizes;
}

}  // namespace

c10::ArrayRef<const char*> resizing_operators() { return kResizing; }

bool resize_symbolically(const c10::OperatorHandle& op, Stack& stack) {
  const size_t count = op.schema().arguments().size();
  c10::ArrayRef<IValue> args = torch::jit::last(stack, count);
  const at::Tensor input = args[0].toTensor();
  const IValue &asked = args[1], &given = args.back();
  const int64_t spatial = input.dim() - 2;
  const auto factors = given.isNone() ? std::vector<double>() : given.toDoubleVector();
  // What torch would refuse is left to it.
  bool by_factor = asked.isNone() && static_cast<int64_t>(factors.size()) == spatial;
  bool by_size = given.isNone() && !asked.isNone() && static_cast<int64_t>(rules::sizes_of(asked).size()) == spatial;
  if (!is_symbolic(input) || spatial < 1 || (!by_factor && !by_size)) return false;

  Stack call = {input, output_sizes(input, asked, factors)};
  if (count == 4) call.push_back(args[2]);  // align_corners
  for (int64_t i = 0; i < spatial; ++i) call.push_back(by_factor ? IValue(factors[i]) : IValue());
  auto kernel = c10::Dispatcher::singleton().findSchemaOrThrow(op.schema().name().c_str(), "");
  kernel.callBoxed(call);
  torch::jit::drop(stack, count);
  stack.push_back(std::move(call.back()));
  return true;
}

bool pool_symbolically(Stack& stack) {
  c10::ArrayRef<IValue> args = torch::jit::last(stack, 6);
  const at::Tensor self = args[0].toTensor();
  if (!is_symbolic(self)) return false;
  at::Tensor pooled =
      std::get<0>(at::max_pool1d_with_indices(self, args[1].toIntVector(), args[2].toIntVector(), args[3].toIntVector(),
                                              args[4].toIntVector(), args[5].toBool()));
  torch::jit::drop(stack, 6);
  stack.emplace_back(std::move(pooled));
  return true;
}

}  // namespace magneto::record
