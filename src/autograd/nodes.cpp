// What the engine does around one node.
#include "autograd/nodes.h"

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/input_buffer.h>

#include <algorithm>
#include <cstring>
#include <typeinfo>

namespace magneto::autograd {

bool has_hooks(Node& node) {
  return !node.tensor_pre_hooks().empty() || !node.retains_grad_hooks().empty() || !node.pre_hooks().empty() ||
         !node.post_hooks().empty() || node.tensor_post_acc_grad_hooks();
}

bool is_python(const Node& node) {
  static const char* const kName = "N5torch8autograd6PyNodeE";  // which is torch_python's, and hidden there
  return std::strcmp(typeid(node).name(), kName) == 0;
}

bool is_exclusive(const at::Tensor& tensor) {
  return tensor.use_count() == 1 && (!tensor.has_storage() || tensor.storage().use_count() == 1);
}

bool can_add_in_place(const at::Tensor& tensor) {
  return !tensor._is_zerotensor() && !tensor.is_nested() && tensor.is_non_overlapping_and_dense();
}

at::Tensor add_up(at::Tensor&& waiting, at::Tensor&& arrived, Node& node) {
  if (!waiting.defined()) return std::move(arrived);
  if (!waiting.device().is_cpu()) return waiting.add(arrived);  // a buffer of the engine would ask for streams
  torch::autograd::InputBuffer buffer(1);
  buffer.buffer[0] = std::move(waiting);
  buffer.add(0, std::move(arrived), std::nullopt, std::nullopt, &node);
  return std::move(buffer.buffer[0]);
}

variable_list call_tensor_hooks(Node& node, variable_list gradients) {
  for (const auto& hook : node.tensor_pre_hooks()) gradients = (*hook)(gradients);
  for (const auto& [_, hook] : node.retains_grad_hooks()) gradients = (*hook)(gradients);
  return gradients;
}

namespace {

// Newer versions of torch let a tensor have gradients of another type than its own.
template <class Metadata>
bool wants_type(const Metadata& expected, c10::ScalarType type) {
  if constexpr (requires { expected.grad_dtype(); }) return expected.grad_dtype() == type;
  return true;
}

// Whether a gradient has everything that the node behind the edge expects. Symbolic sizes are for torch to compare.
bool fits(const at::Tensor& gradient, const Edge& edge) {
  if (!edge.is_valid() || !gradient.defined()) return true;
  const auto& expected = edge.function->input_metadata(edge.input_nr);
  if (expected.was_default_constructed() || expected.is_nested_tensor() || expected.is_tensor_subclass()) return false;
  const auto* impl = gradient.unsafeGetTensorImpl();
  if (impl->has_symbolic_sizes_strides() || gradient.is_nested()) return false;
  auto sizes = c10::asIntArrayRefSlowOpt(expected.shape_as_dim_vector());
  return sizes && *sizes == gradient.sizes() && wants_type(expected, gradient.scalar_type()) &&
         expected.dtype() == gradient.dtype() && expected.layout() == gradient.layout() &&
         expected.device() == gradient.device() && gradient.is_floating_point();
}

bool fit(const variable_list& gradients, const torch::autograd::edge_list& edges) {
  return std::ranges::equal(gradients, edges, fits);
}

}  // namespace

variable_list call_node(Node& node, variable_list gradients) {
  for (const auto& hook : node.pre_hooks()) gradients = (*hook)(gradients);
  auto check = [&node](variable_list& results) {
    if (fit(results, node.next_edges())) return;
    torch::autograd::validate_outputs(node.next_edges(), results, [&node](const std::string& problem) {
      return "Function " + node.name() + " returned an " + problem;
    });
  };
  if (node.post_hooks().empty()) {
    variable_list results = node(std::move(gradients));
    check(results);
    return results;
  }
  variable_list results = node(variable_list(gradients));
  check(results);
  for (const auto& hook : node.post_hooks()) results = (*hook)(results, gradients);
  return results;
}

}  // namespace magneto::autograd
