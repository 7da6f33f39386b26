// Convolutions get their arguments channels last; what follows keeps that.
#include "compile/layouts.h"

#include <algorithm>

#include "compile/rebuild.h"

namespace magneto::compile {
namespace {

using graph::Graph;
using graph::Op;
using graph::TensorRef;
using graph::Value;
using graph::ValueId;

bool is_convolution(const Graph& graph, const Op& op) {
  if (op.info->name != "aten::convolution") return false;
  const Value& result = graph.values[op.results[0].value];
  bool is_half = result.dtype == c10::ScalarType::BFloat16 || result.dtype == c10::ScalarType::Half;
  return is_half && result.sizes.size() == 4;
}

bool trains(const Graph& graph) {
  return std::ranges::any_of(graph.ops, [](const Op& op) { return op.info->name == "aten::convolution_backward"; });
}

ValueId channels_last(Rebuild& rebuild, const Op& like, ValueId id) {
  if (rebuild.builder.trace(id).is_contiguous(c10::MemoryFormat::ChannelsLast)) return id;
  Op copy = op_like(like, "aten::clone");
  put(copy, 0, id);
  copy.args[1] = static_cast<int64_t>(c10::MemoryFormat::ChannelsLast);
  return rebuild.builder.add(std::move(copy));
}

}  // namespace

Graph with_channels_last(Graph graph) {
  if (trains(graph)) return graph;
  return rebuilt(std::move(graph), [](Rebuild& rebuild, const Op& op) {
    if (!is_convolution(rebuild.from, op)) return false;
    Op again = rebuild.translated(op);
    for (TensorRef& tensor : again.tensors) {
      if (tensor.position < 2) tensor.value = channels_last(rebuild, op, tensor.value);
    }
    rebuild.replace(op.results[0].value, rebuild.builder.add(std::move(again)));
    return true;
  });
}

}  // namespace magneto::compile
