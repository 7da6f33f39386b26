// How nodes are run without effect, and results compared to the bit.
#include "autograd/verify.h"

#include <cstring>

#include "runtime/errors.h"

namespace magneto::autograd {

namespace {

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  if (a.scalar_type() != b.scalar_type() || a.device() != b.device() || a.sizes() != b.sizes()) return false;
  if (a.strides() != b.strides() || a.is_conj() != b.is_conj() || a.is_neg() != b.is_neg()) return false;
  at::Tensor x = a.contiguous().cpu(), y = b.contiguous().cpu();
  return std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0;
}

}  // namespace

Shadow::Shadow(const Runner& runner, size_t first, size_t end) : nodes_(runner) {
  for (size_t i = first; i < end; ++i) {
    const Turn& turn = nodes_.task().turns()[i];
    variable_list gradients = nodes_.take(turn);
    for (auto [index, result] : turn.asked) {
      nodes_.results()[static_cast<size_t>(result)] = gradients[static_cast<size_t>(index)];
    }
    if (!turn.needed) continue;
    if (turn.accumulates)
      leaves_[i] = gradients[0];
    else
      nodes_.deliver(turn, call_node(*turn.node, std::move(gradients)));
  }
}

void Shadow::compare(const Part::Target& target, const at::Tensor& tensor) {
  std::string place;
  at::Tensor expected;
  if (const auto* waiting = std::get_if<Waiting>(&target)) {
    expected = nodes_.waiting(waiting->node, waiting->index);
    place = "gradient " + std::to_string(waiting->index) + " for node " + std::to_string(waiting->node);
  } else if (const auto* result = std::get_if<Part::Result>(&target)) {
    expected = nodes_.results()[result->index];
    place = "result " + std::to_string(result->index);
  } else {
    size_t turn = std::get<Part::Leaf>(target).turn;
    expected = leaves_[turn];
    place = "the gradient of the leaf at turn " + std::to_string(turn);
  }
  if (!expected.defined() || !same_bits(expected, tensor))
    MAGNETO_BUG("a captured backward gives something else than its nodes: " + place);
}

}  // namespace magneto::autograd
