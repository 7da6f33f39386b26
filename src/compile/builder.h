// Appends operators to a graph and works out what they make.
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/SymInt.h>
#include <c10/util/flat_hash_map.h>

#include <vector>

#include "graph/graph.h"

namespace magneto::compile {

// An operator that runs as `source` did (grad mode, source line, ...), but not under autocast; all its arguments are
// their defaults.
graph::Op op_like(const graph::Op& source, const c10::OperatorHandle& handle);
graph::Op op_like(const graph::Op& source, const char* name, const char* overload = "");

class Builder {
 public:
  using Results = c10::SmallVector<graph::TensorRef, 1>;

  explicit Builder(graph::Graph start) : graph(std::move(start)) {}

  // Infers the results of an operator that has all but these. c10::Error: it does not take these arguments.
  Results append(graph::Op op);
  // The same for operators with one result.
  graph::ValueId add(graph::Op op) { return append(std::move(op))[0].value; }

  // What the value looks like; nothing else may be done with it.
  at::Tensor trace(graph::ValueId id);

  // Numbers among the arguments of an operator.
  c10::SymInt number(const graph::Op& op, uint32_t position);
  std::vector<c10::SymInt> numbers(const graph::Op& op, uint32_t position);
  void set(graph::Op& op, uint32_t position, const c10::SymInt& number);
  void set(graph::Op& op, uint32_t position, c10::SymIntArrayRef numbers);

  // What operators take from the dispatcher.
  c10::Stack stack_of(const graph::Op& op);

  graph::Graph graph;

 private:
  graph::ValueId add_result(const graph::Op& op, const at::Tensor& trace);
  c10::IValue symbolic(graph::ExprId expr);
  int64_t note(graph::Op& op, uint32_t position, int32_t item, const c10::SymInt& number);

  std::vector<at::Tensor> traces_;                                // by value, undefined until asked for
  ska::flat_hash_map<c10::StorageImpl*, graph::ValueId> memory_;  // of traces: the first value that lives there
};

inline void put(graph::Op& op, uint32_t position, graph::ValueId tensor) {
  op.tensors.push_back({position, graph::TensorRef::kWhole, tensor});
}

}  // namespace magneto::compile
