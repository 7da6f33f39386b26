// Rules for normalisation (layer, batch, group) and dropout, forward and backward.
#include "record/rules_common.h"

namespace magneto::record::rules {
namespace {

// The dtype in which statistics are kept: wider than the data on CUDA, and on the CPU if the parameters are.
ScalarType statistics_type(const at::Tensor& input, const c10::IValue& parameter) {
  ScalarType type = input.scalar_type();
  if (type != ScalarType::Half && type != ScalarType::BFloat16) return type;
  if (!input.is_cpu()) return ScalarType::Float;
  return given(parameter) ? parameter.toTensor().scalar_type() : type;
}

// On CUDA these kernels have other ways with unusual layouts and half precision.
bool batch_covered(const at::Tensor& input) {
  if (!is(input.scalar_type(), kFloating)) return false;
  return input.is_cpu() ||
         (input.scalar_type() == ScalarType::Float && is_contiguous(input.sym_sizes(), input.sym_strides()));
}

// A gradient that was asked for, or an undefined tensor.
at::Tensor gradient(bool wanted, const c10::IValue& parameter) {
  return wanted && given(parameter) ? make_for(parameter.toTensor(), parameter.toTensor().sym_sizes()) : at::Tensor();
}

// Whether `normalized` are the last sizes of `input`.
bool ends_with(const at::Tensor& input, SymIntArrayRef normalized) {
  auto sizes = input.sym_sizes();
  return !normalized.empty() && normalized.size() <= sizes.size() &&
         sizes.slice(sizes.size() - normalized.size()) == normalized;
}

// (input, normalized_shape, weight, bias, eps)
bool layer_norm(Args args, Stack& results) {
  const at::Tensor& input = args[0].toTensor();
  Sizes normalized = sizes_of(args[1]);
  if (!is(input.scalar_type(), kFloating) || !ends_with(input, normalized)) return false;
  ScalarType type = statistics_type(input, args[2]);
  Sizes per_row(input.sym_sizes());
  std::fill(per_row.end() - normalized.size(), per_row.end(), 1);
  return give(results, make_for(input, input.sym_sizes()), make(per_row, type, input.device()),
              make(per_row, type, input.device()));
}

// (grad_out, input, normalized_shape, mean, rstd, weight, bias, output_mask)
bool layer_norm_backward(Args args, Stack& results) {
  const at::Tensor& input = args[1].toTensor();
  auto wanted = args[7].toBoolList();
  if (!is(input.scalar_type(), kFloating) || !ends_with(input, sizes_of(args[2]))) return false;
  return give(results, wanted[0] ? make_for(input, input.sym_sizes()) : at::Tensor(), gradient(wanted[1], args[5]),
              gradient(wanted[2], args[6]));
}

// (input, weight, bias, running_mean, running_var, training, momentum, eps)
bool batch_norm(Args args, Stack& results) {
  const at::Tensor& input = args[0].toTensor();
  if (!batch_covered(input) || input.dim() < 2) return false;
  ScalarType type = statistics_type(input, args[1]);
  Sizes channels = {args[5].toBool() ? input.sym_size(1) : SymInt(0)};
  return give(results, make_in(suggested_format(input), input.sym_sizes(), input.scalar_type(), input.device()),
              make(channels, type, input.device()), make(channels, type, input.device()));
}

// The same, with what becomes of the running statistics behind the other results.
bool batch_norm_functional(Args args, Stack& results) {
  if (!given(args[3]) || !given(args[4]) || !batch_norm(args, results)) return false;
  results.emplace_back(make_like(args[3].toTensor()));
  results.emplace_back(make_like(args[4].toTensor()));
  return true;
}

// (grad_out, input, weight, running_mean, running_var, save_mean, save_invstd, train, eps, output_mask)
bool batch_norm_backward(Args args, Stack& results) {
  const at::Tensor& input = args[1].toTensor();
  auto wanted = args[9].toBoolList();
  if (!batch_covered(input) || input.dim() < 2) return false;
  ScalarType type = statistics_type(input, args[2]);
  auto per_channel = [&](bool asked) { return asked ? make(input.sym_size(1), type, input.device()) : at::Tensor(); };
  at::Tensor whole = make_in(suggested_format(input), input.sym_sizes(), input.scalar_type(), input.device());
  return give(results, wanted[0] ? whole : at::Tensor(), per_channel(wanted[1]), per_channel(wanted[2]));
}

// (input, weight, bias, N, C, HxW, group, eps)
bool group_norm(Args args, Stack& results) {
  const at::Tensor& input = args[0].toTensor();
  if (!batch_covered(input)) return false;
  ScalarType type = statistics_type(input, args[1]);
  Sizes groups = {args[3].toSymInt(), args[6].toInt()};
  return give(results, make_in(suggested_format(input), input.sym_sizes(), input.scalar_type(), input.device()),
              make(groups, type, input.device()), make(groups, type, input.device()));
}

// (grad_out, input, mean, rstd, weight, N, C, HxW, group, output_mask)
bool group_norm_backward(Args args, Stack& results) {
  const at::Tensor& input = args[1].toTensor();
  auto wanted = args[9].toBoolList();
  if (!batch_covered(input) || (!given(args[4]) && (wanted[1] || wanted[2]))) return false;
  at::Tensor whole = make_in(suggested_format(input), input.sym_sizes(), input.scalar_type(), input.device());
  return give(results, wanted[0] ? whole : at::Tensor(), gradient(wanted[1], args[4]), gradient(wanted[2], args[4]));
}

// (input, p, train)
bool dropout(Args args, Stack& results) {
  const at::Tensor& input = args[0].toTensor();
  if (!batch_covered(input) || !(args[2].isNone() || args[2].toBool())) return false;
  return give(results, make_like(input), make_like(input, ScalarType::Bool));
}

constexpr Row kNormRules[] = {
    {"aten::native_layer_norm", layer_norm}, {"aten::native_layer_norm_backward", layer_norm_backward},
    {"aten::native_batch_norm", batch_norm}, {"aten::native_batch_norm_backward", batch_norm_backward},
    {"aten::native_group_norm", group_norm}, {"aten::native_group_norm_backward", group_norm_backward},
    {"aten::native_dropout", dropout},       {"aten::_native_batch_norm_legit_functional", batch_norm_functional},
};

}  // namespace

Rows norm_rules() { return kNormRules; }

}  // namespace magneto::record::rules
