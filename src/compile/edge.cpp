// Which copies to state are made by whom.
#include "compile/edge.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <unordered_map>
#include <vector>

#include "codegen/kernel.h"
#include "compile/builder.h"

namespace magneto::compile {
namespace {

using graph::Graph;
using graph::Op;
using graph::TensorRef;
using graph::Value;
using graph::ValueId;

// A copy of a whole tensor that nobody else has to do with.
bool is_plain_copy(const Graph& graph, const Op& op) {
  if (op.info->name != "aten::copy_" || !op.sizes.empty() || op.args[2].toBool()) return false;
  const Value &to = graph.values[op.tensors[0].value], &from = graph.values[op.tensors[1].value];
  return graph.values[from.memory].role == graph::Role::Result && from.dtype == to.dtype && from.device == to.device &&
         from.sizes == to.sizes && codegen::is_contiguous(from) && codegen::is_contiguous(to);
}

class Edge {
 public:
  Edge(Graph graph, size_t end)
      : graph_(std::move(graph)), end_(end), users_(graph_.values.size()), stands_for_(graph_.values.size()) {
    for (ValueId id = 0; id < stands_for_.size(); ++id) stands_for_[id] = id;
    for (size_t i = 0; i < graph_.ops.size(); ++i) {
      for (const TensorRef& tensor : graph_.ops[i].tensors) users_[graph_.values[tensor.value].memory].push_back(i);
    }
    for (ValueId output : graph_.outputs) users_[graph_.values[output].memory].push_back(graph_.ops.size());
  }

  Graph run() {
    for (size_t i = end_; i < graph_.ops.size(); ++i) {
      if (is_plain_copy(graph_, graph_.ops[i])) copy_of_[graph_.ops[i].tensors[1].value] = i;
    }
    for (size_t i = 0; i < end_; ++i) {
      if (graph_.ops[i].info->name == "aten::_native_batch_norm_legit_functional") update_directly(i);
    }
    for (Op& op : graph_.ops) {
      for (TensorRef& tensor : op.tensors) tensor.value = stands_for_[tensor.value];
    }
    join_copies();
    return std::move(graph_);
  }

 private:
  // input, weight, bias, mean, variance, …  ─▶  output, two more, mean, variance
  void update_directly(size_t index) {
    Op& op = graph_.ops[index];
    constexpr uint32_t kMean = 3, kVariance = 4;
    std::vector<std::pair<ValueId, ValueId>> updates;  // new contents, and the state that takes them
    for (const TensorRef& result : op.results) {
      if (result.position < kMean) continue;
      auto copy = copy_of_.find(result.value);
      if (copy == copy_of_.end()) return;
      ValueId state = graph_.ops[copy->second].tensors[0].value;
      auto is_state = [&](const TensorRef& tensor) {
        return tensor.position == result.position && tensor.value == state;
      };
      if (std::ranges::none_of(op.tensors, is_state) || !is_used_by(state, {index, copy->second})) return;
      updates.emplace_back(result.value, state);
    }
    if (updates.size() != kVariance - kMean + 1) return;
    Op direct = op_like(op, "aten::_native_batch_norm_legit");
    direct.args = op.args;
    direct.tensors = op.tensors;
    for (const TensorRef& result : op.results) {
      if (result.position < kMean) direct.results.push_back(result);
    }
    op = std::move(direct);
    for (auto [contents, state] : updates) {
      graph_.ops[copy_of_[contents]].tensors.clear();
      stands_for_[contents] = state;
    }
  }

  bool is_used_by(ValueId state, std::initializer_list<size_t> ops) const {
    return std::ranges::all_of(users_[graph_.values[state].memory],
                               [&](size_t user) { return std::ranges::find(ops, user) != ops.end(); });
  }

  // Those that stand side by side.
  void join_copies() {
    std::vector<Op> ops(std::make_move_iterator(graph_.ops.begin()),
                        std::make_move_iterator(graph_.ops.begin() + static_cast<long>(end_)));
    std::map<c10::ScalarType, std::vector<Op>> copies;
    auto flush = [&] {
      for (auto& [dtype, same] : copies) ops.push_back(same.size() == 1 ? std::move(same[0]) : joined(same));
      copies.clear();
    };
    for (size_t i = end_; i < graph_.ops.size(); ++i) {
      Op& op = graph_.ops[i];
      if (op.tensors.empty()) continue;  // done directly
      if (is_plain_copy(graph_, op)) {
        copies[graph_.values[op.tensors[0].value].dtype].push_back(std::move(op));
      } else {
        flush();
        ops.push_back(std::move(op));
      }
    }
    flush();
    graph_.ops = std::move(ops);
  }

  static Op joined(const std::vector<Op>& copies) {
    Op all = op_like(copies[0], "aten::_foreach_copy_");
    for (uint32_t list : {0, 1}) {
      all.lists.push_back({list, static_cast<uint32_t>(copies.size()), false});
      for (size_t i = 0; i < copies.size(); ++i)
        all.tensors.push_back({list, static_cast<int32_t>(i), copies[i].tensors[list].value});
    }
    return all;
  }

  Graph graph_;
  const size_t end_;
  std::vector<std::vector<size_t>> users_;       // by memory: operators; the number of operators stands for outputs
  std::vector<ValueId> stands_for_;              // by value
  std::unordered_map<ValueId, size_t> copy_of_;  // by new contents: the operator that copies them to state
};

}  // namespace

Graph with_short_edge(Graph graph, size_t end) { return Edge(std::move(graph), end).run(); }

}  // namespace magneto::compile
