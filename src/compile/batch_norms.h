// Batch norms of images that lie channels last: two sums of each channel, which kernels of our own find, and
// arithmetic, which is joined with what follows.
#pragma once
#include "graph/graph.h"

namespace magneto::compile {

// Of a graph in functional form: batch norms in training, and their gradients.
graph::Graph with_split_batch_norms(graph::Graph graph);

}  // namespace magneto::compile
