// Rules for kernels that work element by element: arithmetic, comparisons, activations and their derivatives.
#include "record/rules_common.h"

namespace magneto::record::rules {
namespace {

enum class Gives : uint8_t {
  Common,  // the common dtype of the operands
  Float,   // likewise, but integers become the default dtype
  Bool,
};

struct Kernel {
  int operands;  // the first arguments, tensors or numbers
  Kinds takes;   // as common dtype
  Gives gives = Gives::Common;
};

template <Kernel kernel>
bool pointwise(Args args, Stack& results) {
  Elementwise work;
  for (const c10::IValue& operand : args.slice(0, kernel.operands)) {
    if (given(operand)) {
      work.add(operand.toTensor());
    } else if (!operand.isTensor() && operand.isScalar()) {
      work.add_number(operand);
    } else {
      return false;
    }
  }
  if (!work.broadcast() || !is(work.type(), kernel.takes)) return false;
  ScalarType common = kernel.gives == Gives::Float && !is(work.type(), kFloating)
                          ? c10::get_default_dtype_as_scalartype()
                          : work.type();
  return give(results, work.result(kernel.gives == Gives::Bool ? ScalarType::Bool : common, common));
}

constexpr Kernel kUnary{1, kNumber}, kAnyUnary{1, kAny}, kFloatUnary{1, kFloating},
    kBitwiseUnary{1, kBoolean | kInteger};
constexpr Kernel kToFloat{1, kAny, Gives::Float}, kToBool{1, kAny, Gives::Bool};
constexpr Kernel kBinary{2, kNumber}, kAnyBinary{2, kAny}, kFloatBinary{2, kFloating}, kBitwise{2, kBoolean | kInteger};
constexpr Kernel kDivide{2, kAny, Gives::Float}, kCompare{2, kAny, Gives::Bool};
constexpr Kernel kFloatTernary{3, kFloating};

bool is_integer(const c10::IValue& value) { return value.isInt() || value.isSymInt(); }
bool is_fraction(const c10::IValue& value) { return value.isDouble() || value.isSymFloat(); }
bool is_number(const c10::IValue& value) { return is_integer(value) || is_fraction(value); }

// `alpha` follows the two operands; a fraction goes only with floating dtypes, and a boolean only with booleans.
template <Kernel kernel>
bool scaled(Args args, Stack& results) {
  const c10::IValue& alpha = args[2];
  bool floating = given(args[0]) && is(args[0].toTensor().scalar_type(), kFloating);
  if (!is_integer(alpha) && !(is_fraction(alpha) && floating)) return false;
  return pointwise<kernel>(args, results);
}

// The memory of the second operand counts first.
template <Rule rule>
bool swapped(Args args, Stack& results) {
  c10::SmallVector<c10::IValue, 4> turned(args.begin(), args.end());
  std::swap(turned[0], turned[1]);
  return rule(turned, results);
}

// Here the exponent is not an operand.
bool pow_number(Args args, Stack& results) { return is_number(args[1]) && pointwise<kFloatUnary>(args, results); }

// A power of a number, for which the kernel makes memory of its own; or, of that name, the in-place power of a tensor.
bool pow_of_number(Args args, Stack& results) {
  if (args[0].isTensor()) return pow_number(args, results);
  const at::Tensor& exponent = args[1].toTensor();
  if (!is_number(args[0]) || !is(exponent.scalar_type(), kFloating)) return false;
  return give(results, make(exponent.sym_sizes(), exponent.scalar_type(), exponent.device()));
}

// The condition steers the layout first, but not the dtype.
bool where(Args args, Stack& results) {
  const at::Tensor &condition = args[0].toTensor(), &yes = args[1].toTensor(), &no = args[2].toTensor();
  if (condition.scalar_type() != ScalarType::Bool || yes.scalar_type() != no.scalar_type()) return false;
  Elementwise work;
  work.add(condition, /*typed=*/false);
  work.add(yes);
  work.add(no);
  return work.broadcast() && give(results, work.result(work.type()));
}

// The kernel copies the broadcast tensor and then writes into it.
bool masked_fill(Args args, Stack& results) {
  const at::Tensor &self = args[0].toTensor(), &mask = args[1].toTensor();
  if (mask.scalar_type() != ScalarType::Bool || self.device() != mask.device()) return false;
  bool fits = args[2].isTensor()
                  ? args[2].toTensor().dim() == 0 && args[2].toTensor().scalar_type() == self.scalar_type()
                  : is_number(args[2]);
  Elementwise work;
  work.add(self);
  work.add(mask, /*typed=*/false);
  if (!fits || !is(self.scalar_type(), kFloating) || !work.broadcast()) return false;
  return give(results, make(work.sizes(), self.scalar_type(), self.device()));
}

bool clamp(Args args, Stack& results) {
  auto covered = [](const c10::IValue& bound) { return bound.isNone() || is_number(bound); };
  if (!covered(args[1]) || !covered(args[2]) || (args[1].isNone() && args[2].isNone())) return false;
  return pointwise<kFloatUnary>(args, results);
}

bool hardtanh(Args args, Stack& results) {
  const at::Tensor& self = args[0].toTensor();
  return is(self.scalar_type(), kFloating) && give(results, make_like(self));
}

constexpr Row kPointwiseRules[] = {
    {"aten::add.Tensor", scaled<kAnyBinary>},
    {"aten::sub.Tensor", scaled<kBinary>},
    {"aten::rsub.Tensor", swapped<scaled<kBinary>>},
    {"aten::add.Scalar", scaled<kAnyBinary>},
    {"aten::sub.Scalar", scaled<kBinary>},
    {"aten::rsub.Scalar", scaled<kBinary>},
    {"aten::mul.Tensor", pointwise<kAnyBinary>},
    {"aten::mul.Scalar", pointwise<kAnyBinary>},
    {"aten::div.Tensor", pointwise<kDivide>},
    {"aten::div.Scalar", pointwise<kDivide>},
    {"aten::floor_divide", pointwise<kBinary>},
    {"aten::remainder.Tensor", pointwise<kBinary>},
    {"aten::remainder.Scalar", pointwise<kBinary>},
    {"aten::remainder.Scalar_Tensor", pointwise<kBinary>},
    {"aten::maximum", pointwise<kAnyBinary>},
    {"aten::minimum", pointwise<kAnyBinary>},
    {"aten::bitwise_and.Tensor", pointwise<kBitwise>},
    {"aten::bitwise_or.Tensor", pointwise<kBitwise>},
    {"aten::bitwise_xor.Tensor", pointwise<kBitwise>},
    {"aten::logical_and", pointwise<kCompare>},
    {"aten::logical_or", pointwise<kCompare>},
    {"aten::atan2", pointwise<kDivide>},
    {"aten::pow.Tensor_Scalar", pow_number},
    {"aten::pow.Scalar", pow_of_number},
    {"aten::pow.Tensor_Tensor", pointwise<kFloatBinary>},
    {"aten::eq.Tensor", pointwise<kCompare>},
    {"aten::ne.Tensor", pointwise<kCompare>},
    {"aten::lt.Tensor", pointwise<kCompare>},
    {"aten::le.Tensor", pointwise<kCompare>},
    {"aten::gt.Tensor", pointwise<kCompare>},
    {"aten::ge.Tensor", pointwise<kCompare>},
    {"aten::eq.Scalar", pointwise<kCompare>},
    {"aten::ne.Scalar", pointwise<kCompare>},
    {"aten::lt.Scalar", pointwise<kCompare>},
    {"aten::le.Scalar", pointwise<kCompare>},
    {"aten::gt.Scalar", pointwise<kCompare>},
    {"aten::ge.Scalar", pointwise<kCompare>},
    {"aten::logical_not", pointwise<kToBool>},
    {"aten::isnan", pointwise<kToBool>},
    {"aten::bitwise_not", pointwise<kBitwiseUnary>},
    {"aten::neg", pointwise<kUnary>},
    {"aten::abs", pointwise<kAnyUnary>},
    {"aten::sign", pointwise<kAnyUnary>},
    {"aten::relu", pointwise<kUnary>},
    {"aten::floor", pointwise<kUnary>},
    {"aten::ceil", pointwise<kUnary>},
    {"aten::round", pointwise<kUnary>},
    {"aten::trunc", pointwise<kUnary>},
    {"aten::exp", pointwise<kToFloat>},
    {"aten::expm1", pointwise<kToFloat>},
    {"aten::log", pointwise<kToFloat>},
    {"aten::log1p", pointwise<kToFloat>},
    {"aten::log2", pointwise<kToFloat>},
    {"aten::sqrt", pointwise<kToFloat>},
    {"aten::rsqrt", pointwise<kToFloat>},
    {"aten::reciprocal", pointwise<kToFloat>},
    {"aten::sin", pointwise<kToFloat>},
    {"aten::cos", pointwise<kToFloat>},
    {"aten::tanh", pointwise<kToFloat>},
    {"aten::atan", pointwise<kToFloat>},
    {"aten::erf", pointwise<kToFloat>},
    {"aten::sigmoid", pointwise<kToFloat>},
    {"aten::gelu", pointwise<kFloatUnary>},
    {"aten::silu", pointwise<kFloatUnary>},
    {"aten::mish", pointwise<kFloatUnary>},
    {"aten::hardswish", pointwise<kFloatUnary>},
    {"aten::hardsigmoid", pointwise<kFloatUnary>},
    {"aten::hardtanh", hardtanh},
    {"aten::leaky_relu", pointwise<kFloatUnary>},
    {"aten::elu", pointwise<kFloatUnary>},
    {"aten::softplus", pointwise<kFloatUnary>},
    {"aten::clamp", clamp},
    {"aten::clamp_min", pointwise<kFloatUnary>},
    {"aten::clamp_max", pointwise<kFloatUnary>},
    {"aten::gelu_backward", pointwise<kFloatBinary>},
    {"aten::silu_backward", pointwise<kFloatBinary>},
    {"aten::tanh_backward", pointwise<kFloatBinary>},
    {"aten::sigmoid_backward", pointwise<kFloatBinary>},
    {"aten::threshold_backward", swapped<pointwise<kFloatBinary>>},
    {"aten::leaky_relu_backward", swapped<pointwise<kFloatBinary>>},
    {"aten::hardtanh_backward", pointwise<kFloatBinary>},
    {"aten::hardswish_backward", pointwise<kFloatBinary>},
    {"aten::hardsigmoid_backward", pointwise<kFloatBinary>},
    {"aten::softplus_backward", pointwise<kFloatBinary>},
    {"aten::mish_backward", pointwise<kFloatBinary>},
    {"aten::addcmul", pointwise<kFloatTernary>},
    {"aten::addcdiv", pointwise<kFloatTernary>},
    {"aten::lerp.Scalar", pointwise<kFloatBinary>},
    {"aten::lerp.Tensor", pointwise<kFloatTernary>},
    {"aten::where.self", where},
    {"aten::masked_fill.Scalar", masked_fill},
    {"aten::masked_fill.Tensor", masked_fill},
};

}  // namespace

Rows pointwise_rules() { return kPointwiseRules; }

}  // namespace magneto::record::rules
