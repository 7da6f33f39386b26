// Which operators of a graph become kernels of our own, together.
#pragma once
#include <vector>

#include "codegen/kernel.h"
#include "compile/order.h"
#include "graph/graph.h"

namespace magneto::compile {

struct Cluster {
  codegen::Cluster loop;
  codegen::Kernel kernel;
  bool comes_first = false;  // before all that is not; needs nothing but what a run is given
};

// Of the operators in `order`, which has each cluster joined afterwards. `graph` is in functional form; see
// functional.h.
std::vector<Cluster> find_clusters(const graph::Graph& graph, Order& order, size_t end);

}  // namespace magneto::compile
