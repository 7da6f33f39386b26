// Runs the nodes of a backward one after the other, without what the engine does around each for threads and streams.
//
// It sets the state of its thread anew for every node, which costs more than recording what the node calls.
#pragma once
#include <optional>

#include "autograd/nodes.h"

namespace magneto::autograd {

// Whether that comes to the same: nobody looks on, no Python function is among the nodes, and no stream has to be kept.
bool can_run_straight(const GraphTask& task);

// What the task captures is its result.
variable_list run_straight(const NodePtr& root, GraphTask& task);

// The same without an engine that finds out first what to run: the gradients of what is asked for, undefined where
// there is none, given those of the outputs. The graph is released. None: that is the engine's to do. For graphs whose
// nodes do not look at the task that they are part of, as hooks on saved tensors may.
std::optional<variable_list> gradients_straight(const variable_list& outputs, variable_list gradients,
                                                const variable_list& asked);

}  // namespace magneto::autograd
