// Products of matrices whose rows lie at odd addresses are slow on GPUs: their matrices are padded.
#pragma once
#include "graph/graph.h"

namespace magneto::compile {

// Of a graph in functional form.
graph::Graph with_padded_products(graph::Graph graph);

}  // namespace magneto::compile
