// One turn of the engine, and its parts.
#include "autograd/runner.h"

namespace magneto::autograd {

Runner::Runner(Task& task, bool is_verified)
    : task_(task), waiting_(task.node_count()), results_(task.result_count()), is_verified_(is_verified) {}

at::Tensor& Runner::waiting(uint32_t node, uint32_t index) {
  if (waiting_.size() <= node) waiting_.resize(node + 1);
  variable_list& list = waiting_[node];
  if (list.size() <= index) list.resize(index + 1);
  return list[index];
}

variable_list Runner::take(const Turn& turn) {
  variable_list gradients = std::move(waiting_[turn.id]);
  waiting_[turn.id].clear();
  gradients.resize(turn.node->num_inputs());
  return gradients;
}

void Runner::run(const Turn& turn) {
  variable_list gradients = take(turn);
  // What is asked for is what arrived, unless the node is not run: then only its hooks are.
  if (!turn.needed) gradients = call_tensor_hooks(*turn.node, std::move(gradients));
  note_asked(turn, gradients);
  if (!turn.needed) return;
  gradients = call_tensor_hooks(*turn.node, std::move(gradients));
  deliver(turn, call(turn, std::move(gradients)));
}

void Runner::note_asked(const Turn& turn, const variable_list& gradients) {
  for (auto [index, result] : turn.asked) results_[static_cast<size_t>(result)] = gradients[static_cast<size_t>(index)];
}

variable_list Runner::call(const Turn& turn, variable_list gradients) {
  if (!task_.keeps_graph()) turn.node->will_release_variables();
  variable_list results = call_node(*turn.node, std::move(gradients));
  if (!task_.keeps_graph()) turn.node->release_variables();
  return results;
}

void Runner::deliver(const Turn& turn, variable_list results) {
  for (size_t i = 0; i < results.size(); ++i) {
    const Edge& edge = turn.node->next_edge(i);
    if (!results[i].defined() || !task_.follows(*turn.node, edge)) continue;
    at::Tensor& gradient = waiting(task_.id_of(edge), edge.input_nr);
    gradient = add_up(std::move(gradient), std::move(results[i]), *edge.function);
  }
}

}  // namespace magneto::autograd
