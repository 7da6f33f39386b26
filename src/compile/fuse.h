// Replaces operators of a graph by kernels of our own.
//
//   functional form ─▶ equal operators are one ─▶ clusters ─▶ a kernel for each ─▶ sources, compiled side by side
//
// What a kernel computes, it rounds where the operators did; sums along rows are added up in another order.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "codegen/kernel_op.h"
#include "graph/graph.h"
#include "runtime/kernel_module.h"

namespace magneto::compile {

using Compile = std::function<std::shared_ptr<runtime::KernelModule>(const codegen::Library& library)>;

// The same graph with kernels in place of operators; inputs, states and outputs are as before, but for the types of
// outputs if the caller casts these. None: there is nothing to win, or `compile` has returned null. Throws what
// make_functional throws.
std::optional<graph::Graph> fuse(const graph::Graph& graph, const Compile& compile, bool casts_outputs = false);
// The same for a GPU; see ProcessState::make_kernels.
std::unique_ptr<graph::Graph> make_kernels(const graph::Graph& graph, int gpu, std::string& reason);

}  // namespace magneto::compile
