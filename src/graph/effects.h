// What running an operator changes beside what its schema says; see also has_effect in graph.h.
#pragma once
#include "graph/graph.h"

namespace magneto::graph {

// Whether it writes arguments that its schema does not mark, as batch norm does while it trains.
bool writes_unmarked(const Op& op);
// Whether it draws random numbers.
bool draws(const Op& op);

}  // namespace magneto::graph
