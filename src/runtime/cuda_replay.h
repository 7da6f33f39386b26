// The replay tier on CUDA: a graph whose work is all on one GPU is captured into a CUDA graph and launched as a whole.
//
//   run 1          boxed: libraries make their plans and pick their algorithms; left out if the operators have run on
//                  this thread while they were recorded
//   run 2          captured, then launched
//   runs after it  arguments ─copied─▶ buffers ─launch─▶ results in the graph's pool ─copied─▶ fresh memory
//
// State, parameters, and arguments that were marked static are used where they are, and each run compares their
// addresses: if one has moved, the graph is captured anew. Arguments that the graph writes are copied back.
//
// The boxed replay steps in where a launch would not be right: while somebody else captures or records, while another
// thread is in this graph, when an argument shares memory with something that the graph writes, and for good when a
// capture was refused. The counters `cuda_graphs` and `cuda_graphs_refused` say how often what happened.
#pragma once
#include <memory>
#include <vector>

#include "graph/graph.h"
#include "runtime/tensor_plug.h"

namespace magneto::runtime {

// `boxed` itself if `graph`, which it runs, cannot be captured. `states`: as for make_replay. GIL held.
std::unique_ptr<Segment> with_cuda_graph(std::unique_ptr<Segment> boxed, const graph::Graph& graph,
                                         std::vector<PyObject*> states);

}  // namespace magneto::runtime
