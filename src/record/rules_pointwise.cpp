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
  ScalarType common = kernel.gives == Gives::Float && is(work.type(), kBoolean | kInteger)
                          ? c10::get_default_dtype_as_scalartype()
                          : work.type();
  return give(results, work.result(kernel.gives == Gives::Bool ? ScalarType::Bool : common, common));
}

constexpr Kernel kUnary{1, kNumber}, kAnyUnary{1, kAny}, kFloatUnary{1, kFloating},
    kBitwiseUnary{1, kBoolean | kInteger};
constexpr Kernel kComplexUnary{1, kAnyOrComplex}, kComplexBinary{2, kAnyOrComplex},
    kComplexDivide{2, kAnyOrComplex, Gives::Float};
constexpr Kernel kToFloat{1, kAny, Gives::Float}, kToBool{1, kAny, Gives::Bool};
constexpr Kernel kBinary{2, kNumber}, kAnyBinary{2, kAny}, kFloatBinary{2, kFloating}, kBitwise{2, kBoolean | kInteger};
constexpr Kernel kIntegerBinary{2, kInteger};
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

// Here the exponent is not an operand, nor does a whole one change the dtype of integers.
bool pow_number(Args args, Stack& results) {
  if (is_integer(args[1])) return pointwise<kUnary>(args, results);
  return is_number(args[1]) && pointwise<kFloatUnary>(args, results);
}

// A power of a number, for which the kernel makes memory of its own; or, of that name, the in-place power of a tensor.
bool pow_of_number(Args args, Stack& results) {
  if (args[0].isTensor()) return pow_number(args, results);
  const at::Tensor& exponent = args[1].toTensor();
  Kinds goes_with = is_integer(args[0]) ? kNumber : kFloating;
  if (!is_number(args[0]) || !is(exponent.scalar_type(), goes_with)) return false;
  return give(results, make(exponent.sym_sizes(), exponent.scalar_type(), exponent.device()));
}

// The condition steers the layout first, but not the dtype.
bool where(Args args, Stack& results) {
  const at::Tensor &condition = args[0].toTensor(), &yes = args[1].toTensor(), &no = args[2].toTensor();
  if (condition.scalar_type() != ScalarType::Bool) return false;
  Elementwise work;
  work.add(condition, /*typed=*/false);
  work.add(yes);
  work.add(no);
  return work.broadcast() && give(results, work.result(work.type(), work.type()));
}

// Whether a tensor of this dtype can hold the number as it is.
bool goes_into(const c10::IValue& number, ScalarType type) {
  return number.isBool() || (is_integer(number) && is(type, kNumber)) || (is_fraction(number) && is(type, kFloating));
}

// The kernel copies the broadcast tensor and then writes into it.
bool masked_fill(Args args, Stack& results) {
  const at::Tensor &self = args[0].toTensor(), &mask = args[1].toTensor();
  if (mask.scalar_type() != ScalarType::Bool || self.device() != mask.device()) return false;
  bool fits = args[2].isTensor()
                  ? args[2].toTensor().dim() == 0 && args[2].toTensor().scalar_type() == self.scalar_type()
                  : goes_into(args[2], self.scalar_type());
  Elementwise work;
  work.add(self);
  work.add(mask, /*typed=*/false);
  if (!fits || !work.broadcast()) return false;
  return give(results, make(work.sizes(), self.scalar_type(), self.device()));
}

bool clamp(Args args, Stack& results) {
  ScalarType type = args[0].toTensor().scalar_type();
  auto covered = [&](const c10::IValue& bound) {
    return bound.isNone() || (is_number(bound) && goes_into(bound, type));
  };
  if (!covered(args[1]) || !covered(args[2]) || (args[1].isNone() && args[2].isNone())) return false;
  return pointwise<kUnary>(args, results);
}

// (self, min, max), of which one may be missing
bool clamp_tensors(Args args, Stack& results) {
  c10::SmallVector<c10::IValue, 3> operands;
  for (const c10::IValue& operand : args) {
    if (given(operand)) operands.push_back(operand);
  }
  if (operands.size() == 2) return pointwise<kBinary>(operands, results);
  return operands.size() == 3 && pointwise<Kernel{3, kNumber}>(operands, results);
}

// (self, min or max)
bool clamp_one(Args args, Stack& results) {
  return is_number(args[1]) && goes_into(args[1], args[0].toTensor().scalar_type()) && pointwise<kUnary>(args, results);
}

// (a, b, rounding_mode)
bool divide(Args args, Stack& results) {
  return args[2].isNone() ? pointwise<kDivide>(args, results) : pointwise<kBinary>(args, results);
}

// That of complex numbers is real.
bool abs(Args args, Stack& results) {
  const at::Tensor& self = args[0].toTensor();
  if (!is(self.scalar_type(), kComplex)) return pointwise<kAnyUnary>(args, results);
  return is_plain(self) && give(results, make_like(self, c10::toRealValueType(self.scalar_type())));
}

// Two real tensors make a complex one.
bool complex(Args args, Stack& results) {
  const at::Tensor &first = args[0].toTensor(), &second = args[1].toTensor();
  ScalarType type = first.scalar_type();
  if (type != second.scalar_type() || (type != ScalarType::Float && type != ScalarType::Double)) return false;
  Elementwise work;
  work.add(first);
  work.add(second);
  return work.broadcast() && give(results, work.result(c10::toComplexType(type)));
}

bool nan_to_num(Args args, Stack& results) {
  return product(args[0].toTensor().sym_sizes()) != 0 && pointwise<kFloatUnary>(args, results);
}

// (self, lambda)
bool softshrink(Args args, Stack& results) {
  bool valid = (args[1].isInt() && args[1].toInt() >= 0) || (args[1].isDouble() && args[1].toDouble() >= 0);
  return valid && pointwise<kFloatUnary>(args, results);
}

// (n, self)
bool polygamma(Args args, Stack& results) { return pointwise<kToFloat>(args.slice(1), results); }

// The two halves of `self` along `dim`; nothing if there are none.
std::optional<std::pair<at::Tensor, at::Tensor>> halves(const at::Tensor& self, int64_t asked) {
  auto dim = wrap(asked, self.dim());
  if (!dim || self.dim() == 0 || !is(self.scalar_type(), kFloating) || !is_plain(self)) return std::nullopt;
  Sizes sizes(self.sym_sizes());
  if (sizes[*dim] % 2 != 0) return std::nullopt;
  sizes[*dim] = sizes[*dim] / 2;
  SymInt offset = self.sym_storage_offset();
  SymInt middle = offset + sizes[*dim] * self.sym_stride(*dim);
  return std::pair(make_trace_view(self, sizes, self.sym_strides(), offset),
                   make_trace_view(self, sizes, self.sym_strides(), middle));
}

// (self, dim)
bool glu(Args args, Stack& results) {
  auto both = halves(args[0].toTensor(), args[1].toInt());
  if (!both) return false;
  Elementwise work;
  work.add(both->first);
  work.add(both->second);
  return work.broadcast() && give(results, work.result(work.type()));
}

// (grad_output, self, dim)
bool glu_backward(Args args, Stack& results) {
  const at::Tensor &gradient = args[0].toTensor(), &self = args[1].toTensor();
  auto both = halves(self, args[2].toInt());
  if (!both || gradient.scalar_type() != self.scalar_type()) return false;
  if (gradient.sym_sizes() != both->first.sym_sizes()) return false;
  return give(results, make_for(self, self.sym_sizes()));
}

// (self, weight)
bool prelu(Args args, Stack& results) {
  const at::Tensor &self = args[0].toTensor(), &weight = args[1].toTensor();
  Elementwise work;
  work.add(self);
  work.add(weight);
  if (self.scalar_type() != weight.scalar_type() || !is(self.scalar_type(), kFloating) || !work.broadcast())
    return false;
  return work.sizes() == self.sym_sizes() && give(results, make_like(self));
}

// (grad_output, self, weight)
bool prelu_backward(Args args, Stack& results) {
  const at::Tensor &gradient = args[0].toTensor(), &self = args[1].toTensor(), &weight = args[2].toTensor();
  Elementwise work;
  for (const at::Tensor* operand : {&self, &weight, &gradient}) {
    if (operand->scalar_type() != self.scalar_type()) return false;
    work.add(*operand);
  }
  if (!work.broadcast() || !is(work.type(), kFloating)) return false;
  return give(results, work.result(work.type()), work.result(work.type()));
}

// The CPU keeps a second tensor for the backward.
bool log_sigmoid(Args args, Stack& results) {
  const at::Tensor& self = args[0].toTensor();
  if (!is(self.scalar_type(), kFloating) || !self.is_cpu()) return false;
  return give(results, make_for(self, self.sym_sizes()), make_for(self, self.sym_sizes()));
}

// (grad_output, self, buffer)
bool log_sigmoid_backward(Args args, Stack& results) {
  const at::Tensor &gradient = args[0].toTensor(), &self = args[1].toTensor();
  if (!is(self.scalar_type(), kFloating) || gradient.scalar_type() != self.scalar_type() || !self.is_cpu())
    return false;
  return gradient.sym_sizes() == self.sym_sizes() && give(results, make_like(gradient));
}

bool hardtanh(Args args, Stack& results) {
  const at::Tensor& self = args[0].toTensor();
  return is(self.scalar_type(), kFloating) && give(results, make_like(self));
}

constexpr Row kPointwiseRules[] = {
    {"aten::add.Tensor", scaled<kComplexBinary>},
    {"aten::sub.Tensor", scaled<kBinary>},
    {"aten::rsub.Tensor", swapped<scaled<kBinary>>},
    {"aten::add.Scalar", scaled<kAnyBinary>},
    {"aten::sub.Scalar", scaled<kBinary>},
    {"aten::rsub.Scalar", scaled<kBinary>},
    {"aten::mul.Tensor", pointwise<kComplexBinary>},
    {"aten::mul.Scalar", pointwise<kComplexBinary>},
    {"aten::div.Tensor", pointwise<kComplexDivide>},
    {"aten::div.Scalar", pointwise<kComplexDivide>},
    {"aten::floor_divide", pointwise<kBinary>},
    {"aten::div.Tensor_mode", divide},
    {"aten::div.Scalar_mode", divide},
    {"aten::fmod.Tensor", pointwise<kBinary>},
    {"aten::fmod.Scalar", pointwise<kBinary>},
    {"aten::remainder.Tensor", pointwise<kBinary>},
    {"aten::remainder.Scalar", pointwise<kBinary>},
    {"aten::remainder.Scalar_Tensor", pointwise<kBinary>},
    {"aten::maximum", pointwise<kAnyBinary>},
    {"aten::minimum", pointwise<kAnyBinary>},
    {"aten::fmax", pointwise<kAnyBinary>},
    {"aten::fmin", pointwise<kAnyBinary>},
    {"aten::gcd", pointwise<kIntegerBinary>},
    {"aten::lcm", pointwise<kIntegerBinary>},
    {"aten::bitwise_left_shift.Tensor", pointwise<kIntegerBinary>},
    {"aten::bitwise_right_shift.Tensor", pointwise<kIntegerBinary>},
    {"aten::bitwise_left_shift.Tensor_Scalar", pointwise<kIntegerBinary>},
    {"aten::bitwise_right_shift.Tensor_Scalar", pointwise<kIntegerBinary>},
    {"aten::__lshift__.Tensor", pointwise<kIntegerBinary>},
    {"aten::__rshift__.Tensor", pointwise<kIntegerBinary>},
    {"aten::__lshift__.Scalar", pointwise<kIntegerBinary>},
    {"aten::__rshift__.Scalar", pointwise<kIntegerBinary>},
    {"aten::hypot", pointwise<kFloatBinary>},
    {"aten::logaddexp", pointwise<kFloatBinary>},
    {"aten::logaddexp2", pointwise<kFloatBinary>},
    {"aten::nextafter", pointwise<kFloatBinary>},
    {"aten::heaviside", pointwise<kBinary>},
    {"aten::bitwise_and.Tensor", pointwise<kBitwise>},
    {"aten::bitwise_or.Tensor", pointwise<kBitwise>},
    {"aten::bitwise_xor.Tensor", pointwise<kBitwise>},
    {"aten::logical_and", pointwise<kCompare>},
    {"aten::logical_or", pointwise<kCompare>},
    {"aten::logical_xor", pointwise<kCompare>},
    {"aten::complex", complex},
    {"aten::polar", complex},
    {"aten::atan2", pointwise<kDivide>},
    {"aten::copysign.Tensor", pointwise<kDivide>},
    {"aten::copysign.Scalar", pointwise<kDivide>},
    {"aten::xlogy.Tensor", pointwise<kDivide>},
    {"aten::xlogy.Scalar_Other", pointwise<kDivide>},
    {"aten::xlogy.Scalar_Self", pointwise<kDivide>},
    {"aten::special_xlog1py", pointwise<kDivide>},
    {"aten::special_xlog1py.other_scalar", pointwise<kDivide>},
    {"aten::special_xlog1py.self_scalar", pointwise<kDivide>},
    {"aten::special_zeta", pointwise<kDivide>},
    {"aten::special_zeta.other_scalar", pointwise<kDivide>},
    {"aten::special_zeta.self_scalar", pointwise<kDivide>},
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
    {"aten::isposinf", pointwise<kToBool>},
    {"aten::isneginf", pointwise<kToBool>},
    {"aten::signbit", pointwise<kToBool>},
    {"aten::bitwise_not", pointwise<kBitwiseUnary>},
    {"aten::neg", pointwise<kUnary>},
    {"aten::abs", abs},
    {"aten::sign", pointwise<kAnyUnary>},
    {"aten::sgn", pointwise<kComplexUnary>},
    {"aten::relu", pointwise<kUnary>},
    {"aten::threshold", pointwise<kUnary>},
    {"aten::floor", pointwise<kUnary>},
    {"aten::ceil", pointwise<kUnary>},
    {"aten::round", pointwise<kUnary>},
    {"aten::trunc", pointwise<kUnary>},
    {"aten::frac", pointwise<kFloatUnary>},
    {"aten::round.decimals", pointwise<kFloatUnary>},
    {"aten::nan_to_num", nan_to_num},
    {"aten::angle", pointwise<kFloatUnary>},
    {"aten::hardshrink", pointwise<kFloatUnary>},
    {"aten::softshrink", softshrink},
    {"aten::acos", pointwise<kToFloat>},
    {"aten::acosh", pointwise<kToFloat>},
    {"aten::asin", pointwise<kToFloat>},
    {"aten::asinh", pointwise<kToFloat>},
    {"aten::atanh", pointwise<kToFloat>},
    {"aten::cosh", pointwise<kToFloat>},
    {"aten::sinh", pointwise<kToFloat>},
    {"aten::tan", pointwise<kToFloat>},
    {"aten::deg2rad", pointwise<kToFloat>},
    {"aten::rad2deg", pointwise<kToFloat>},
    {"aten::digamma", pointwise<kToFloat>},
    {"aten::lgamma", pointwise<kToFloat>},
    {"aten::erfc", pointwise<kToFloat>},
    {"aten::erfinv", pointwise<kToFloat>},
    {"aten::exp2", pointwise<kToFloat>},
    {"aten::log10", pointwise<kToFloat>},
    {"aten::logit", pointwise<kToFloat>},
    {"aten::i0", pointwise<kToFloat>},
    {"aten::sinc", pointwise<kToFloat>},
    {"aten::special_entr", pointwise<kToFloat>},
    {"aten::special_erfcx", pointwise<kToFloat>},
    {"aten::special_i0e", pointwise<kToFloat>},
    {"aten::special_i1", pointwise<kToFloat>},
    {"aten::special_i1e", pointwise<kToFloat>},
    {"aten::special_log_ndtr", pointwise<kToFloat>},
    {"aten::special_ndtri", pointwise<kToFloat>},
    {"aten::special_bessel_j0", pointwise<kToFloat>},
    {"aten::special_bessel_j1", pointwise<kToFloat>},
    {"aten::special_bessel_y0", pointwise<kToFloat>},
    {"aten::special_bessel_y1", pointwise<kToFloat>},
    {"aten::polygamma", polygamma},
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
    {"aten::clamp.Tensor", clamp_tensors},
    {"aten::clamp_min", clamp_one},
    {"aten::clamp_max", clamp_one},
    {"aten::clamp_min.Tensor", pointwise<kBinary>},
    {"aten::clamp_max.Tensor", pointwise<kBinary>},
    {"aten::gelu_backward", pointwise<kFloatBinary>},
    {"aten::silu_backward", pointwise<kFloatBinary>},
    {"aten::tanh_backward", pointwise<kFloatBinary>},
    {"aten::sigmoid_backward", pointwise<kFloatBinary>},
    {"aten::elu_backward", pointwise<kFloatBinary>},
    {"aten::hardshrink_backward", pointwise<kFloatBinary>},
    {"aten::softshrink_backward", pointwise<kFloatBinary>},
    {"aten::logit_backward", pointwise<kFloatBinary>},
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
    {"aten::glu", glu},
    {"aten::glu_backward", glu_backward},
    {"aten::_prelu_kernel", prelu},
    {"aten::_prelu_kernel_backward", prelu_backward},
    {"aten::log_sigmoid_forward", log_sigmoid},
    {"aten::log_sigmoid_backward", log_sigmoid_backward},
    {"aten::where.self", where},
    {"aten::masked_fill.Scalar", masked_fill},
    {"aten::masked_fill.Tensor", masked_fill},
};

}  // namespace

Rows pointwise_rules() { return kPointwiseRules; }

}  // namespace magneto::record::rules
