// Rules for pooling over images: windows that move, and windows that adapt.
#include "record/rules_common.h"

namespace magneto::record::rules {
namespace {

// A number per image dimension; one number stands for both.
std::optional<Sizes> pair_of(const c10::IValue& value) {
  Sizes sizes = sizes_of(value);
  if (sizes.size() == 1) sizes.push_back(sizes[0]);
  return sizes.size() == 2 ? std::optional(sizes) : std::nullopt;
}

bool is_image(const at::Tensor& input) {
  return is(input.scalar_type(), kFloating) && (input.dim() == 3 || input.dim() == 4) &&
         product(input.sym_sizes()) != 0;
}

// `sizes` in the layout that `input` looks like.
at::Tensor make_as(const at::Tensor& input, SymIntArrayRef sizes, ScalarType type) {
  return make_in(suggested_format(input), sizes, type, input.device());
}

// The sizes after moving a window over `input`; nothing if they are not positive.
std::optional<Sizes> pooled(const at::Tensor& input, const c10::IValue& kernel, const c10::IValue& stride,
                            const c10::IValue& padding, const Sizes& dilation, bool ceil) {
  auto window = pair_of(kernel), pad = pair_of(padding);
  auto step = sizes_of(stride).empty() ? window : pair_of(stride);
  if (!is_image(input) || !window || !pad || !step) return std::nullopt;
  Sizes sizes(input.sym_sizes());
  for (size_t i = 0; i < 2; ++i) {
    SymInt& size = sizes[sizes.size() - 2 + i];
    const SymInt by = (*step)[i], edge = (*pad)[i], from = size;
    if (by <= 0 || edge < 0 || edge * 2 > (*window)[i]) return std::nullopt;
    SymInt free = from + edge * 2 - dilation[i] * ((*window)[i] - 1) - 1;
    if (free < 0) return std::nullopt;
    size = (ceil ? free + by - 1 : free) / by + 1;
    // The last window must begin inside the image or its left edge.
    if (ceil && (size - 1) * by >= from + edge) size = size - 1;
    if (size <= 0) return std::nullopt;
  }
  return sizes;
}

// (self, kernel_size, stride, padding, dilation, ceil_mode)
bool max_pool(Args args, Stack& results) {
  const at::Tensor& self = args[0].toTensor();
  auto dilation = pair_of(args[4]);
  if (!dilation) return false;
  auto sizes = pooled(self, args[1], args[2], args[3], *dilation, args[5].toBool());
  return sizes && give(results, make_as(self, *sizes, self.scalar_type()), make_as(self, *sizes, ScalarType::Long));
}

// (self, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)
bool avg_pool(Args args, Stack& results) {
  const at::Tensor& self = args[0].toTensor();
  auto sizes = pooled(self, args[1], args[2], args[3], {1, 1}, args[4].toBool());
  return sizes && give(results, make_as(self, *sizes, self.scalar_type()));
}

// (self, output_size)
bool adaptive_avg_pool(Args args, Stack& results) {
  const at::Tensor& self = args[0].toTensor();
  auto asked = pair_of(args[1]);
  if (!asked || !is_image(self) || (*asked)[0] <= 0 || (*asked)[1] <= 0) return false;
  Sizes sizes(self.sym_sizes());
  std::copy(asked->begin(), asked->end(), sizes.end() - 2);
  return give(results, make_as(self, sizes, self.scalar_type()));
}

// (grad_output, self, ...)
bool pool_backward(Args args, Stack& results) {
  const at::Tensor &gradient = args[0].toTensor(), &self = args[1].toTensor();
  if (!is_image(self) || gradient.scalar_type() != self.scalar_type()) return false;
  return give(results, make_as(self, self.sym_sizes(), self.scalar_type()));
}

constexpr Row kPoolRules[] = {
    {"aten::max_pool2d_with_indices", max_pool},
    {"aten::max_pool2d_with_indices_backward", pool_backward},
    {"aten::avg_pool2d", avg_pool},
    {"aten::avg_pool2d_backward", pool_backward},
    {"aten::_adaptive_avg_pool2d", adaptive_avg_pool},
    {"aten::_adaptive_avg_pool2d_backward", pool_backward},
};

}  // namespace

Rows pool_rules() { return kPoolRules; }

}  // namespace magneto::record::rules
