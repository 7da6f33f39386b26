// Which operators have such a kernel, by name: the same one that runs behind the operator.
#include "runtime/direct_kernels.h"

#include <ATen/CPUFunctions.h>
#include <ATen/ops/embedding.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>

// Torch chooses among its kernels for one operator by what it was built with, which its headers do not know.
#if defined(__x86_64__)
#define HAVE_AVX2_CPU_DEFINITION
#define HAVE_AVX512_CPU_DEFINITION
#include <ATen/native/layer_norm.h>
#define MAGNETO_HAS_LAYER_NORM
#endif

namespace magneto::runtime {
namespace {

using at::Scalar;
using at::Tensor;
using c10::ScalarType;
using graph::Op;
using graph::Value;

// ---- from arguments of a step to those of a function

struct Dims {
  at::DimVector dims;
  operator at::IntArrayRef() const { return dims; }
};

// Not convertible to dimensions: an optional list of them would be made of that.
struct OptionalDims {
  std::optional<at::DimVector> dims;
  operator at::OptionalIntArrayRef() const {
    return dims ? at::OptionalIntArrayRef(at::IntArrayRef(*dims)) : std::nullopt;
  }
};

struct Tensors {
  c10::SmallVector<Tensor, 4> tensors;
  operator at::ITensorListRef() const { return at::ITensorListRef(at::ArrayRef<Tensor>(tensors)); }
};

template <class T>
decltype(auto) read(const StepArguments& arguments, size_t position) {
  using Plain = std::remove_cvref_t<T>;
  if constexpr (std::is_same_v<Plain, Tensor>) {
    return arguments.tensor(position);
  } else if constexpr (std::is_same_v<Plain, at::ITensorListRef>) {
    return Tensors{arguments.list(position)};
  } else {
    const c10::IValue& constant = arguments.constant(position);
    if constexpr (std::is_same_v<Plain, Scalar>) {
      return constant.toScalar();
    } else if constexpr (std::is_same_v<Plain, at::IntArrayRef>) {
      return Dims{constant.toDimVector()};
    } else if constexpr (std::is_same_v<Plain, at::OptionalIntArrayRef>) {
      return OptionalDims{constant.isNone() ? std::nullopt : std::optional(constant.toDimVector())};
    } else if constexpr (std::is_same_v<Plain, c10::string_view>) {
      return constant.toStringView();
    } else {
      return constant.to<Plain>();
    }
  }
}

template <auto function, class... Arguments, size_t... positions>
void call_at(std::tuple<Arguments...>*, std::index_sequence<positions...>, const StepArguments& arguments,
             Tensor* results) {
  function(read<std::tuple_element_t<positions, std::tuple<Arguments...>>>(arguments, positions)..., *results);
}

template <auto function, class... Arguments>
void call_as(Tensor& (*)(Arguments...), const StepArguments& arguments, Tensor* results) {
  using All = std::tuple<Arguments...>;  // the last one is the result
  call_at<function>(static_cast<All*>(nullptr), std::make_index_sequence<sizeof...(Arguments) - 1>(), arguments,
                    results);
}

template <auto function>
void call(const StepArguments& arguments, Tensor* results) {
  call_as<function>(function, arguments, results);
}

// ---- functions that have several forms

using Unary = Tensor& (*)(const Tensor&, Tensor&);
using Binary = Tensor& (*)(const Tensor&, const Tensor&, Tensor&);
using WithNumber = Tensor& (*)(const Tensor&, const Scalar&, Tensor&);
using OfNumber = Tensor& (*)(const Scalar&, const Tensor&, Tensor&);
using Clamp = Tensor& (*)(const Tensor&, const std::optional<Scalar>&, const std::optional<Scalar>&, Tensor&);

// ---- operators that are no more than another one

void relu(const StepArguments& arguments, Tensor* results) {
  at::cpu::clamp_min_outf(arguments.tensor(0), Scalar(0), *results);
}

// The operator would first copy the row everywhere, in a longer way.
void addmm_of_row(const StepArguments& arguments, Tensor* results) {
  const Tensor& row = arguments.tensor(0);
  auto* to = static_cast<char*>(results->mutable_data_ptr());
  for (const char* end = to + results->nbytes(); to != end; to += row.nbytes())
    std::memcpy(to, row.const_data_ptr(), row.nbytes());
  at::cpu::addmm_outf(*results, arguments.tensor(1), arguments.tensor(2), arguments.constant(3).toScalar(),
                      arguments.constant(4).toScalar(), *results);
}

void embedding(const StepArguments& arguments, Tensor* results) {
  const Tensor& rows = arguments.tensor(0);
  const Tensor& indices = arguments.tensor(1);
  const auto* index = indices.const_data_ptr<int64_t>();
  const auto* from = static_cast<const char*>(rows.const_data_ptr());
  auto* to = static_cast<char*>(results->mutable_data_ptr());
  const size_t row_bytes = static_cast<size_t>(rows.size(1)) * rows.element_size();
  for (int64_t i = 0; i < indices.numel(); ++i, to += row_bytes) {
    if (index[i] < 0 || index[i] >= rows.size(0)) {
      results->copy_(at::embedding(rows, indices));  // raises the error
      return;
    }
    std::memcpy(to, from + static_cast<size_t>(index[i]) * row_bytes, row_bytes);
  }
}

void copy(const StepArguments& arguments, Tensor* results) { results->copy_(arguments.tensor(0)); }

#ifdef MAGNETO_HAS_LAYER_NORM
void layer_norm(const StepArguments& arguments, Tensor* results) {
  const Tensor& input = arguments.tensor(0);
  int64_t rows = results[1].numel();
  at::native::LayerNormKernel(at::kCPU, input, arguments.optional_tensor(2), arguments.optional_tensor(3), rows,
                              input.numel() / rows, arguments.constant(4).toDouble(), &results[0], &results[1],
                              &results[2]);
}
#endif

// ---- by name

const std::unordered_map<std::string_view, DirectKernel>& kernels() {
  namespace cpu = at::cpu;
  static const std::unordered_map<std::string_view, DirectKernel> table = {
      {"aten::_log_softmax", call<cpu::_log_softmax_outf>},
      {"aten::_softmax", call<cpu::_softmax_outf>},
      {"aten::_to_copy", copy},
      {"aten::add.Tensor", call<cpu::add_outf>},
      {"aten::addmm", call<cpu::addmm_outf>},
      {"aten::amax", call<cpu::amax_outf>},
      {"aten::amin", call<cpu::amin_outf>},
      {"aten::baddbmm", call<cpu::baddbmm_outf>},
      {"aten::bitwise_not", call<cpu::bitwise_not_outf>},
      {"aten::bmm", call<cpu::bmm_outf>},
      {"aten::cat", call<cpu::cat_outf>},
      {"aten::clamp", call<static_cast<Clamp>(cpu::clamp_outf)>},
      {"aten::clamp_max", call<static_cast<WithNumber>(cpu::clamp_max_outf)>},
      {"aten::clamp_min", call<static_cast<WithNumber>(cpu::clamp_min_outf)>},
      {"aten::clone", copy},
      {"aten::cos", call<cpu::cos_outf>},
      {"aten::div.Tensor", call<static_cast<Binary>(cpu::div_outf)>},
      {"aten::elu", call<cpu::elu_outf>},
      {"aten::embedding", embedding},
      {"aten::eq.Scalar", call<static_cast<WithNumber>(cpu::eq_outf)>},
      {"aten::eq.Tensor", call<static_cast<Binary>(cpu::eq_outf)>},
      {"aten::erf", call<cpu::erf_outf>},
      {"aten::exp", call<cpu::exp_outf>},
      {"aten::gather", call<cpu::gather_outf>},
      {"aten::ge.Scalar", call<static_cast<WithNumber>(cpu::ge_outf)>},
      {"aten::ge.Tensor", call<static_cast<Binary>(cpu::ge_outf)>},
      {"aten::gelu", call<cpu::gelu_outf>},
      {"aten::gt.Scalar", call<static_cast<WithNumber>(cpu::gt_outf)>},
      {"aten::gt.Tensor", call<static_cast<Binary>(cpu::gt_outf)>},
      {"aten::index_select", call<cpu::index_select_outf>},
      {"aten::le.Scalar", call<static_cast<WithNumber>(cpu::le_outf)>},
      {"aten::le.Tensor", call<static_cast<Binary>(cpu::le_outf)>},
      {"aten::leaky_relu", call<cpu::leaky_relu_outf>},
      {"aten::log", call<cpu::log_outf>},
      {"aten::lt.Scalar", call<static_cast<WithNumber>(cpu::lt_outf)>},
      {"aten::lt.Tensor", call<static_cast<Binary>(cpu::lt_outf)>},
      {"aten::maximum", call<cpu::maximum_outf>},
      {"aten::mean.dim", call<cpu::mean_outf>},
      {"aten::minimum", call<cpu::minimum_outf>},
      {"aten::mm", call<cpu::mm_outf>},
      {"aten::mul.Tensor", call<cpu::mul_outf>},
#ifdef MAGNETO_HAS_LAYER_NORM
      {"aten::native_layer_norm", layer_norm},
#endif
      {"aten::ne.Scalar", call<static_cast<WithNumber>(cpu::ne_outf)>},
      {"aten::ne.Tensor", call<static_cast<Binary>(cpu::ne_outf)>},
      {"aten::neg", call<cpu::neg_outf>},
      {"aten::pow.Scalar", call<static_cast<OfNumber>(cpu::pow_outf)>},
      {"aten::pow.Tensor_Scalar", call<static_cast<WithNumber>(cpu::pow_outf)>},
      {"aten::pow.Tensor_Tensor", call<static_cast<Binary>(cpu::pow_outf)>},
      {"aten::reciprocal", call<cpu::reciprocal_outf>},
      {"aten::relu", relu},
      {"aten::rsqrt", call<cpu::rsqrt_outf>},
      {"aten::sigmoid", call<cpu::sigmoid_outf>},
      {"aten::silu", call<cpu::silu_outf>},
      {"aten::sin", call<cpu::sin_outf>},
      {"aten::softplus", call<cpu::softplus_outf>},
      {"aten::sqrt", call<cpu::sqrt_outf>},
      {"aten::sub.Tensor", call<cpu::sub_outf>},
      {"aten::sum.dim_IntList", call<cpu::sum_outf>},
      {"aten::tanh", call<cpu::tanh_outf>},
      {"aten::where.self", call<cpu::where_outf>},
  };
  return table;
}

bool is_contiguous(const Value& value) {
  int64_t expected = 1;
  for (size_t dim = value.sizes.size(); dim-- > 0; expected *= value.sizes[dim])
    if (value.sizes[dim] != 1 && value.strides[dim] != expected) return false;
  return true;
}

bool is_contiguous(const graph::Graph& graph, const graph::TensorRef& tensor) {
  return is_contiguous(graph.values[tensor.value]);
}

// Otherwise the type of the results may follow from torch's default, which may be another by now.
bool keeps_type(const graph::Graph& graph, const Op& op) {
  ScalarType type = graph.values[op.results[0].value].dtype;
  auto has_type = [&](const graph::TensorRef& tensor) {
    const Value& value = graph.values[tensor.value];
    return value.role != graph::Role::Constant && value.dtype == type;
  };
  return c10::isIntegralType(type, /*includeBool=*/true) || op.info->name == "aten::_to_copy" ||
         std::ranges::any_of(op.tensors, has_type);
}

bool suits_embedding(const graph::Graph& graph, const Op& op) {
  return op.tensors.size() == 2 && graph.values[op.tensors[1].value].dtype == at::kLong &&
         is_contiguous(graph, op.tensors[0]) && is_contiguous(graph, op.tensors[1]) &&
         is_contiguous(graph, op.results[0]);
}

// Whether it adds one row to each row of a product.
bool adds_row(const graph::Graph& graph, const Op& op) {
  const Value& row = graph.values[op.tensors[0].value];
  const Value& result = graph.values[op.results[0].value];
  return row.sizes.size() == 1 && row.sizes[0] == result.sizes[1] && row.dtype == result.dtype && is_contiguous(row) &&
         is_contiguous(result) && op.args[3].toScalar().toComplexDouble() != 0.0;
}

// Otherwise the operator copies its operands first, or computes in other types.
bool suits_layer_norm(const graph::Graph& graph, const Op& op) {
  ScalarType type = graph.values[op.results[0].value].dtype;
  auto has_type = [&](const graph::TensorRef& tensor) { return graph.values[tensor.value].dtype == type; };
  auto suits = [&](const graph::TensorRef& tensor) { return has_type(tensor) && is_contiguous(graph, tensor); };
  return op.results.size() == 3 && std::ranges::all_of(op.results, has_type) && std::ranges::all_of(op.tensors, suits);
}

// Where it was registered; empty: this version of torch does not tell.
template <class Kernel>
std::string origin(const Kernel& kernel) {
  if constexpr (requires { kernel.debug(); }) return kernel.debug();
  return "";
}

}  // namespace

bool runs_torchs_kernel(const Op& op) {
  if (!op.info->name.starts_with("aten::")) return false;
  if (!op.handle.hasComputedKernelForDispatchKey(c10::DispatchKey::CPU)) return false;
  return origin(op.handle.getComputedKernelForDispatchKey(c10::DispatchKey::CPU)).find("/aten/src/ATen/Register") !=
         std::string::npos;
}

DirectKernel find_direct_kernel(const graph::Graph& graph, const Op& op) {
  auto found = kernels().find(op.info->name);
  if (found == kernels().end() || !runs_torchs_kernel(op)) return nullptr;
  if (!keeps_type(graph, op)) return nullptr;
  if (found->first == "aten::native_layer_norm" && !suits_layer_norm(graph, op)) return nullptr;
  if (found->first == "aten::embedding" && !suits_embedding(graph, op)) return nullptr;
  if (found->first == "aten::addmm" && adds_row(graph, op)) return addmm_of_row;
  return found->second;
}

}  // namespace magneto::runtime
