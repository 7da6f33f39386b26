// What operators compute for each element, as expressions of C.
//
// A kernel rounds where the operators of the graph do: each result takes the precision of its tensor, also if it never
// gets to memory. Products and sums are contracted only where a formula says so, as in torch's own kernels.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "codegen/scalars.h"
#include "graph/graph.h"

namespace magneto::codegen {

// An operator at one element.
struct Call {
  const graph::Graph& graph;
  const graph::Op& op;
  c10::ScalarType common;          // what its tensors are taken as
  c10::ScalarType type;            // what it is computed in
  c10::ScalarType result;          // of the tensor
  std::vector<std::string> texts;  // by argument: the tensor's element, as `type`; empty: no tensor
  std::vector<bool> is_number;     // by argument: a tensor of one number on the host

  const std::string& x(uint32_t position) const { return texts[position]; }
  std::string given(uint32_t position) const { return number(op.args[position].toScalar()); }
  std::string number(const c10::Scalar& value) const { return literal(value, type); }
  bool is_real() const { return c10::isFloatingType(type); }
  // "tanhf(x)" or "tanh(x)"
  std::string function(const std::string& name, const std::string& arguments) const {
    return name + (type == c10::ScalarType::Double ? "(" : "f(") + arguments + ")";
  }
};

using Formula = std::string (*)(const Call&);

// Null: none is known for this operator with these arguments and types.
Formula find_formula(const graph::Graph& graph, const graph::Op& op);

// The operator's result at one element, as a value of this type. `element` gives that of one of its tensors, as the
// type that is asked for.
struct Computed {
  std::string text;
  c10::ScalarType type;
};
using Element = std::function<std::string(const graph::TensorRef& tensor, c10::ScalarType type)>;
Computed compute(const graph::Graph& graph, const graph::Op& op, const Element& element);

// What the operator takes its tensors as (undefined: that is not known), and one among them.
c10::ScalarType common_type(const graph::Graph& graph, const graph::Op& op);
c10::ScalarType operand_type(const graph::Op& op, uint32_t position, c10::ScalarType common);

// The number in a constant of one element on the host; none if it is no such constant.
std::optional<c10::Scalar> host_number(const graph::Graph& graph, graph::ValueId id);

}  // namespace magneto::codegen
