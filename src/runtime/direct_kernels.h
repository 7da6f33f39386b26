// Kernels of the CPU that write into tensors which are there already, called without the dispatcher.
#pragma once
#include "graph/graph.h"
#include "runtime/step_arguments.h"

namespace magneto::runtime {

// `results`: of the layouts that were recorded.
using DirectKernel = void (*)(const StepArguments& arguments, at::Tensor* results);

// The one that computes what `op` does, bit for bit, from operands of the layouts that were recorded; null: none does.
DirectKernel find_direct_kernel(const graph::Graph& graph, const graph::Op& op);

// Whether what runs on the CPU is torch's: a library may have put a kernel of its own in its place.
bool runs_torchs_kernel(const graph::Op& op);

}  // namespace magneto::runtime
