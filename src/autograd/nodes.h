// Autograd's nodes as the engine runs them: hooks, gradients that add up, results that must fit.
#pragma once
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>

#include <cstdint>
#include <vector>

namespace magneto::autograd {

using torch::autograd::Edge;
using torch::autograd::GraphTask;
using torch::autograd::Node;
using torch::autograd::variable_list;
using NodePtr = decltype(Edge::function);  // which smart pointer that is depends on torch's version

// Whether somebody looks on while the node runs, or changes what it is given or gives.
bool has_hooks(Node& node);
// A function written in Python.
bool is_python(const Node& node);

// Whether nobody else has the tensor, or its memory.
bool is_exclusive(const at::Tensor& tensor);

// Whether the engine would add to such a tensor in place, if it is exclusive.
bool can_add_in_place(const at::Tensor& tensor);

// Adds to a gradient that waits for its node, in place where nobody else has it.
at::Tensor add_up(at::Tensor&& waiting, at::Tensor&& arrived, Node& node);

// The hooks that see what arrives at a node, whether it runs or is only asked for its gradient.
variable_list call_tensor_hooks(Node& node, variable_list gradients);
// Runs the node between its other hooks. Checked and made to fit the nodes they go to, as the engine does.
variable_list call_node(Node& node, variable_list gradients);

}  // namespace magneto::autograd
