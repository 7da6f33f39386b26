// One run of the engine as it comes to us: which nodes take their turn in which order, and what they hold.
#pragma once
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/dynamo/compiled_autograd.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <typeindex>
#include <unordered_set>
#include <utility>
#include <vector>

#include "autograd/nodes.h"

namespace magneto::autograd {

using torch::dynamo::autograd::CacheKey;

// One node in the order of the engine.
struct Turn {
  NodePtr node;
  uint32_t id;                             // of the node, by which others refer to it
  bool accumulates;                        // adds to the .grad of a leaf, and nobody looks on
  bool needed;                             // otherwise only its gradient is asked for
  const char* why_opaque;                  // why it is called as it is; null: its operators can be recorded
  std::vector<std::pair<int, int>> asked;  // which of its gradients are results of the run, and which result
};

// Types of nodes that do not say what they hold. Owned by the GIL.
using SilentTypes = std::unordered_set<std::type_index>;

class Task {
 public:
  // Is told the key of each node in turn: its type, and all that is neither a tensor nor a size.
  using OnKey = std::function<void(const CacheKey& key, Node& node)>;

  // With the GIL held. `asked`: the gradients that are the results.
  Task(const NodePtr& root, GraphTask& graph_task, const torch::autograd::edge_list& asked);

  // Goes through the nodes. False: a type of node turned out to be silent, and it must be done again with a new task.
  // Throws what a node throws that was run already, or whose tensors were changed.
  bool walk(SilentTypes& silent, const OnKey& on_key);

  const std::vector<Turn>& turns() const { return turns_; }
  size_t node_count() const { return held_.node_calls.size(); }
  size_t result_count() const { return result_count_; }
  uint32_t id_of(const Edge& edge) { return held_.node_calls.lookup(edge.function).id; }
  // Whether the engine would go along an edge of the node.
  bool follows(const Node& node, const Edge& edge) const;
  bool keeps_graph() const { return graph_task_.keep_graph_; }

  // Whether all nodes would run on the streams that are current here.
  bool is_on_current_streams() const;

  // The tensors that nodes hold, in the order in which they were met, each once.
  std::vector<at::Tensor>& tensors() { return held_.tensor_args.inputs; }
  // The node at whose turn a tensor, or a size, was first met.
  size_t turn_of_tensor(size_t index) const;
  size_t turn_of_size(size_t index) const;
  // All sizes that nodes hold, and those that their results must have.
  const std::vector<torch::dynamo::autograd::SizeInput>& sizes() const { return held_.all_size_inputs; }

 private:
  bool add_turn(const NodePtr& node, SilentTypes& silent, const OnKey& on_key);

  GraphTask& graph_task_;
  const NodePtr root_;
  const size_t result_count_;
  torch::dynamo::autograd::AutogradCompilerCall held_;
  std::vector<Turn> turns_;
  std::vector<std::pair<uint32_t, uint32_t>> met_;  // how many tensors and sizes, behind each turn
};

}  // namespace magneto::autograd
