// How nodes are run without effect, and results compared to the bit.
#include "autograd/verify.h"

#include <cstring>

#include "cpython/gil.h"
#include "cpython/ref.h"
#include "runtime/errors.h"
#include "runtime/torch_python.h"

namespace magneto::autograd {

namespace {

// Of dimensions of size 1 they depend on whether gradients are added in place, which the shadow must not do.
bool same_strides(const at::Tensor& a, const at::Tensor& b) {
  for (int64_t i = 0; i < a.dim(); ++i)
    if (a.size(i) > 1 && a.stride(i) != b.stride(i)) return false;
  return true;
}

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  if (a.scalar_type() != b.scalar_type() || a.device() != b.device() || a.sizes() != b.sizes()) return false;
  if (!same_strides(a, b) || a.is_conj() != b.is_conj() || a.is_neg() != b.is_neg()) return false;
  at::Tensor x = a.contiguous().cpu(), y = b.contiguous().cpu();
  return std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0;
}

[[noreturn]] void raise_difference(const std::string& place) {
  py::Gil gil;
  py::Ref module = py::Ref::steal(PyImport_ImportModule("magneto.errors"));
  py::Ref type = py::Ref::steal(module ? PyObject_GetAttrString(module.get(), "InternalError") : nullptr);
  MAGNETO_ASSERT(type);
  runtime::throw_python_error(type.get(), "a captured backward gives something else than its nodes: " + place);
}

}  // namespace

Shadow::Shadow(const Runner& runner, size_t first, size_t end) : nodes_(runner) {
  for (size_t i = first; i < end; ++i) {
    const Turn& turn = nodes_.task().turns()[i];
    variable_list gradients = nodes_.take(turn);
    nodes_.note_asked(turn, gradients);
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
    expected = std::move(nodes_.waiting(waiting->node, waiting->index));
    place = "gradient " + std::to_string(waiting->index) + " for node " + std::to_string(waiting->node);
  } else if (const auto* result = std::get_if<Result>(&target)) {
    expected = std::move(nodes_.results()[result->index]);
    place = "result " + std::to_string(result->index);
  } else {
    size_t turn = std::get<Leaf>(target).turn;
    expected = std::move(leaves_[turn]);
    place = "the gradient of the leaf at turn " + std::to_string(turn);
  }
  if (!expected.defined() || !same_bits(expected, tensor)) raise_difference(place);
}

}  // namespace magneto::autograd
