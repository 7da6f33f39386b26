// Translates layouts between graphs and trace tensors; numbers that depend on symbols stay symbolic.
#include "record/trace_values.h"

#include <algorithm>

#include "record/sym_node.h"
#include "record/trace_tensor.h"

namespace magneto::record {

std::vector<graph::ExprId> shape_of(const at::Tensor& trace, graph::Symbols& symbols) {
  std::vector<graph::ExprId> shape;
  for (const c10::SymInt& size : trace.sym_sizes()) shape.push_back(to_expr(size, symbols));
  for (const c10::SymInt& stride : trace.sym_strides()) shape.push_back(to_expr(stride, symbols));
  return shape;
}

graph::ValueId add_value(graph::Graph& graph, graph::Role role, const at::Tensor& trace) {
  if (!is_symbolic(trace)) return graph.add_value(role, trace);
  graph::Symbols& symbols = *graph.symbols;
  auto id = static_cast<graph::ValueId>(graph.values.size());
  auto& value = graph.values.emplace_back(graph::Value{role, trace.scalar_type(), trace.device(), {}, {}, id});
  value.shape = shape_of(trace, symbols);
  for (size_t i = 0; i < value.shape.size(); ++i) {
    (i < value.shape.size() / 2 ? value.sizes : value.strides).push_back(symbols.hint(value.shape[i]).integer);
  }
  if (std::ranges::all_of(value.shape, [&](graph::ExprId expr) { return symbols.is_constant(expr); })) {
    value.shape.clear();
  }
  return id;
}

at::Tensor trace_of(const graph::Graph& graph, graph::ValueId id) {
  const graph::Value& value = graph.values[id];
  size_t rank = value.sizes.size();
  c10::SymDimVector numbers;
  for (size_t i = 0; i < 2 * rank; ++i) {
    if (value.shape.empty()) {
      numbers.emplace_back(i < rank ? value.sizes[i] : value.strides[i - rank]);
    } else {
      numbers.push_back(make_sym(graph.symbols, graph.symbols->simplify(value.shape[i])));
    }
  }
  auto layout = c10::SymIntArrayRef(numbers);
  return make_trace(layout.slice(0, rank), layout.slice(rank), 0, value.dtype, value.device);
}

}  // namespace magneto::record
