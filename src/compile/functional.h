// The functional form of a graph: the same work without writes.
//
// A graph in functional form has a body and an edge. In the body no operator writes memory, so no value ever changes,
// and whether two values share memory makes no difference to any operator: views are kept, as cheap ways to read. The
// edge is what is left of the writes that can be seen from outside. It begins with the first operator that writes, and
// has
//
//   aten.copy_(%0, %7)                 an argument or a state tensor takes its new contents, at most once each
//   %8 in %0 = aten.select.int(%0, …)  outputs that live in the memory of these
//   aten.t_(%0)                        changes of their sizes and strides
//
// Every operator of the body sees tensors with the sizes and strides that it saw in the original, so kernels take the
// same paths and results are equal to the bit. Outputs share memory with inputs and with each other, at the same
// offsets, as before. A write through a view becomes a scatter into what it shows, up to the tensor that has the
// memory; views are made anew from there when they are used next.
#pragma once
#include <string>

#include "graph/graph.h"

namespace magneto::compile {

// UserError, naming the operator: an operator without functional partner, or memory whose layout is not known, is
// written.
graph::Graph make_functional(const graph::Graph& graph);

// The index of the first operator of the edge; the number of operators if there is none.
size_t edge_of(const graph::Graph& graph);

// Empty if the graph is in functional form.
std::string why_not_functional(const graph::Graph& graph);

}  // namespace magneto::compile
