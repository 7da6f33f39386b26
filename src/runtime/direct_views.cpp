// Where views begin, by operator.
#include "runtime/direct_views.h"

#include <c10/core/WrapDimMinimal.h>

#include <algorithm>
#include <string_view>
#include <unordered_map>

#include "graph/effects.h"

namespace magneto::runtime {
namespace {

using c10::IValue;
using graph::Op;
using graph::TensorRef;
using graph::Value;

size_t dimension(const IValue& given, const Value& viewed) {
  return static_cast<size_t>(c10::maybe_wrap_dim(given.toInt(), std::ssize(viewed.sizes)));
}

// A position in a dimension of this size, which may be given from its end.
int64_t position(int64_t given, int64_t size) { return std::clamp<int64_t>(given < 0 ? given + size : given, 0, size); }

// How far behind the first element of the viewed this result begins.
using Offset = int64_t (*)(const Op& op, const Value& viewed, const TensorRef& result);

int64_t at_start(const Op&, const Value&, const TensorRef&) { return 0; }

int64_t of_select(const Op& op, const Value& viewed, const TensorRef&) {
  size_t dim = dimension(op.args[1], viewed);
  return position(op.args[2].toInt(), viewed.sizes[dim]) * viewed.strides[dim];
}

int64_t of_slice(const Op& op, const Value& viewed, const TensorRef&) {
  size_t dim = dimension(op.args[1], viewed);
  return op.args[2].isNone() ? 0 : position(op.args[2].toInt(), viewed.sizes[dim]) * viewed.strides[dim];
}

int64_t of_unbind(const Op& op, const Value& viewed, const TensorRef& result) {
  return result.item * viewed.strides[dimension(op.args[1], viewed)];
}

int64_t of_split(const Op& op, const Value& viewed, const TensorRef& result) {
  return result.item * op.args[1].toInt() * viewed.strides[dimension(op.args[2], viewed)];
}

int64_t of_split_with_sizes(const Op& op, const Value& viewed, const TensorRef& result) {
  int64_t start = 0;
  c10::List<int64_t> sizes = op.args[1].toIntList();
  for (int32_t i = 0; i < result.item; ++i) start += sizes.get(static_cast<size_t>(i));
  return start * viewed.strides[dimension(op.args[2], viewed)];
}

Offset find_offset(const std::string& name) {
  static const std::unordered_map<std::string_view, Offset> offsets = {
      {"aten::alias", at_start},         {"aten::_reshape_alias", at_start},
      {"aten::_unsafe_view", at_start},  {"aten::detach", at_start},
      {"aten::expand", at_start},        {"aten::permute", at_start},
      {"aten::squeeze", at_start},       {"aten::squeeze.dim", at_start},
      {"aten::squeeze.dims", at_start},  {"aten::t", at_start},
      {"aten::transpose.int", at_start}, {"aten::unfold", at_start},
      {"aten::unsqueeze", at_start},     {"aten::view", at_start},
      {"aten::select.int", of_select},   {"aten::slice.Tensor", of_slice},
      {"aten::split.Tensor", of_split},  {"aten::split_with_sizes", of_split_with_sizes},
      {"aten::unbind.int", of_unbind},
  };
  auto found = offsets.find(name);
  return found == offsets.end() ? nullptr : found->second;
}

}  // namespace

at::Tensor DirectView::Layout::over(const at::Tensor& viewed) const {
  auto view = at::detail::make_tensor<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(viewed.storage()),
                                                       viewed.key_set(), viewed.dtype());
  view.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, viewed.storage_offset() + offset);
  return view;
}

DirectViews::DirectViews(const graph::Graph& graph) : graph_(graph), seen_(graph.values.size(), false) {
  for (graph::ValueId output : graph.outputs) {
    graph::ValueId memory = graph.values[output].memory;
    if (output != memory) seen_[memory] = true;
  }
  for (const Op& op : graph.ops) {
    bool unmarked = graph::writes_unmarked(op);
    for (const TensorRef& tensor : op.tensors)
      if (unmarked || op.info->written[tensor.position]) seen_[graph.values[tensor.value].memory] = true;
  }
}

std::optional<DirectView> DirectViews::of(const Op& op, const std::vector<TensorRef>& results) const {
  Offset offset = find_offset(op.info->name);
  if (!offset || graph_.symbols || op.derives || op.inference || op.tensors.size() != 1) return std::nullopt;
  const Value& viewed = graph_.values[op.tensors[0].value];
  if (op.tensors[0].position != 0 || !is_hidden(op.tensors[0].value) || c10::isQIntType(viewed.dtype))
    return std::nullopt;
  DirectView view{{}, viewed.sizes, viewed.strides, {}};
  for (const TensorRef& result : results) {
    const Value& made = graph_.values[result.value];
    if (made.memory != viewed.memory || made.dtype != viewed.dtype) return std::nullopt;
    view.results.push_back({made.sizes, made.strides, offset(op, viewed, result)});
  }
  return view;
}

}  // namespace magneto::runtime
