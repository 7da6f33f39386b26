// Which tensors of a recording hold the same in every run, and what they hold.
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include <vector>

#include "graph/graph.h"

namespace magneto::record {

// Follows memory rather than values, since operators write in place: contents are fixed as long as only numbers and
// fixed contents went into them, and no argument, state, random number or memory that nobody wrote. Where sizes are
// symbols they have to be *uniform*: one number everywhere, whatever the sizes.
class FixedContents {
 public:
  // `op`, whose results have been added to the graph, runs after all that were noted before.
  void note(const graph::Graph& graph, const graph::Op& op);
  bool contain(const graph::Graph& graph, graph::ValueId value) const {
    graph::ValueId memory = graph.values[value].memory;
    bool fixed = graph.values[memory].role == graph::Role::Constant || (memory < fixed_.size() && fixed_[memory]);
    return fixed && (graph.values[value].shape.empty() || is_uniform(memory));
  }

 private:
  bool is_uniform(graph::ValueId memory) const { return memory < uniform_.size() && uniform_[memory]; }
  bool makes_uniform(const graph::Graph& graph, const graph::Op& op) const;

  std::vector<bool> fixed_, uniform_;  // by the first value that lives in a memory
};

// What fixed values hold at the end of the graph, by running the operators that lead to them. Empty if one of these
// raises an error, or if it is more than a recording should spend.
std::vector<at::Tensor> compute_fixed(const graph::Graph& graph, c10::ArrayRef<graph::ValueId> values);

}  // namespace magneto::record
