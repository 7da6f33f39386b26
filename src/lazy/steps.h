// What the steps of the lazy device did, as a trie of operators: a step that does what an earlier one did walks along
// it, and finds there what its tensors look like and, at its end, what runs it.
#pragma once
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "graph/graph.h"
#include "lazy/tensor.h"
#include "runtime/executor.h"

namespace magneto::lazy {

// A step that can be run.
struct Compiled {
  explicit Compiled(graph::Graph graph) : executor(std::move(graph), {true}) {}
  runtime::Executor executor;
  std::atomic<double> last_us = 0;  // what the last run took
};

// The tensors among the arguments of a call, as values of the step.
struct Operands {
  c10::SmallVector<graph::TensorRef, 4> tensors;
  c10::SmallVector<graph::TensorList, 1> lists;
};

// Where a value lives: the first value there, and whether that came into the step from outside.
struct Memory {
  uint32_t first;
  bool is_input;
};

// A call of an operator, as a step does it.
struct Call {
  struct Result {
    uint32_t position;
    int32_t item;  // or TensorRef::kWhole
    uint32_t id;   // an argument that is returned, or the next value
    Memory memory;
    std::optional<Layout> layout;  // none: it is an argument
  };

  std::optional<c10::OperatorHandle> op;  // none: nothing has been called yet
  const graph::SchemaInfo* info = nullptr;
  std::vector<c10::IValue> args;  // tensors and lists of tensors are None here
  Operands operands;
  c10::SmallVector<uint32_t, 1> open;  // positions of numbers that each step gives anew
  std::vector<Layout> inputs;          // values that came into the step since the call before
  std::vector<Result> results;
  std::vector<std::pair<uint32_t, uint32_t>> result_lists;  // position and length
  bool writes_inputs = false;                               // changes what earlier steps have made
  std::shared_ptr<const graph::Line> line;                  // of the user's program; may be null
  std::vector<std::string> frames;                          // if somebody asked for them
};

// A call behind those on the way from the root.
struct Node : Call {
  struct End {
    std::vector<uint32_t> outputs;
    size_t number_count;  // that were open when it was compiled; more of them may be now
    std::shared_ptr<Compiled> compiled;
  };

  Node() = default;
  Node(Call call, Node* parent) : Call(std::move(call)), parent(parent) {}

  Node* parent = nullptr;
  std::vector<std::unique_ptr<Node>> children;
  std::vector<End> ends;
};

bool is_tensor_list(const c10::IValue& value);
const at::Tensor& operand(c10::ArrayRef<c10::IValue> args, const graph::TensorRef& ref);

// An argument that is a number, or a list of them.
template <class F>
void each_number(const c10::IValue& argument, F&& f) {
  if (!argument.isList()) return f(argument);
  for (const c10::IValue& item : argument.toListRef()) f(item);
}

// Whether it is the operator with these arguments. If only numbers differ that may be left open, their positions.
bool matches(const Call& call, const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> args, const Operands& operands,
             c10::SmallVectorImpl<uint32_t>* differ);

// The calls from the root to `end`. `generator` is drawn from where the program named none. `numbers`: what was left
// open is fixed to these; otherwise it is an input.
graph::Graph build_graph(const Node& end, const std::vector<uint32_t>& outputs, const c10::IValue& generator,
                         c10::Device device, const std::vector<int64_t>* numbers = nullptr);

}  // namespace magneto::lazy
