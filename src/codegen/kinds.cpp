// Which operators kernels know, and what a view operator does to coordinates.
#include <algorithm>
#include <string_view>
#include <unordered_map>

#include "codegen/formulas.h"
#include "codegen/views.h"

namespace magneto::codegen {
namespace {

using graph::Op;
using graph::Value;

enum class View : uint8_t { Reshape, Same, Transpose, Matrix, Permute, Slice, Select, Expand, Split };

const std::unordered_map<std::string_view, View>& views() {
  static const std::unordered_map<std::string_view, View> table = {
      {"aten::view", View::Reshape},
      {"aten::_unsafe_view", View::Reshape},
      {"aten::_reshape_alias", View::Reshape},
      {"aten::unsqueeze", View::Reshape},
      {"aten::squeeze", View::Reshape},
      {"aten::squeeze.dim", View::Reshape},
      {"aten::squeeze.dims", View::Reshape},
      {"aten::alias", View::Same},
      {"aten::detach", View::Same},
      {"aten::transpose.int", View::Transpose},
      {"aten::t", View::Matrix},
      {"aten::permute", View::Permute},
      {"aten::slice.Tensor", View::Slice},
      {"aten::select.int", View::Select},
      {"aten::expand", View::Expand},
      {"aten::split.Tensor", View::Split},
  };
  return table;
}

const std::unordered_map<std::string_view, Kind>& others() {
  static const std::unordered_map<std::string_view, Kind> table = {
      {"aten::cat", Kind::Gather},
      {"aten::stack", Kind::Gather},
      {"aten::slice_backward", Kind::Gather},
      {"aten::constant_pad_nd", Kind::Gather},
      {"aten::full", Kind::Gather},
      {"aten::zeros", Kind::Gather},
      {"aten::ones", Kind::Gather},
      {"aten::full_like", Kind::Gather},
      {"aten::zeros_like", Kind::Gather},
      {"aten::ones_like", Kind::Gather},
      {"aten::sum.dim_IntList", Kind::Reduction},
      {"aten::mean.dim", Kind::Reduction},
      {"aten::amax", Kind::Reduction},
      {"aten::amin", Kind::Reduction},
      {"aten::_softmax", Kind::Reduction},
      {"aten::_log_softmax", Kind::Reduction},
      {"aten::_softmax_backward_data", Kind::Reduction},
      {"aten::native_layer_norm", Kind::Reduction},
      {"aten::native_layer_norm_backward", Kind::Reduction},
  };
  return table;
}

size_t wrapped(int64_t dimension, size_t rank) {
  return static_cast<size_t>(dimension < 0 ? dimension + static_cast<int64_t>(rank) : dimension);
}

bool all_here(const graph::Graph& graph, const Op& op) {
  c10::Device device = graph.values[op.results[0].value].device;
  auto fits = [&](const graph::TensorRef& tensor) {
    const Value& value = graph.values[tensor.value];
    return is_known(value.dtype) && value.device == device;
  };
  return std::all_of(op.tensors.begin(), op.tensors.end(), fits) &&
         std::all_of(op.results.begin(), op.results.end(), fits);
}

// The dimensions that a reduction goes along, if these are the last ones; 0 otherwise.
size_t reduced_dimensions(const graph::Graph& graph, const Op& op) {
  const std::string& name = op.info->name;
  size_t rank = graph.values[op.tensors[0].value].sizes.size();
  if (!rank) return 0;
  if (name.starts_with("aten::native_layer_norm"))
    return op.args[2 - (name == "aten::native_layer_norm")].toListRef().size();
  if (name.find("softmax") != std::string::npos) {
    uint32_t position = name == "aten::_softmax_backward_data" ? 2 : 1;
    return wrapped(op.args[position].toInt(), rank) + 1 == rank ? 1 : 0;
  }
  if (op.args[1].isNone()) return rank;
  std::vector<bool> along(rank, false);
  for (const c10::IValue& dimension : op.args[1].toListRef()) along[wrapped(dimension.toInt(), rank)] = true;
  size_t count = static_cast<size_t>(std::count(along.begin(), along.end(), true));
  if (!count) return rank;
  return std::all_of(along.end() - static_cast<long>(count), along.end(), [](bool is) { return is; }) ? count : 0;
}

bool is_real(const graph::Graph& graph, const graph::TensorRef& tensor) {
  return c10::isFloatingType(graph.values[tensor.value].dtype);
}

bool known_reduction(const graph::Graph& graph, const Op& op) {
  const std::string& name = op.info->name;
  if (!is_real(graph, op.tensors[0]) || !is_real(graph, op.results[0])) return false;
  if (name == "aten::native_layer_norm_backward" && (op.results.size() != 1 || op.results[0].position != 0))
    return false;
  if (name == "aten::sum.dim_IntList" || name == "aten::mean.dim") {
    if (!op.args[3].isNone()) return false;
  }
  return true;
}

}  // namespace

Kind kind_of(const graph::Graph& graph, const Op& op) {
  if (op.results.empty() || op.derives || !op.sizes.empty()) return Kind::None;
  if (op.info->writes || op.info->hidden_writes)
    return op.info->name == "aten::native_batch_norm" && find_formula(graph, op) ? Kind::Pointwise : Kind::None;
  if (views().contains(op.info->name)) return Kind::View;
  if (find_formula(graph, op)) return Kind::Pointwise;
  auto found = others().find(op.info->name);
  if (found == others().end() || !all_here(graph, op)) return Kind::None;
  if (found->second == Kind::Reduction && (!known_reduction(graph, op) || !reduced_dimensions(graph, op)))
    return Kind::None;
  return found->second;
}

int64_t reduced_size(const graph::Graph& graph, const Op& op) {
  const Sizes& sizes = graph.values[op.tensors[0].value].sizes;
  return product(c10::IntArrayRef(sizes).slice(sizes.size() - reduced_dimensions(graph, op)));
}

bool is_contiguous(const Value& value) {
  int64_t step = 1;
  for (size_t i = value.sizes.size(); i-- > 0; step *= value.sizes[i]) {
    if (value.sizes[i] != 1 && value.strides[i] != step) return false;
  }
  return true;
}

std::vector<uint32_t> producers(const graph::Graph& graph) {
  std::vector<uint32_t> result(graph.values.size(), kNoOp);
  for (uint32_t i = 0; i < graph.ops.size(); ++i) {
    for (const graph::TensorRef& made : graph.ops[i].results) result[made.value] = i;
  }
  return result;
}

bool keeps_order(const Op& op) {
  auto found = views().find(op.info->name);
  return found != views().end() && (found->second == View::Reshape || found->second == View::Same);
}

void look_through(const graph::Graph& graph, const Op& op, const graph::TensorRef& result, Index& index) {
  const Value& from = graph.values[op.tensors[0].value];
  size_t rank = from.sizes.size();
  auto dimension = [&](uint32_t position) { return wrapped(op.args[position].toInt(), rank); };
  auto swap = [&](size_t a, size_t b) {
    std::vector<int64_t> order(rank);
    for (size_t i = 0; i < rank; ++i) order[i] = static_cast<int64_t>(i);
    std::swap(order[a], order[b]);
    index.permute(order);
  };
  switch (views().at(op.info->name)) {
    case View::Same: return;
    case View::Reshape: return index.reshape(from.sizes);
    case View::Transpose: return swap(dimension(1), dimension(2));
    case View::Matrix: return rank == 2 ? swap(0, 1) : void();
    case View::Permute: {
      std::vector<int64_t> order;
      for (const c10::IValue& item : op.args[1].toListRef())
        order.push_back(static_cast<int64_t>(wrapped(item.toInt(), rank)));
      return index.permute(order);
    }
    case View::Slice: {
      size_t along = dimension(1);
      int64_t size = from.sizes[along], start = op.args[2].isNone() ? 0 : op.args[2].toInt();
      if (start < 0) start += size;
      return index.move(along, op.args[4].toInt(), std::clamp<int64_t>(start, 0, size), size);
    }
    case View::Select: {
      size_t along = dimension(1);
      int64_t at = op.args[2].toInt();
      return index.insert(along, at < 0 ? at + from.sizes[along] : at, from.sizes[along]);
    }
    case View::Expand: return index.broadcast(from.sizes);
    case View::Split: return index.move(dimension(2), 1, result.item * op.args[1].toInt(), from.sizes[dimension(2)]);
  }
}

}  // namespace magneto::codegen
