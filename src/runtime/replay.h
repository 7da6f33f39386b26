// The replay tier: runs a recorded graph by calling its operators one after the other; on CUDA, see cuda_replay.h.
#pragma once
#include <memory>
#include <vector>

#include "graph/graph.h"
#include "runtime/kept_results.h"
#include "runtime/tensor_plug.h"

namespace magneto::runtime {

// `state_objects`: the Python tensors of graph.states, in the same order; not kept alive. GIL held.
std::unique_ptr<Segment> make_replay(graph::Graph graph, std::vector<PyObject*> state_objects);
// The same without a CUDA graph.
std::unique_ptr<Segment> make_boxed_replay(graph::Graph graph, std::vector<PyObject*> state_objects);

// What it keeps between runs; null: nothing, a CUDA graph stands in front of it.
const KeptResults* kept_results(const Segment& replay);

}  // namespace magneto::runtime
