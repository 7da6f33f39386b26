// Runs the nodes of a task one after the other, as the engine does, and keeps the gradients that wait meanwhile.
#pragma once
#include "autograd/task.h"

namespace magneto::autograd {

class Runner {
 public:
  // `is_verified`: captured parts are compared with what their nodes give.
  explicit Runner(Task& task, bool is_verified = false);

  // All that has to be done at the turn of a node.
  void run(const Turn& turn);

  // The parts of that. Notes which of these gradients are results of the run.
  void note_asked(const Turn& turn, const variable_list& gradients);
  // The gradients that have arrived at a node, undefined where none has.
  variable_list take(const Turn& turn);
  // Runs the node between its hooks; what it saved goes, unless the graph is kept.
  variable_list call(const Turn& turn, variable_list gradients);
  // Sends results along the edges.
  void deliver(const Turn& turn, variable_list results);

  // A gradient that waits for a node; undefined: none so far.
  at::Tensor& waiting(uint32_t node, uint32_t index);
  const std::vector<variable_list>& waiting() const { return waiting_; }  // by node; shorter lists end undefined
  void clear(uint32_t node) { waiting_[node].clear(); }

  Task& task() { return task_; }
  variable_list& results() { return results_; }
  bool is_verified() const { return is_verified_; }

 private:
  Task& task_;
  std::vector<variable_list> waiting_;
  variable_list results_;
  bool is_verified_;
};

}  // namespace magneto::autograd
