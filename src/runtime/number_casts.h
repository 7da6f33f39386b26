// Numbers among the operands of arithmetic, in the type that the operator computes in.
#pragma once
#include <ATen/core/Tensor.h>

#include "graph/graph.h"

namespace magneto::runtime {

// `number` as `op` would cast it anew at each run; undefined if it would not, or takes it as it is.
at::Tensor cast_number(const graph::Graph& graph, const graph::Op& op, const graph::TensorRef& place,
                       const at::Tensor& number);

}  // namespace magneto::runtime
