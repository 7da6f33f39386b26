// What view operators do to coordinates.
#pragma once
#include "codegen/kernel.h"

namespace magneto::codegen {

// Whether the elements of a view have the order of the viewed.
bool keeps_order(const graph::Op& op);
// From the coordinates in a result of a view operator to those in its argument.
void look_through(const graph::Graph& graph, const graph::Op& op, const graph::TensorRef& result, Index& index);

}  // namespace magneto::codegen
