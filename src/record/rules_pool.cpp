// Rules for pooling over sequences, images and volumes: windows that move, and windows that adapt.
#include "record/rules_common.h"

namespace magneto::record::rules {
namespace {

// A number per dimension of the window; one number stands for all.
std::optional<Sizes> numbers_of(const c10::IValue& value, size_t spatial) {
  Sizes sizes = sizes_of(value);
  if (sizes.size() == 1) sizes = Sizes(spatial, sizes[0]);
  return sizes.size() == spatial ? std::optional(sizes) : std::nullopt;
}

// An image (two dimensions) or volume (three), with channels and maybe a batch.
bool is_image(const at::Tensor& input, size_t spatial) {
  const auto rank = static_cast<size_t>(input.dim());
  return is(input.scalar_type(), kFloating) && (rank == spatial + 1 || rank == spatial + 2) &&
         product(input.sym_sizes()) != 0;
}

// How results lie in memory. A GPU has kernels of its own for volumes, which are not covered.
enum class Looks : uint8_t { Contiguous, AsInput };

at::Tensor make_as(const at::Tensor& input, SymIntArrayRef sizes, ScalarType type, Looks looks) {
  return make_in(looks == Looks::AsInput ? suggested_format(input) : MemoryFormat::Contiguous, sizes, type,
                 input.device());
}

// The sizes after moving a window over `input`; nothing if they are not positive.
std::optional<Sizes> pooled(const at::Tensor& input, size_t spatial, const c10::IValue& kernel,
                            const c10::IValue& stride, const c10::IValue& padding, const Sizes& dilation, bool ceil) {
  auto window = numbers_of(kernel, spatial), pad = numbers_of(padding, spatial);
  auto step = sizes_of(stride).empty() ? window : numbers_of(stride, spatial);
  if (!is_image(input, spatial) || !window || !pad || !step) return std::nullopt;
  Sizes sizes(input.sym_sizes());
  for (size_t i = 0; i < spatial; ++i) {
    SymInt& size = sizes[sizes.size() - spatial + i];
    const SymInt by = (*step)[i], edge = (*pad)[i], from = size;
    if (by <= 0 || edge < 0 || edge * 2 > (*window)[i] || (*window)[i] <= 0 || dilation[i] <= 0) return std::nullopt;
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
template <size_t spatial>
bool max_pool(Args args, Stack& results) {
  const at::Tensor& self = args[0].toTensor();
  auto dilation = numbers_of(args[4], spatial);
  if (!dilation || (spatial == 3 && !self.is_cpu())) return false;
  auto sizes = pooled(self, spatial, args[1], args[2], args[3], *dilation, args[5].toBool());
  return sizes && give(results, make_as(self, *sizes, self.scalar_type(), Looks::AsInput),
                       make_as(self, *sizes, ScalarType::Long, Looks::AsInput));
}

// The same for sequences, on the CPU, without the places of the elements.
bool max_pool1d(Args args, Stack& results) {
  const at::Tensor& self = args[0].toTensor();
  auto dilation = numbers_of(args[4], 1);
  if (!dilation || !self.is_cpu()) return false;
  auto sizes = pooled(self, 1, args[1], args[2], args[3], *dilation, args[5].toBool());
  return sizes && give(results, make_for(self, *sizes));
}

// (self, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)
template <size_t spatial, Looks looks>
bool avg_pool(Args args, Stack& results) {
  const at::Tensor& self = args[0].toTensor();
  if (!args[6].isNone() && args[6].toInt() == 0) return false;
  auto sizes = pooled(self, spatial, args[1], args[2], args[3], Sizes(spatial, 1), args[4].toBool());
  return sizes && give(results, make_as(self, *sizes, self.scalar_type(), looks));
}

// (self, output_size): the sizes of windows that adapt
template <size_t spatial>
std::optional<Sizes> adapted(Args args) {
  const at::Tensor& self = args[0].toTensor();
  auto asked = numbers_of(args[1], spatial);
  if (!asked || !is_image(self, spatial)) return std::nullopt;
  for (const SymInt& size : *asked) {
    if (size <= 0) return std::nullopt;
  }
  Sizes sizes(self.sym_sizes());
  std::copy(asked->begin(), asked->end(), sizes.end() - spatial);
  return sizes;
}

template <size_t spatial, Looks looks>
bool adaptive_avg_pool(Args args, Stack& results) {
  const at::Tensor& self = args[0].toTensor();
  auto sizes = adapted<spatial>(args);
  if (!sizes || (spatial == 3 && !self.is_cpu())) return false;
  return give(results, make_as(self, *sizes, self.scalar_type(), looks));
}

template <size_t spatial, Looks looks>
bool adaptive_max_pool(Args args, Stack& results) {
  const at::Tensor& self = args[0].toTensor();
  auto sizes = adapted<spatial>(args);
  return sizes && give(results, make_as(self, *sizes, self.scalar_type(), looks),
                       make_as(self, *sizes, ScalarType::Long, looks));
}

// (grad_output, self, ...)
template <size_t spatial, Looks looks>
bool pool_backward(Args args, Stack& results) {
  const at::Tensor &gradient = args[0].toTensor(), &self = args[1].toTensor();
  if (!is_image(self, spatial) || gradient.scalar_type() != self.scalar_type()) return false;
  if (spatial == 3 && !self.is_cpu()) return false;
  return give(results, make_as(self, self.sym_sizes(), self.scalar_type(), looks));
}

constexpr Row kPoolRules[] = {
    {"aten::max_pool1d", max_pool1d},
    {"aten::max_pool2d_with_indices", max_pool<2>},
    {"aten::max_pool2d_with_indices_backward", pool_backward<2, Looks::AsInput>},
    {"aten::max_pool3d_with_indices", max_pool<3>},
    {"aten::max_pool3d_with_indices_backward", pool_backward<3, Looks::AsInput>},
    {"aten::avg_pool2d", avg_pool<2, Looks::AsInput>},
    {"aten::avg_pool2d_backward", pool_backward<2, Looks::AsInput>},
    {"aten::avg_pool3d", avg_pool<3, Looks::Contiguous>},
    {"aten::avg_pool3d_backward", pool_backward<3, Looks::Contiguous>},
    {"aten::_adaptive_avg_pool2d", adaptive_avg_pool<2, Looks::AsInput>},
    {"aten::_adaptive_avg_pool2d_backward", pool_backward<2, Looks::AsInput>},
    {"aten::_adaptive_avg_pool3d", adaptive_avg_pool<3, Looks::Contiguous>},
    {"aten::_adaptive_avg_pool3d_backward", pool_backward<3, Looks::Contiguous>},
    {"aten::adaptive_max_pool2d", adaptive_max_pool<2, Looks::AsInput>},
    {"aten::adaptive_max_pool2d_backward", pool_backward<2, Looks::AsInput>},
    {"aten::adaptive_max_pool3d", adaptive_max_pool<3, Looks::Contiguous>},
    {"aten::adaptive_max_pool3d_backward", pool_backward<3, Looks::Contiguous>},
};

}  // namespace

Rows pool_rules() { return kPoolRules; }

}  // namespace magneto::record::rules
