// The table of formulas.
#include "codegen/formulas.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>
#include <unordered_map>

namespace magneto::codegen {
namespace {

using c10::ScalarType;
using graph::ValueId;
using std::string;

bool is_default(const Call& call, uint32_t position) { return call.op.args[position].toScalar().equal(1); }

template <bool minus>
string add(const Call& k) {
  if (k.type == ScalarType::Bool) return is_default(k, 2) ? k.x(0) + " || " + k.x(1) : "";
  if (is_default(k, 2)) return k.x(0) + (minus ? " - " : " + ") + k.x(1);
  string factor = k.number(minus ? -k.op.args[2].toScalar() : k.op.args[2].toScalar());
  if (!k.is_real()) return k.x(0) + " + " + k.x(1) + " * " + factor;
  return k.function("fma", k.x(1) + ", " + factor + ", " + k.x(0));
}

template <bool minus>
string add_number(const Call& k) {
  c10::Scalar other = k.op.args[1].toScalar(), alpha = k.op.args[2].toScalar();
  if (k.is_real()) return k.x(0) + (minus ? " - " : " + ") + k.number(other.toDouble() * alpha.toDouble());
  return k.x(0) + (minus ? " - " : " + ") + k.number(other.toLong() * alpha.toLong());
}

string multiply(const Call& k) {
  return k.type == ScalarType::Bool ? k.x(0) + " && " + k.x(1) : k.x(0) + " * " + k.x(1);
}

// By a number on the host, torch's kernel multiplies with the inverse.
string by_number(const Call& k, const c10::Scalar& number) {
  if (k.type == ScalarType::Double) return k.x(0) + " * " + k.number(1.0 / number.toDouble());
  return k.x(0) + " * " + k.number(static_cast<double>(1.0F / static_cast<float>(number.toDouble())));
}

string divide(const Call& k) {
  if (k.is_number[1]) return by_number(k, *host_number(k.graph, k.op.tensors[1].value));
  return k.x(0) + " / " + k.x(1);
}

string to_power(const Call& k) {
  double exponent = k.op.args[1].toScalar().toDouble();
  const string& x = k.x(0);
  string square = rounded("(" + x + " * " + x + ")", k.result);
  if (exponent == 2) return square;
  if (exponent == 3) return square + " * " + x;
  if (!k.is_real()) return "";
  if (exponent == 0.5) return k.function("sqrt", x);
  if (exponent == -0.5) return k.function("rsqrt", x);
  if (exponent == 1) return x;
  if (exponent == -1) return k.number(1) + " / " + x;
  if (exponent == -2) return k.number(1) + " / " + square;
  return "power(" + x + ", " + rounded(k.given(1), k.common) + ")";
}

// The larger of this and the lower bound, and so on; NaN stays.
string bounded(const Call& k, const std::optional<c10::Scalar>& low, const std::optional<c10::Scalar>& high) {
  string text = k.x(0);
  if (low) text = "larger(" + text + ", " + k.number(*low) + ")";
  if (high) text = "smaller(" + text + ", " + k.number(*high) + ")";
  return k.is_real() ? k.x(0) + " != " + k.x(0) + " ? " + k.x(0) + " : " + text : text;
}

string gelu_inner(const Call& k, const string& x) {
  string cube = x + " * " + x + " * " + x;
  return k.function("tanh", k.number(M_SQRT2 * M_2_SQRTPI * 0.5) + " * " +
                                k.function("fma", k.number(0.044715) + ", " + cube + ", " + x));
}

string gelu(const Call& k) {
  const string& x = k.x(0);
  if (k.op.args[1].toStringRef() == "tanh")
    return k.number(0.5) + " * " + x + " * (" + k.number(1) + " + " + gelu_inner(k, x) + ")";
  return x + " * " + k.number(0.5) + " * (" + k.number(1) + " + " + k.function("erf", x + " * " + k.number(M_SQRT1_2)) +
         ")";
}

string gelu_backward(const Call& k) {
  const string &dy = k.x(0), &x = k.x(1), half = k.number(0.5), one = k.number(1);
  if (k.op.args[2].toStringRef() != "tanh") {
    string cdf = half + " * (" + one + " + " + k.function("erf", x + " * " + k.number(M_SQRT1_2)) + ")";
    string pdf = k.function("exp", "-" + half + " * " + x + " * " + x) + " * " + k.number(M_2_SQRTPI * M_SQRT1_2 * 0.5);
    return dy + " * " + k.function("fma", x + ", " + pdf + ", " + cdf);
  }
  string inner = gelu_inner(k, x);
  string slope = k.number(M_SQRT2 * M_2_SQRTPI * 0.5) + " * " +
                 k.function("fma", k.number(3 * 0.044715) + ", " + x + " * " + x + ", " + one);
  string bend = half + " * " + x + " * " + k.function("fma", "-" + inner + ", " + inner + ", " + one) + " * " + slope;
  return dy + " * (" + half + " * (" + one + " + " + inner + ") + " + bend + ")";
}

string sigmoid(const Call& k, const string& x) {
  return k.number(1) + " / (" + k.number(1) + " + " + k.function("exp", "-" + x) + ")";
}

string silu_backward(const Call& k) {
  string s = "(" + sigmoid(k, k.x(1)) + ")", one = k.number(1);
  return k.x(0) + " * " + s + " * " + k.function("fma", k.x(1) + ", " + one + " - " + s + ", " + one);
}

string batch_norm(const Call& k) {  // input, weight, bias, mean, variance, training, momentum, eps
  string scale = k.function("rsqrt", k.x(4) + " + " + literal(k.op.args[7].toScalar(), k.type));
  string centred = "(" + k.x(0) + " - " + k.x(3) + ")";
  if (!k.x(1).empty()) centred = k.x(1) + " * " + centred;
  if (k.x(2).empty()) return centred + " * " + scale;
  return k.function("fma", centred + ", " + scale + ", " + k.x(2));
}

template <const char* name>
string unary(const Call& k) {
  return k.is_real() ? k.function(name, k.x(0)) : "";
}

// Numbers are compared in the precision of the tensors.
template <const char* sign>
string compare(const Call& k) {
  auto operand = [&](uint32_t i) { return k.is_number[i] ? rounded(k.x(i), k.common) : k.x(i); };
  return operand(0) + sign + operand(1);
}

template <const char* sign>
string compare_number(const Call& k) {
  return k.x(0) + sign + rounded(k.given(1), k.common);
}

// Bits of integers, or truth.
template <const char* sign>
string bitwise(const Call& k) {
  return k.is_real() ? "" : k.x(0) + sign + k.x(1);
}

constexpr char kSin[] = "sin", kCos[] = "cos", kTanh[] = "tanh", kExp[] = "exp", kLog[] = "log", kSqrt[] = "sqrt",
               kRsqrt[] = "rsqrt", kErf[] = "erf", kExpm1[] = "expm1", kLog1p[] = "log1p", kFloor[] = "floor",
               kCeil[] = "ceil", kTrunc[] = "trunc", kRound[] = "rint",
               kEqual[] = " == ", kUnequal[] = " != ", kLess[] = " < ", kLessEqual[] = " <= ", kGreater[] = " > ",
               kGreaterEqual[] = " >= ", kAnd[] = " & ", kOr[] = " | ", kXor[] = " ^ ";

string same(const Call& k) { return k.x(0); }
string second(const Call& k) { return k.x(1); }

std::optional<c10::Scalar> optional_number(const c10::IValue& value) {
  return value.isNone() ? std::nullopt : std::optional(value.toScalar());
}

const std::unordered_map<std::string_view, Formula>& formulas() {
  static const std::unordered_map<std::string_view, Formula> table = {
      {"aten::add.Tensor", &add<false>},
      {"aten::sub.Tensor", &add<true>},
      {"aten::add.Scalar", &add_number<false>},
      {"aten::sub.Scalar", &add_number<true>},
      {"aten::rsub.Scalar", [](const Call& k) { return is_default(k, 2) ? k.given(1) + " - " + k.x(0) : ""; }},
      {"aten::mul.Tensor", &multiply},
      {"aten::mul.Scalar", [](const Call& k) { return k.x(0) + " * " + k.given(1); }},
      {"aten::div.Tensor", &divide},
      {"aten::div.Scalar", [](const Call& k) { return by_number(k, k.op.args[1].toScalar()); }},
      {"aten::neg", [](const Call& k) { return "-" + k.x(0); }},
      {"aten::abs", [](const Call& k) { return k.is_real() ? k.function("fabs", k.x(0)) : ""; }},
      {"aten::reciprocal", [](const Call& k) { return k.number(1) + " / " + k.x(0); }},
      {"aten::pow.Tensor_Scalar", &to_power},
      {"aten::sin", &unary<kSin>},
      {"aten::cos", &unary<kCos>},
      {"aten::tanh", &unary<kTanh>},
      {"aten::exp", &unary<kExp>},
      {"aten::log", &unary<kLog>},
      {"aten::sqrt", &unary<kSqrt>},
      {"aten::rsqrt", &unary<kRsqrt>},
      {"aten::erf", &unary<kErf>},
      {"aten::expm1", &unary<kExpm1>},
      {"aten::log1p", &unary<kLog1p>},
      {"aten::floor", &unary<kFloor>},
      {"aten::ceil", &unary<kCeil>},
      {"aten::trunc", &unary<kTrunc>},
      {"aten::round", &unary<kRound>},
      {"aten::sigmoid", [](const Call& k) { return sigmoid(k, k.x(0)); }},
      {"aten::sigmoid_backward",
       [](const Call& k) { return k.x(0) + " * (" + k.number(1) + " - " + k.x(1) + ") * " + k.x(1); }},
      {"aten::tanh_backward",
       [](const Call& k) {
         return k.x(0) + " * " + k.function("fma", "-" + k.x(1) + ", " + k.x(1) + ", " + literal(1, k.type));
       }},
      {"aten::silu",
       [](const Call& k) {
         return k.x(0) + " / (" + literal(1, k.type) + " + " + k.function("exp", "-" + k.x(0)) + ")";
       }},
      {"aten::silu_backward", &silu_backward},
      {"aten::gelu", &gelu},
      {"aten::gelu_backward", &gelu_backward},
      {"aten::relu", [](const Call& k) { return bounded(k, 0, std::nullopt); }},
      {"aten::threshold_backward",
       [](const Call& k) {
         return k.x(1) + " <= " + rounded(k.given(2), k.common) + " ? " + literal(0, k.type) + " : " + k.x(0);
       }},
      {"aten::leaky_relu",
       [](const Call& k) {
         return k.x(0) + " > " + literal(0, k.type) + " ? " + k.x(0) + " : " + k.x(0) + " * " + k.given(1);
       }},
      {"aten::hardtanh", [](const Call& k) { return bounded(k, k.op.args[1].toScalar(), k.op.args[2].toScalar()); }},
      {"aten::clamp",
       [](const Call& k) { return bounded(k, optional_number(k.op.args[1]), optional_number(k.op.args[2])); }},
      {"aten::clamp_min", [](const Call& k) { return bounded(k, k.op.args[1].toScalar(), std::nullopt); }},
      {"aten::clamp_max", [](const Call& k) { return bounded(k, std::nullopt, k.op.args[1].toScalar()); }},
      {"aten::maximum",
       [](const Call& k) {
         if (k.type == ScalarType::Bool) return k.x(0) + " || " + k.x(1);
         return k.is_real() ? k.x(1) + " != " + k.x(1) + " ? " + k.x(1) + " : larger(" + k.x(0) + ", " + k.x(1) + ")"
                            : "larger(" + k.x(0) + ", " + k.x(1) + ")";
       }},
      {"aten::minimum",
       [](const Call& k) {
         if (k.type == ScalarType::Bool) return k.x(0) + " && " + k.x(1);
         return k.is_real() ? k.x(1) + " != " + k.x(1) + " ? " + k.x(1) + " : smaller(" + k.x(0) + ", " + k.x(1) + ")"
                            : "smaller(" + k.x(0) + ", " + k.x(1) + ")";
       }},
      {"aten::eq.Tensor", &compare<kEqual>},
      {"aten::ne.Tensor", &compare<kUnequal>},
      {"aten::lt.Tensor", &compare<kLess>},
      {"aten::le.Tensor", &compare<kLessEqual>},
      {"aten::gt.Tensor", &compare<kGreater>},
      {"aten::ge.Tensor", &compare<kGreaterEqual>},
      {"aten::eq.Scalar", &compare_number<kEqual>},
      {"aten::ne.Scalar", &compare_number<kUnequal>},
      {"aten::lt.Scalar", &compare_number<kLess>},
      {"aten::le.Scalar", &compare_number<kLessEqual>},
      {"aten::gt.Scalar", &compare_number<kGreater>},
      {"aten::ge.Scalar", &compare_number<kGreaterEqual>},
      {"aten::bitwise_and.Tensor", &bitwise<kAnd>},
      {"aten::bitwise_or.Tensor", &bitwise<kOr>},
      {"aten::bitwise_xor.Tensor", &bitwise<kXor>},
      {"aten::bitwise_not",
       [](const Call& k) { return k.is_real() ? "" : (k.type == ScalarType::Bool ? "!" : "~") + k.x(0); }},
      {"aten::logical_and", [](const Call& k) { return k.x(0) + " && " + k.x(1); }},
      {"aten::logical_or", [](const Call& k) { return k.x(0) + " || " + k.x(1); }},
      {"aten::logical_not", [](const Call& k) { return "!" + k.x(0); }},
      {"aten::where.self", [](const Call& k) { return k.x(0) + " ? " + k.x(1) + " : " + k.x(2); }},
      {"aten::masked_fill.Scalar", [](const Call& k) { return k.x(1) + " ? " + k.given(2) + " : " + k.x(0); }},
      {"aten::masked_fill.Tensor", [](const Call& k) { return k.x(1) + " ? " + k.x(2) + " : " + k.x(0); }},
      {"aten::native_dropout_backward", [](const Call& k) { return k.x(0) + " * " + k.x(1) + " * " + k.given(2); }},
      {"aten::native_batch_norm", &batch_norm},
      {"aten::_to_copy", &same},
      {"aten::clone", &same},
      {"aten::copy", &second},
  };
  return table;
}

bool is_python_number(const graph::Graph& graph, ValueId id) {
  for (size_t i = 0; i < graph.constants.size(); ++i) {
    if (graph.constants[i] == id) return graph.constant_tensors[i].unsafeGetTensorImpl()->is_wrapped_number();
  }
  return false;
}

// What counts more decides, unless the other is of a higher category.
ScalarType combined(ScalarType type, ScalarType lesser) {
  if (type == ScalarType::Undefined || c10::isFloatingType(type)) return type == ScalarType::Undefined ? lesser : type;
  if (lesser == ScalarType::Undefined) return type;
  return type == ScalarType::Bool || c10::isFloatingType(lesser) ? c10::promoteTypes(type, lesser) : type;
}

// The types of its tensors and of a number beside them as one, as in torch: tensors of several dimensions count more
// than those of none, and these more than numbers. Undefined if that would depend on torch's default type.
ScalarType promoted(const graph::Graph& graph, const graph::Op& op) {
  std::array<ScalarType, 3> types;
  types.fill(ScalarType::Undefined);
  auto add = [](ScalarType& type, ScalarType other) {
    type = type == ScalarType::Undefined ? other : c10::promoteTypes(type, other);
  };
  for (const graph::TensorRef& tensor : op.tensors) {
    const graph::Value& value = graph.values[tensor.value];
    add(types[!value.sizes.empty() ? 0 : is_python_number(graph, tensor.value) ? 2 : 1], value.dtype);
  }
  for (const c10::IValue& value : op.args) {
    if (value.isScalar()) add(types[2], value.toScalar().type());
  }
  ScalarType all = combined(types[0], types[1]);
  if (c10::isFloatingType(types[2]) && !c10::isFloatingType(all)) return ScalarType::Undefined;
  return combined(all, types[2]);
}

bool is_condition(const graph::Op& op, uint32_t position) {
  const std::string& name = op.info->name;
  return (position == 0 && name == "aten::where.self") || (position == 1 && name.starts_with("aten::masked_fill."));
}

}  // namespace

std::optional<c10::Scalar> host_number(const graph::Graph& graph, graph::ValueId id) {
  const graph::Value& value = graph.values[id];
  if (value.role != graph::Role::Constant || !value.sizes.empty() || !value.device.is_cpu()) return std::nullopt;
  for (size_t i = 0; i < graph.constants.size(); ++i) {
    if (graph.constants[i] == id && is_known(value.dtype)) return graph.constant_tensors[i].item();
  }
  return std::nullopt;
}

ScalarType operand_type(const graph::Op& op, uint32_t position, ScalarType common) {
  const std::string& name = op.info->name;
  if (is_condition(op, position)) return ScalarType::Bool;
  bool keeps_precision = name == "aten::native_batch_norm" || name == "aten::_to_copy" || name == "aten::copy";
  return keeps_precision ? computed_as(common) : common;
}

ScalarType common_type(const graph::Graph& graph, const graph::Op& op) {
  static constexpr std::array<std::string_view, 6> comparisons = {"eq.", "ne.", "lt.", "le.", "gt.", "ge."};
  std::string_view name = std::string_view(op.info->name).substr(std::string_view("aten::").size());
  bool compares =
      std::any_of(comparisons.begin(), comparisons.end(), [&](auto start) { return name.starts_with(start); });
  return compares ? promoted(graph, op) : graph.values[op.results[0].value].dtype;
}

Formula find_formula(const graph::Graph& graph, const graph::Op& op) {
  auto found = formulas().find(op.info->name);
  if (found == formulas().end() || op.results.empty() || op.results[0].position != 0) return nullptr;
  if (!op.lists.empty() || !op.sizes.empty()) return nullptr;
  if (op.info->name == "aten::native_batch_norm") {
    if (op.args[5].toBool() || op.results.size() != 1) return nullptr;  // training, or what it has computed on the way
  } else if (op.results.size() != 1) {
    return nullptr;
  }
  const graph::Value& result = graph.values[op.results[0].value];
  if (!is_known(result.dtype) || result.role != graph::Role::Result) return nullptr;
  for (const graph::TensorRef& tensor : op.tensors) {
    const graph::Value& value = graph.values[tensor.value];
    if (!is_known(value.dtype) || value.sizes.size() > result.sizes.size()) return nullptr;
    if (value.device != result.device && !host_number(graph, tensor.value)) return nullptr;
    if (is_condition(op, tensor.position) && value.dtype != ScalarType::Bool) return nullptr;
  }
  ScalarType common = common_type(graph, op);
  if (!is_known(common)) return nullptr;
  // What else an operator may refuse or mean, it says by an empty text.
  Call probe{graph, op, common, computed_as(common), result.dtype, {}, {}};
  probe.texts.assign(op.args.size(), "");
  probe.is_number.assign(op.args.size(), false);
  for (const graph::TensorRef& tensor : op.tensors) {
    probe.texts[tensor.position] = "x";
    probe.is_number[tensor.position] = host_number(graph, tensor.value).has_value();
  }
  return found->second(probe).empty() ? nullptr : found->second;
}

Computed compute(const graph::Graph& graph, const graph::Op& op, const Element& element) {
  ScalarType common = common_type(graph, op), result = graph.values[op.results[0].value].dtype;
  Call call{graph, op, common, computed_as(common), result, {}, {}};
  call.texts.resize(op.args.size());
  call.is_number.resize(op.args.size(), false);
  for (const graph::TensorRef& tensor : op.tensors) {
    ScalarType type = operand_type(op, tensor.position, common);
    std::optional<c10::Scalar> number = host_number(graph, tensor.value);
    call.is_number[tensor.position] = number.has_value();
    call.texts[tensor.position] = number ? literal(*number, type) : element(tensor, type);
  }
  return {find_formula(graph, op)(call), result == ScalarType::Bool ? ScalarType::Bool : call.type};
}

}  // namespace magneto::codegen
