// What a graph writes at its end, done with fewer operators: it need be in functional form no longer then.
#pragma once
#include "graph/graph.h"

namespace magneto::compile {

// Of a graph in functional form, but for operators of our own, whose edge begins at operator `end`. Batch norms update
// their statistics themselves, where nobody else looks at these, and other state is copied by one operator for each
// type.
graph::Graph with_short_edge(graph::Graph graph, size_t end);

}  // namespace magneto::compile
