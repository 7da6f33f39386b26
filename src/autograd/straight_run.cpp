// The loop over nodes, in the engine's order.
#include "autograd/straight_run.h"

#include <ATen/ThreadLocalState.h>
#include <ATen/record_function.h>
#include <c10/util/flat_hash_map.h>
#include <torch/csrc/autograd/functions/basic_ops.h>

#include <algorithm>
#include <queue>
#include <utility>

namespace magneto::autograd {

namespace {

bool is_plain(Node& node) {
  if (has_hooks(node) || is_python(node)) return false;
  for (uint32_t i = 0; i < node.num_inputs(); ++i)
    if (!node.input_metadata(i).device().is_cpu()) return false;
  return true;
}

// A node that a gradient leads to.
struct Visit {
  NodePtr node;
  int waits_for = 0;  // edges that have not been gone along
  bool followed = true, needed = true;
  const std::vector<GraphTask::ExecInfo::Capture>* captures = nullptr;
  variable_list gradients = {};
};

// The engine takes the node that was made last.
struct Earlier {
  bool operator()(const Visit* a, const Visit* b) const { return a->node->sequence_nr() < b->node->sequence_nr(); }
};

class StraightRun {
 public:
  explicit StraightRun(GraphTask& task) : task_(task) {
    visits_.reserve(task.dependencies_.size() + 1);
    by_node_.reserve(task.dependencies_.size() + 1);
  }

  variable_list run(const NodePtr& root);

 private:
  void begin(const NodePtr& root);
  Visit& visit(const NodePtr& node);
  void take_turn(Visit& visit);
  void deliver(const Node& node, variable_list results);
  static void add(Visit& to, uint32_t index, at::Tensor&& gradient);

  GraphTask& task_;
  std::vector<Visit> visits_;  // never grows beyond what is reserved
  ska::flat_hash_map<const Node*, Visit*> by_node_;
  std::priority_queue<Visit*, std::vector<Visit*>, Earlier> ready_;
};

Visit& StraightRun::visit(const NodePtr& node) {
  Visit*& known = by_node_[node.get()];
  if (known) return *known;
  known = &visits_.emplace_back(Visit{node});
  if (auto waits = task_.dependencies_.find(node.get()); waits != task_.dependencies_.end())
    known->waits_for = waits->second;
  if (task_.exec_info_.empty()) return *known;
  auto info = task_.exec_info_.find(node.get());
  known->followed = info != task_.exec_info_.end() && info->second.should_execute();
  known->needed = known->followed && info->second.needed_;
  if (known->followed) known->captures = info->second.captures_.get();
  return *known;
}

// The engine begins with a single root itself.
void StraightRun::begin(const NodePtr& root) {
  using torch::autograd::GraphRoot;
  const auto* single = root->num_outputs() == 1 ? dynamic_cast<const GraphRoot*>(root.get()) : nullptr;
  if (!single) return ready_.push(&visit(root));
  const Edge& edge = root->next_edge(0);
  Visit& first = visit(edge.function);
  add(first, edge.input_nr, at::Tensor(single->outputs[0]));
  ready_.push(&first);
}

variable_list StraightRun::run(const NodePtr& root) {
  at::ThreadLocalStateGuard state_of_the_backward(task_.thread_locals_);
  begin(root);
  while (!ready_.empty()) {
    Visit& next = *ready_.top();
    ready_.pop();
    take_turn(next);
  }
  return std::move(task_.captured_vars_);
}

void StraightRun::take_turn(Visit& visit) {
  Node& node = *visit.node;
  variable_list gradients = std::move(visit.gradients);
  gradients.resize(node.num_inputs());
  if (visit.captures) {
    for (const auto& capture : *visit.captures)
      task_.captured_vars_[static_cast<size_t>(capture.output_idx_)] =
          gradients[static_cast<size_t>(capture.input_idx_)];
  }
  if (!visit.needed) return;
  if (!task_.keep_graph_) node.will_release_variables();
  variable_list results = call_node(node, std::move(gradients));
  if (!task_.keep_graph_) node.release_variables();
  deliver(node, std::move(results));
}

void StraightRun::deliver(const Node& node, variable_list results) {
  for (size_t i = 0; i < results.size(); ++i) {
    const Edge& edge = node.next_edge(i);
    if (!edge.is_valid()) continue;
    Visit& next = visit(edge.function);
    if (!next.followed) continue;
    if (results[i].defined()) add(next, edge.input_nr, std::move(results[i]));
    if (--next.waits_for == 0) ready_.push(&next);
  }
}

void StraightRun::add(Visit& to, uint32_t index, at::Tensor&& gradient) {
  if (to.gradients.empty()) to.gradients.resize(to.node->num_inputs());
  at::Tensor& waiting = to.gradients[index];
  waiting = add_up(std::move(waiting), std::move(gradient), *to.node);
}

}  // namespace

bool can_run_straight(const GraphTask& task) {
  return !at::hasCallbacks() &&
         std::ranges::all_of(task.dependencies_, [](const auto& each) { return is_plain(*each.first); });
}

variable_list run_straight(const NodePtr& root, GraphTask& task) { return StraightRun(task).run(root); }

}  // namespace magneto::autograd
