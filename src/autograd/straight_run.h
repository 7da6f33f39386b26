// Runs the nodes of a backward one after the other, without what the engine does around each for threads and streams.
//
// It sets the state of its thread anew for every node, which costs more than recording what the node calls.
#pragma once
#include "autograd/nodes.h"

namespace magneto::autograd {

// Whether that comes to the same: nobody looks on, no Python function is among the nodes, and no stream has to be kept.
bool can_run_straight(const GraphTask& task);

// What the task captures is its result.
variable_list run_straight(const NodePtr& root, GraphTask& task);

}  // namespace magneto::autograd
