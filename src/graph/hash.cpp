// The identity of a graph across processes: the digest of a text that leaves out what does not matter.
#include <c10/util/hash.h>

#include "graph/graph.h"

namespace magneto::graph {

std::string structural_hash(const Graph& graph) { return c10::sha1(to_text(graph, Style::Structure)).str(); }

}  // namespace magneto::graph
