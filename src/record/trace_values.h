// Values of graphs as trace tensors, and trace tensors as values.
#pragma once
#include <ATen/core/Tensor.h>

#include <vector>

#include "graph/graph.h"

namespace magneto::record {

// Sizes, then strides, as expressions.
std::vector<graph::ExprId> shape_of(const at::Tensor& trace, graph::Symbols& symbols);

// Adds a value, in memory of its own, that looks like a trace tensor.
graph::ValueId add_value(graph::Graph& graph, graph::Role role, const at::Tensor& trace);

// A trace tensor, with memory of its own, that looks like a value.
at::Tensor trace_of(const graph::Graph& graph, graph::ValueId id);

}  // namespace magneto::record
