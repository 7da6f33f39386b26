// Makes a graph anew with some operators replaced by others, and what this changes behind them.
#pragma once
#include <functional>
#include <vector>

#include "compile/builder.h"

namespace magneto::compile {

// Of a graph in functional form. What takes nothing new stays as it is, values included. What does is appended again:
// its results may have other strides then. Operators that are no plain loops get copies with the strides that they had,
// and outputs are as before.
class Rebuild {
 public:
  explicit Rebuild(const graph::Graph& from);

  // The value that stands for one of the original's now.
  graph::ValueId now(graph::ValueId original) const { return stands_for_[original]; }
  void replace(graph::ValueId original, graph::ValueId by) { stands_for_[original] = by; }
  void replace(const graph::Op& op, const Builder::Results& by);

  // The same operator with today's arguments and no results yet.
  graph::Op translated(const graph::Op& op) const;
  void keep(const graph::Op& op);
  // Copies outputs that do not look as before. False: they shared memory, which copies would not.
  bool finish_outputs();

  const graph::Graph& from;
  Builder builder;

 private:
  bool is_same(graph::ValueId original) const { return stands_for_[original] == original; }
  bool has_same_look(graph::ValueId original) const;
  bool is_whole_memory(const graph::Graph& graph, graph::ValueId id) const;
  graph::ValueId copied(const graph::Op& like, graph::ValueId original);
  graph::ValueId with_known_strides(const graph::Op& like, graph::ValueId made, graph::ValueId original);

  std::vector<graph::ValueId> stands_for_;
};

// The graph with `visit(rebuild, op)` done to each operator before the edge; if it returns false, the operator is kept.
// The graph itself if that fails.
using Visit = std::function<bool(Rebuild& rebuild, const graph::Op& op)>;
graph::Graph rebuilt(graph::Graph graph, const Visit& visit);

}  // namespace magneto::compile
