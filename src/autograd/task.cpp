// How the nodes of a backward are found, in the engine's order, and what is a key.
#include "autograd/task.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <algorithm>
#include <queue>
#include <unordered_map>

namespace magneto::autograd {

using torch::autograd::AccumulateGrad;
using torch::dynamo::autograd::CompiledNodeArgs;
using torch::dynamo::autograd::NodeCall;
using torch::dynamo::autograd::SizeInput;

namespace {

const char* why_opaque(Node& node, const SilentTypes& silent) {
  if (!node.tensor_pre_hooks().empty() || !node.retains_grad_hooks().empty()) return "a tensor hook";
  if (!node.pre_hooks().empty() || !node.post_hooks().empty()) return "a hook on the node";
  if (node.tensor_post_acc_grad_hooks()) return "a hook behind the accumulation";
  if (is_python(node)) return "a Python function";
  if (silent.contains(typeid(node))) return "a node that does not say what it holds";
  return nullptr;
}

// The engine takes the node that was made last.
struct Earlier {
  bool operator()(const NodePtr& a, const NodePtr& b) const { return a->sequence_nr() < b->sequence_nr(); }
};

}  // namespace

Task::Task(const NodePtr& root, GraphTask& graph_task, const torch::autograd::edge_list& asked)
    : graph_task_(graph_task), root_(root), result_count_(asked.size()), held_(SizeInput::STATIC) {
  size_t count = graph_task.dependencies_.size() + 1;
  held_.node_calls.reserve(count);
  turns_.reserve(count);
  met_.reserve(count);
  for (size_t i = 0; i < asked.size(); ++i) {
    held_.node_calls.lookup(asked[i].function).mark_output(static_cast<int>(asked[i].input_nr), static_cast<int>(i));
  }
}

bool Task::follows(const Node& node, const Edge& edge) const {
  if (!edge.is_valid()) return false;
  if (graph_task_.exec_info_.empty()) return true;
  // A single root that is not needed has its turn all the same, and its hooks are called.
  if (&node == root_.get() && node.num_outputs() == 1) return true;
  auto info = graph_task_.exec_info_.find(edge.function.get());
  return info != graph_task_.exec_info_.end() && info->second.should_execute();
}

bool Task::walk(SilentTypes& silent, const OnKey& on_key) {
  std::unordered_map<Node*, int> waits_for = graph_task_.dependencies_;
  std::priority_queue<NodePtr, std::vector<NodePtr>, Earlier> ready;
  ready.push(root_);
  while (!ready.empty()) {
    NodePtr node = ready.top();
    ready.pop();
    if (!add_turn(node, silent, on_key)) return false;
    if (!turns_.back().needed) continue;
    for (const Edge& edge : node->next_edges()) {
      if (!follows(*node, edge)) continue;
      if (--waits_for[edge.function.get()] == 0) ready.push(edge.function);
    }
  }
  return true;
}

bool Task::add_turn(const NodePtr& node, SilentTypes& silent, const OnKey& on_key) {
  NodeCall& call = held_.node_calls.lookup(node);
  if (!graph_task_.exec_info_.empty() && node != root_) {
    auto info = graph_task_.exec_info_.find(node.get());
    call.needed = info != graph_task_.exec_info_.end() && info->second.needed_;
  }
  const char* reason = why_opaque(*node, silent);
  bool accumulates = !reason && typeid(*node) == typeid(AccumulateGrad);
  CompiledNodeArgs args(held_, call);
  args.collect_size(call.id);
  args.collect(call.graph_output);
  if (args.cond(call.needed)) {
    if (!reason && !accumulates) {
      size_t numbers = held_.lifted_ivalue_args.args.size(), packed = held_.sv_to_hooks.size();
      try {
        node->compiled_args(args);
      } catch (const c10::NotImplementedError&) {
        silent.insert(typeid(*node));
      }
      // Numbers that a node of C++ holds are not in its key.
      if (held_.lifted_ivalue_args.args.size() != numbers) silent.insert(typeid(*node));
      if (silent.contains(typeid(*node))) return false;
      if (held_.sv_to_hooks.size() != packed) reason = "saved-tensor hooks";
    }
    args.collect(node->next_edges());
  }
  args.collect(reason != nullptr);
  on_key(args.key(), *node);
  turns_.push_back({node, call.id, accumulates, call.needed, reason, call.graph_output});
  met_.emplace_back(held_.tensor_args.inputs.size(), held_.all_size_inputs.size());
  return true;
}

bool Task::is_on_current_streams() const {
  const std::vector<at::Tensor>& tensors = held_.tensor_args.inputs;
  if (std::ranges::all_of(tensors, [](const at::Tensor& tensor) { return tensor.is_cpu(); })) return true;
  return std::ranges::all_of(turns_, [](const Turn& turn) {
    std::optional<c10::Stream> stream = turn.node->stream();
    return !stream || *stream == c10::impl::VirtualGuardImpl(stream->device_type()).getStream(stream->device());
  });
}

size_t Task::turn_of_tensor(size_t index) const {
  auto behind = std::ranges::upper_bound(met_, index, {}, &std::pair<uint32_t, uint32_t>::first);
  return static_cast<size_t>(behind - met_.begin());
}

size_t Task::turn_of_size(size_t index) const {
  auto behind = std::ranges::upper_bound(met_, index, {}, &std::pair<uint32_t, uint32_t>::second);
  return static_cast<size_t>(behind - met_.begin());
}

}  // namespace magneto::autograd
