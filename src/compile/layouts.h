// Convolutions run fastest on GPUs if the channels of a pixel lie together.
#pragma once
#include "graph/graph.h"

namespace magneto::compile {

// Of a graph in functional form: images in half precision go through its convolutions channels last, and come out as
// before.
graph::Graph with_channels_last(graph::Graph graph);

}  // namespace magneto::compile
