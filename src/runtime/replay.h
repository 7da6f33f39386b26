// The replay tier: runs a recorded graph by calling its operators one after the other.
#pragma once
#include <memory>
#include <vector>

#include "cpython/ref.h"
#include "graph/graph.h"
#include "runtime/tensor_plug.h"

namespace magneto::runtime {

// `state_objects`: the Python tensors of graph.states, in the same order. GIL held.
std::unique_ptr<Segment> make_replay(graph::Graph graph, std::vector<py::Ref> state_objects);

}  // namespace magneto::runtime
