// Rules for reductions, scans and softmax. What they make is contiguous.
#include "record/rules_common.h"

namespace magneto::record::rules {
namespace {

enum class Gives : uint8_t { Same, Sum, Bool, Index };  // Sum: integers add up in 64 bits

ScalarType result_type(Gives gives, ScalarType type) {
  if (gives == Gives::Bool) return type == ScalarType::Byte ? ScalarType::Byte : ScalarType::Bool;
  if (gives == Gives::Index) return ScalarType::Long;
  return gives == Gives::Sum && !is(type, kFloating) ? ScalarType::Long : type;
}

// The sizes of `self` with `dims` (none: all) gone, or left as 1. Nothing if a dimension is out of range or named
// twice.
std::optional<Sizes> reduced(const at::Tensor& self, c10::ArrayRef<int64_t> dims, bool keep) {
  auto from = self.sym_sizes();
  if (from.size() > 64) return std::nullopt;  // kernels keep dimensions as bits
  c10::SmallVector<bool, 5> gone(std::max<size_t>(from.size(), 1), dims.empty());
  for (int64_t asked : dims) {
    auto dim = wrap(asked, self.dim());
    if (!dim || gone[*dim]) return std::nullopt;
    gone[*dim] = true;
  }
  Sizes sizes;
  for (size_t dim = 0; dim < from.size(); ++dim) {
    if (!gone[dim]) {
      sizes.push_back(from[dim]);
    } else if (keep) {
      sizes.push_back(1);
    }
  }
  return sizes;
}

std::vector<int64_t> dims_of(const c10::IValue& value) {
  return value.isNone() ? std::vector<int64_t>() : value.isInt() ? std::vector{value.toInt()} : value.toIntVector();
}

struct Reduction {
  Kinds takes;
  Gives gives = Gives::Same;
  int dims = -1;                // position of the dimensions, if they can be given
  int keep = -1;                // of keepdim
  int type = -1;                // of the dtype
  bool needs_elements = false;  // refuses to reduce over nothing
  int results = 1;
};

template <Reduction reduction>
bool reduce(Args args, Stack& results) {
  const at::Tensor& self = args[0].toTensor();
  ScalarType type = result_type(reduction.gives, self.scalar_type());
  if constexpr (reduction.type >= 0) type = type_of(args[reduction.type]).value_or(type);
  std::vector<int64_t> dims;
  if constexpr (reduction.dims >= 0) dims = dims_of(args[reduction.dims]);
  bool keep = false;
  if constexpr (reduction.keep >= 0) keep = args[reduction.keep].toBool();
  if (!is_plain(self) || !is(self.scalar_type(), kAny)) return false;
  // A dtype that was asked for is converted to first.
  if (!is(reduction.type >= 0 ? type : self.scalar_type(), reduction.takes)) return false;
  if (reduction.needs_elements && product(self.sym_sizes()) == 0) return false;
  auto sizes = reduced(self, dims, keep);
  if (!sizes) return false;
  for (int i = 0; i < reduction.results; ++i) give(results, make(*sizes, type, self.device()));
  return true;
}

// An element along a dimension, such as the largest, and where it is.
template <size_t dim = 1, Kinds takes = kAny>
bool extreme(Args args, Stack& results) {
  const at::Tensor& self = args[0].toTensor();
  if (!is_plain(self) || !is(self.scalar_type(), takes) || product(self.sym_sizes()) == 0) return false;
  auto sizes = reduced(self, {args[dim].toInt()}, args[dim + 1].toBool());
  return sizes &&
         give(results, make(*sizes, self.scalar_type(), self.device()), make(*sizes, ScalarType::Long, self.device()));
}

// (self, k, dim, keepdim)
bool kthvalue(Args args, Stack& results) {
  const at::Tensor& self = args[0].toTensor();
  auto dim = wrap(args[2].toInt(), self.dim());
  SymInt k = args[1].toSymInt();
  if (!dim || self.dim() == 0 || k < 1 || k > self.sym_size(*dim)) return false;
  return extreme<2, kNumber>(args, results);
}

// (self), a matrix
bool trace_of_matrix(Args args, Stack& results) {
  const at::Tensor& self = args[0].toTensor();
  if (self.dim() != 2 || !is(self.scalar_type(), kNumber)) return false;
  return give(results, make({}, result_type(Gives::Sum, self.scalar_type()), self.device()));
}

// (self, other, p)
bool dist(Args args, Stack& results) {
  const at::Tensor &self = args[0].toTensor(), &other = args[1].toTensor();
  if (!is(self.scalar_type(), kFloating) || self.scalar_type() != other.scalar_type()) return false;
  return self.sym_sizes() == other.sym_sizes() && product(self.sym_sizes()) != 0 && give(results, make_for(self, {}));
}

// (self, ord, dim, keepdim, dtype)
bool vector_norm(Args args, Stack& results) {
  const at::Tensor& self = args[0].toTensor();
  if (!args[4].isNone() || !is(self.scalar_type(), kFloating) || product(self.sym_sizes()) == 0) return false;
  auto sizes = reduced(self, dims_of(args[2]), args[3].toBool());
  return sizes && give(results, make(*sizes, self.scalar_type(), self.device()));
}

// (self, dim, half_to_float)
bool softmax(Args args, Stack& results) {
  const at::Tensor& self = args[0].toTensor();
  if (!is(self.scalar_type(), kFloating) || flag(args[2]) || !wrap(args[1].toInt(), self.dim())) return false;
  return give(results, make(self.sym_sizes(), self.scalar_type(), self.device()));
}

// (self, dim, dtype)
bool safe_softmax(Args args, Stack& results) {
  const at::Tensor& self = args[0].toTensor();
  ScalarType type = type_of(args[2]).value_or(self.scalar_type());
  if (type != self.scalar_type() || !is(type, kFloating) || !wrap(args[1].toInt(), self.dim())) return false;
  return give(results, make(self.sym_sizes(), type, self.device()));
}

// (grad_output, output, dim, input_dtype)
bool softmax_backward(Args args, Stack& results) {
  const at::Tensor &gradient = args[0].toTensor(), &output = args[1].toTensor();
  ScalarType type = args[3].toScalarType();
  if (gradient.scalar_type() != type || output.scalar_type() != type || !is(type, kFloating)) return false;
  if (gradient.sym_sizes() != output.sym_sizes()) return false;
  return give(results, make(gradient.sym_sizes(), type, gradient.device()));
}

// (self, dim, *, dtype)
bool scan(Args args, Stack& results) {
  const at::Tensor& self = args[0].toTensor();
  ScalarType type = type_of(args[2]).value_or(result_type(Gives::Sum, self.scalar_type()));
  if (!is_plain(self) || !is(self.scalar_type(), kAny) || !is(type, kNumber)) return false;
  return wrap(args[1].toInt(), self.dim()) && give(results, make(self.sym_sizes(), type, self.device()));
}

// (self, dim), with the places of the elements
bool scan_with_places(Args args, Stack& results) {
  const at::Tensor& self = args[0].toTensor();
  if (!is_plain(self) || !is(self.scalar_type(), kAny) || !wrap(args[1].toInt(), self.dim())) return false;
  return give(results, make_for(self, self.sym_sizes()), make(self.sym_sizes(), ScalarType::Long, self.device()));
}

// (self, dim)
bool scan_floating(Args args, Stack& results) {
  const at::Tensor& self = args[0].toTensor();
  return is(self.scalar_type(), kFloating) && wrap(args[1].toInt(), self.dim()) &&
         give(results, make_for(self, self.sym_sizes()));
}

// (data, reduce, *, lengths, indices, offsets, axis, unsafe, initial)
bool segments(Args args, Stack& results) {
  const at::Tensor& data = args[0].toTensor();
  bool by_length = given(args[2]);
  if (by_length == given(args[4]) || given(args[3])) return false;
  Sizes sizes(args[by_length ? 2 : 4].toTensor().sym_sizes());
  auto axis = wrap(args[5].toInt(), data.dim());
  if (!axis || static_cast<size_t>(*axis) + 1 != sizes.size()) return false;
  if (!by_length) sizes.back() = sizes.back() - 1;
  for (int64_t dim = *axis + 1; dim < data.dim(); ++dim) sizes.push_back(data.sym_size(dim));
  return give(results, make_for(data, sizes));
}

// (grad, output, data, reduce, *, lengths, offsets, axis, initial)
bool segments_backward(Args args, Stack& results) {
  const at::Tensor& data = args[2].toTensor();
  return give(results, make_for(args[0].toTensor(), data.sym_sizes()));
}

constexpr Row kReduceRules[] = {
    {"aten::sum", reduce<{.takes = kNumber, .gives = Gives::Sum, .type = 1}>},
    {"aten::sum.dim_IntList", reduce<{.takes = kNumber, .gives = Gives::Sum, .dims = 1, .keep = 2, .type = 3}>},
    {"aten::prod", reduce<{.takes = kNumber, .gives = Gives::Sum, .type = 1}>},
    {"aten::prod.dim_int", reduce<{.takes = kNumber, .gives = Gives::Sum, .dims = 1, .keep = 2, .type = 3}>},
    {"aten::nansum", reduce<{.takes = kNumber, .gives = Gives::Sum, .dims = 1, .keep = 2, .type = 3}>},
    {"aten::mean", reduce<{.takes = kFloating, .type = 1}>},
    {"aten::mean.dim", reduce<{.takes = kFloating, .dims = 1, .keep = 2, .type = 3}>},
    {"aten::amax", reduce<{.takes = kAny, .dims = 1, .keep = 2, .needs_elements = true}>},
    {"aten::amin", reduce<{.takes = kAny, .dims = 1, .keep = 2, .needs_elements = true}>},
    {"aten::max", reduce<{.takes = kAny, .needs_elements = true}>},
    {"aten::min", reduce<{.takes = kAny, .needs_elements = true}>},
    {"aten::aminmax", reduce<{.takes = kAny, .dims = 1, .keep = 2, .needs_elements = true, .results = 2}>},
    {"aten::max.dim", extreme<>},
    {"aten::min.dim", extreme<>},
    {"aten::median", reduce<{.takes = kNumber, .needs_elements = true}>},
    {"aten::nanmedian", reduce<{.takes = kNumber, .needs_elements = true}>},
    {"aten::median.dim", extreme<1, kNumber>},
    {"aten::nanmedian.dim", extreme<1, kNumber>},
    {"aten::mode", extreme<1, kNumber>},
    {"aten::kthvalue", kthvalue},
    {"aten::trace", trace_of_matrix},
    {"aten::dist", dist},
    {"aten::argmax", reduce<{.takes = kNumber, .gives = Gives::Index, .dims = 1, .keep = 2, .needs_elements = true}>},
    {"aten::argmin", reduce<{.takes = kNumber, .gives = Gives::Index, .dims = 1, .keep = 2, .needs_elements = true}>},
    {"aten::all", reduce<{.takes = kAny, .gives = Gives::Bool}>},
    {"aten::any", reduce<{.takes = kAny, .gives = Gives::Bool}>},
    {"aten::all.dim", reduce<{.takes = kAny, .gives = Gives::Bool, .dims = 1, .keep = 2}>},
    {"aten::any.dim", reduce<{.takes = kAny, .gives = Gives::Bool, .dims = 1, .keep = 2}>},
    {"aten::all.dims", reduce<{.takes = kAny, .gives = Gives::Bool, .dims = 1, .keep = 2}>},
    {"aten::any.dims", reduce<{.takes = kAny, .gives = Gives::Bool, .dims = 1, .keep = 2}>},
    {"aten::count_nonzero", reduce<{.takes = kAny, .gives = Gives::Index, .dims = 1}>},
    {"aten::count_nonzero.dim_IntList", reduce<{.takes = kAny, .gives = Gives::Index, .dims = 1}>},
    {"aten::logsumexp", reduce<{.takes = kFloating, .dims = 1, .keep = 2}>},
    {"aten::var.correction", reduce<{.takes = kFloating, .dims = 1, .keep = 3}>},
    {"aten::std.correction", reduce<{.takes = kFloating, .dims = 1, .keep = 3}>},
    {"aten::var_mean.correction", reduce<{.takes = kFloating, .dims = 1, .keep = 3, .results = 2}>},
    {"aten::std_mean.correction", reduce<{.takes = kFloating, .dims = 1, .keep = 3, .results = 2}>},
    {"aten::norm.Scalar", reduce<{.takes = kFloating, .needs_elements = true}>},
    {"aten::norm.ScalarOpt_dim", reduce<{.takes = kFloating, .dims = 2, .keep = 3, .needs_elements = true}>},
    {"aten::linalg_vector_norm", vector_norm},
    {"aten::_softmax", softmax},
    {"aten::_log_softmax", softmax},
    {"aten::_safe_softmax", safe_softmax},
    {"aten::_softmax_backward_data", softmax_backward},
    {"aten::_log_softmax_backward_data", softmax_backward},
    {"aten::cumsum", scan},
    {"aten::cumprod", scan},
    {"aten::cummax", scan_with_places},
    {"aten::cummin", scan_with_places},
    {"aten::logcumsumexp", scan_floating},
    {"aten::_logcumsumexp", scan_floating},
    {"aten::segment_reduce", segments},
    {"aten::_segment_reduce_backward", segments_backward},
};

}  // namespace

Rows reduce_rules() { return kReduceRules; }

}  // namespace magneto::record::rules
