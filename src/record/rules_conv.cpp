// Rules for convolution, forward and backward. Layouts follow the library that the kernel would choose.
#include <ATen/native/ConvUtils.h>

#include "record/rules_common.h"

namespace magneto::record::rules {
namespace {

// The arguments that forward and backward share, from `stride` on.
struct Geometry {
  Geometry(Args args, int64_t spatial)
      : stride(spread(args[0], spatial)),
        padding(spread(args[1], spatial)),
        dilation(spread(args[2], spatial)),
        transposed(args[3].toBool()),
        output_padding(spread(args[4], spatial)),
        groups(args[5].toSymInt()) {}

  // As a convolution over images of height one.
  void lift() {
    stride.insert(stride.begin(), 1);
    padding.insert(padding.begin(), 0);
    dilation.insert(dilation.begin(), 1);
    output_padding.insert(output_padding.begin(), 0);
  }

  // One number stands for all dimensions.
  static Sizes spread(const c10::IValue& value, int64_t spatial) {
    Sizes sizes = sizes_of(value);
    return sizes.size() == 1 ? Sizes(spatial, sizes[0]) : sizes;
  }

  bool fits(size_t spatial) const {
    return stride.size() == spatial && padding.size() == spatial && dilation.size() == spatial &&
           output_padding.size() == spatial;
  }

  Sizes output_sizes(const at::Tensor& input, const at::Tensor& weight) const {
    Sizes sizes = {input.sym_size(0), transposed ? weight.sym_size(1) * groups : weight.sym_size(0)};
    for (size_t i = 0; i < stride.size(); ++i) {
      int64_t dim = static_cast<int64_t>(i) + 2;
      SymInt size = input.sym_size(dim), reach = dilation[i] * (weight.sym_size(dim) - 1);
      sizes.push_back(transposed ? (size - 1) * stride[i] - padding[i] * 2 + reach + output_padding[i] + 1
                                 : (size + padding[i] * 2 - reach - 1) / stride[i] + 1);
    }
    return sizes;
  }

  Sizes stride, padding, dilation;
  bool transposed;
  Sizes output_padding;
  SymInt groups;
};

// The kernels treat sequences as images of height one.
constexpr int64_t kHeight = 2;

at::Tensor lifted(const at::Tensor& sequence, SymIntArrayRef given_strides) {
  Sizes sizes(sequence.sym_sizes());
  Sizes strides(given_strides);
  strides.insert(strides.begin() + kHeight, sizes[kHeight] * strides[kHeight]);
  sizes.insert(sizes.begin() + kHeight, 1);
  return make_trace_view(sequence, sizes, strides, sequence.sym_storage_offset());
}

bool covered(const at::Tensor& input, const at::Tensor& weight) {
  return is(input.scalar_type(), kFloating) && input.scalar_type() == weight.scalar_type() &&
         input.device() == weight.device() && input.dim() >= 3 && input.dim() <= 5 && input.dim() == weight.dim() &&
         product(input.sym_sizes()) != 0 && product(weight.sym_sizes()) != 0;
}

// A convolution as the libraries see it.
struct Problem {
  Problem(const at::Tensor& given_input, const at::Tensor& given_weight, Args args)
      : input(given_input), weight(given_weight), geometry(args, input.dim() - 2), sequence(input.dim() == 3) {
    valid = geometry.fits(input.dim() - 2);
    if (!valid || !sequence) return;
    input = lifted(input, contiguous_strides(input.sym_sizes()));  // which the kernel makes so
    weight = lifted(weight, weight.sym_strides());
    geometry.lift();
  }

  // Operands that look contiguous give contiguous results in every library, so no symbol need be asked which one it is.
  MemoryFormat format(const c10::IValue& bias) const {
    if (suggested_format(input) == MemoryFormat::Contiguous && suggested_format(weight) == MemoryFormat::Contiguous) {
      return MemoryFormat::Contiguous;
    }
    auto backend = at::native::select_conv_backend(
        input, weight, given(bias) ? std::optional(bias.toTensor()) : std::nullopt, geometry.stride, geometry.padding,
        geometry.dilation, geometry.transposed, geometry.output_padding, geometry.groups, std::nullopt);
    return at::native::_determine_backend_memory_format(input, weight, backend);
  }

  at::Tensor result(SymIntArrayRef sizes, MemoryFormat format) const {
    Sizes shape(sizes), strides = strides_in(format, sizes);
    if (sequence) {
      shape.erase(shape.begin() + kHeight);
      strides.erase(strides.begin() + kHeight);
    }
    return make_trace(shape, strides, 0, input.scalar_type(), input.device());
  }

  at::Tensor input, weight;
  Geometry geometry;
  bool sequence, valid;
};

// (input, weight, bias, stride, padding, dilation, transposed, output_padding, groups)
bool convolution(Args args, Stack& results) {
  const at::Tensor &input = args[0].toTensor(), &weight = args[1].toTensor();
  if (!covered(input, weight)) return false;
  Problem problem(input, weight, args.slice(3));
  if (!problem.valid) return false;
  const Geometry& geometry = problem.geometry;
  if (input.sym_size(1) != (geometry.transposed ? weight.sym_size(0) : weight.sym_size(1) * geometry.groups))
    return false;
  Sizes sizes = geometry.output_sizes(problem.input, problem.weight);
  for (const SymInt& size : sizes) {
    if (size <= 0) return false;
  }
  return give(results, problem.result(sizes, problem.format(args[2])));
}

// (grad_output, input, weight, bias_sizes, stride, padding, dilation, transposed, output_padding, groups, output_mask)
bool convolution_backward(Args args, Stack& results) {
  const at::Tensor &gradient = args[0].toTensor(), &input = args[1].toTensor(), &weight = args[2].toTensor();
  if (!covered(input, weight) || !covered(gradient, weight)) return false;
  Problem problem(input, weight, args.slice(4));
  if (!problem.valid) return false;
  auto wanted = args[10].toBoolList();
  MemoryFormat format = problem.format({});
  auto like = [&](const at::Tensor& tensor) { return problem.result(tensor.sym_sizes(), format); };
  return give(results, wanted[0] ? like(problem.input) : at::Tensor(), wanted[1] ? like(problem.weight) : at::Tensor(),
              wanted[2] ? make(gradient.sym_size(1), gradient.scalar_type(), gradient.device()) : at::Tensor());
}

constexpr Row kConvRules[] = {
    {"aten::convolution", convolution},
    {"aten::convolution_backward", convolution_backward},
};

}  // namespace

Rows conv_rules() { return kConvRules; }

}  // namespace magneto::record::rules
