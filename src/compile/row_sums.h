// A sum over all of a tensor is as many sums as it has rows, which kernels can make on the way, and the sum of these.
#pragma once
#include "graph/graph.h"

namespace magneto::compile {

// Of a graph in functional form.
graph::Graph with_row_sums(graph::Graph graph);

}  // namespace magneto::compile
