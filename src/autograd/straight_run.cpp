// The loop over nodes, in the engine's order.
#include "autograd/straight_run.h"

#include <ATen/ThreadLocalState.h>
#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <c10/util/SmallVector.h>
#include <c10/util/flat_hash_map.h>
#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/csrc/autograd/functions/basic_ops.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <queue>
#include <utility>

namespace magneto::autograd {

namespace {

using torch::autograd::edge_list;

constexpr size_t kExpectedNodes = 512;

bool is_plain(Node& node) {
  if (has_hooks(node) || is_python(node)) return false;
  for (uint32_t i = 0; i < node.num_inputs(); ++i)
    if (!node.input_metadata(i).device().is_cpu()) return false;
  return true;
}

// A gradient that arrives at a node and is asked for.
struct Asked {
  size_t input, result;
};

// A node that a gradient leads to. Whoever runs it keeps it alive.
struct Visit {
  Node* node;
  int waits_for = 0;  // edges that have not been gone along
  bool followed = true, needed = true;
  c10::SmallVector<Asked, 1> asked = {};
  variable_list gradients = {};
};

struct Ready {
  uint64_t made;
  uint32_t visit;
  // The engine takes the node that was made last.
  bool operator<(const Ready& other) const { return made < other.made; }
};

class StraightRun {
 public:
  StraightRun(size_t results, bool keeps_graph) : results_(results), keeps_graph_(keeps_graph) {}

  void expect(const NodePtr& root, const GraphTask& task);
  // False: some of the nodes are not to be run like this, or the engine would leave some out.
  bool expect(const edge_list& roots, const edge_list& asked);
  void begin_at(Node& node) { ready_.push({node.sequence_nr(), number_of(&node)}); }
  void add(const Edge& edge, at::Tensor&& gradient) { add(visit(edge), edge.input_nr, std::move(gradient)); }
  void go_along(const Edge& edge, at::Tensor&& gradient);
  variable_list run();

 private:
  uint32_t number_of(Node* node);
  Visit& visit(const Edge& edge) { return visits_[number_of(edge.function.get())]; }
  void take_turn(Visit& visit);
  static void add(Visit& to, uint32_t input, at::Tensor&& gradient);

  variable_list results_;
  const bool keeps_graph_;
  std::vector<Visit> visits_;  // does not grow during the run
  ska::flat_hash_map<const Node*, uint32_t> numbers_;
  std::priority_queue<Ready> ready_;
};

uint32_t StraightRun::number_of(Node* node) {
  auto [known, is_new] = numbers_.emplace(node, static_cast<uint32_t>(visits_.size()));
  if (is_new) visits_.push_back(Visit{node});
  return known->second;
}

void StraightRun::expect(const NodePtr& root, const GraphTask& task) {
  visits_.reserve(task.dependencies_.size() + 2);
  numbers_.reserve(task.dependencies_.size() + 2);
  number_of(root.get());
  for (const Edge& edge : root->next_edges()) number_of(edge.function.get());
  for (const auto& [node, count] : task.dependencies_) visits_[number_of(node)].waits_for = count;
  if (task.exec_info_.empty()) return;
  for (Visit& visit : visits_) {
    auto info = task.exec_info_.find(visit.node);
    visit.followed = info != task.exec_info_.end() && info->second.should_execute();
    visit.needed = visit.followed && info->second.needed_;
    if (!visit.followed || !info->second.captures_) continue;
    for (const auto& capture : *info->second.captures_)
      visit.asked.push_back({static_cast<size_t>(capture.input_idx_), static_cast<size_t>(capture.output_idx_)});
  }
}

// Where every end is asked for, all on the way there is needed.
bool StraightRun::expect(const edge_list& roots, const edge_list& asked) {
  visits_.reserve(kExpectedNodes);
  numbers_.reserve(kExpectedNodes);
  for (const Edge& root : roots) ++visit(root).waits_for;
  for (uint32_t next = 0; next < visits_.size(); ++next) {
    Node& node = *visits_[next].node;
    if (!is_plain(node)) return false;
    visits_[next].needed = false;
    for (const Edge& edge : node.next_edges()) {
      if (!edge.is_valid()) continue;
      visits_[next].needed = true;
      ++visit(edge).waits_for;
    }
  }
  for (size_t i = 0; i < asked.size(); ++i) {
    auto reached = numbers_.find(asked[i].function.get());
    if (reached != numbers_.end()) visits_[reached->second].asked.push_back({asked[i].input_nr, i});
  }
  return std::ranges::all_of(visits_, [](const Visit& visit) { return visit.needed || !visit.asked.empty(); });
}

variable_list StraightRun::run() {
  while (!ready_.empty()) {
    Visit& next = visits_[ready_.top().visit];
    ready_.pop();
    take_turn(next);
  }
  return std::move(results_);
}

void StraightRun::take_turn(Visit& visit) {
  Node& node = *visit.node;
  variable_list gradients = std::move(visit.gradients);
  gradients.resize(node.num_inputs());
  for (const Asked& asked : visit.asked) results_[asked.result] = gradients[asked.input];
  if (!visit.needed) return;
  if (!keeps_graph_) node.will_release_variables();
  variable_list results = call_node(node, std::move(gradients));
  if (!keeps_graph_) node.release_variables();
  for (size_t i = 0; i < results.size(); ++i) {
    const Edge& edge = node.next_edge(i);
    if (edge.is_valid()) go_along(edge, std::move(results[i]));
  }
}

void StraightRun::go_along(const Edge& edge, at::Tensor&& gradient) {
  uint32_t number = number_of(edge.function.get());
  Visit& to = visits_[number];
  if (!to.followed) return;
  if (gradient.defined()) add(to, edge.input_nr, std::move(gradient));
  if (--to.waits_for == 0) ready_.push({to.node->sequence_nr(), number});
}

void StraightRun::add(Visit& to, uint32_t input, at::Tensor&& gradient) {
  if (!to.followed) return;
  if (to.gradients.empty()) to.gradients.resize(to.node->num_inputs());
  at::Tensor& waiting = to.gradients[input];
  waiting = add_up(std::move(waiting), std::move(gradient), *to.node);
}

// Where the engine would find the gradient of a tensor, if anything leads there.
Edge edge_to(const at::Tensor& tensor) {
  if (const NodePtr& node = tensor.grad_fn()) return {node, static_cast<uint32_t>(tensor.output_nr())};
  return {torch::autograd::impl::try_get_grad_accumulator(tensor), 0};
}

}  // namespace

bool can_run_straight(const GraphTask& task) {
  return !at::hasCallbacks() &&
         std::ranges::all_of(task.dependencies_, [](const auto& each) { return is_plain(*each.first); });
}

// The engine begins with a single root itself.
variable_list run_straight(const NodePtr& root, GraphTask& task) {
  at::ThreadLocalStateGuard state_of_the_backward(task.thread_locals_);
  StraightRun run(task.captured_vars_.size(), task.keep_graph_);
  run.expect(root, task);
  using torch::autograd::GraphRoot;
  const auto* single = root->num_outputs() == 1 ? dynamic_cast<const GraphRoot*>(root.get()) : nullptr;
  if (single) run.add(root->next_edge(0), at::Tensor(single->outputs[0]));
  run.begin_at(single ? *root->next_edge(0).function : *root);
  return run.run();
}

std::optional<variable_list> gradients_straight(const variable_list& outputs, variable_list gradients,
                                                const variable_list& asked) {
  if (at::hasCallbacks() || torch::autograd::AnomalyMode::is_enabled()) return std::nullopt;
  edge_list roots, ends;
  for (const at::Tensor& output : outputs) roots.push_back(torch::autograd::impl::gradient_edge(output));
  for (const at::Tensor& tensor : asked) ends.push_back(edge_to(tensor));
  StraightRun run(asked.size(), /*keeps_graph=*/false);
  if (!run.expect(roots, ends)) return std::nullopt;
  at::AutoGradMode off(false);
  torch::autograd::validate_outputs(roots, gradients, [](const std::string& problem) { return problem; });
  for (size_t i = 0; i < roots.size(); ++i) run.go_along(roots[i], std::move(gradients[i]));
  return run.run();
}

}  // namespace magneto::autograd
