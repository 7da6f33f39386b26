// Binding symbols to the sizes of inputs: everything that can be prepared is, so that a run only reads and compares.
#include "graph/size_binding.h"

#include <algorithm>

#include "runtime/errors.h"

namespace magneto::graph {

SizeBinding::SizeBinding(const Graph& graph) : symbols_(graph.symbols) {
  for (uint32_t i = 0; i < graph.inputs.size(); ++i) {
    const Value& value = graph.values[graph.inputs[i]];
    names_.push_back(value.name.empty() ? "input" + std::to_string(i) : value.name);
    ranks_.push_back(value.role == Role::Size ? kNoTensor : static_cast<int64_t>(value.sizes.size()));
    demand(graph, i);
  }
  std::ranges::stable_partition(demands_, &Demand::fixed);
  check_sources(graph);
  std::vector<ExprId> wanted;
  for (const Op& op : graph.ops) {
    for (const SizeRef& size : op.sizes) wanted.push_back(size.expr);
  }
  for (ValueId output : graph.outputs) {
    if (graph.values[output].role == Role::Size) wanted.push_back(graph.values[output].shape[0]);
  }
  for (const Demand& demand : demands_) {
    if (!demand.fixed) wanted.push_back(demand.expr);
  }
  plan_ = symbols_->plan(wanted);
}

void SizeBinding::check_sources(const Graph& graph) const {
  for (const Symbol& symbol : symbols_->symbols()) {
    const auto& [input, dimension, name] = symbol.source;
    if (dimension == SymbolSource::kUnknown) continue;
    bool is_number = dimension == SymbolSource::kNumber;
    int64_t rank = input < graph.inputs.size() ? ranks_[input] : 0;
    if (is_number ? rank == kNoTensor : dimension < rank) continue;
    throw UserError("symbol " + symbol.name + " comes from input " + std::to_string(input) +
                    (is_number ? ", which is not a number" : ", which has no dimension " + std::to_string(dimension)));
  }
}

// The strides of dimensions of size 1, and of empty tensors, do not matter.
void SizeBinding::demand(const Graph& graph, uint32_t input) {
  const Value& value = graph.values[graph.inputs[input]];
  if (value.role == Role::Size) {
    if (symbols_->type(value.shape[0]) == Symbols::Type::Float) return;  // a symbol of its own
    demands_.push_back({input, 0, Demand::Given, value.shape[0], 0, false});
    return;
  }
  size_t rank = value.sizes.size();
  bool empty = std::ranges::find(value.sizes, 0) != value.sizes.end();
  for (size_t i = 0; i < 2 * rank; ++i) {
    bool is_stride = i >= rank;
    size_t dimension = i % rank;
    if (is_stride && (empty || value.sizes[dimension] == 1)) continue;
    Demand demand{input,
                  static_cast<uint32_t>(dimension),
                  is_stride ? Demand::Stride : Demand::Size,
                  0,
                  is_stride ? value.strides[dimension] : value.sizes[dimension],
                  true};
    if (!value.shape.empty()) {
      demand.expr = value.shape[i];
      demand.fixed = symbols_->is_constant(demand.expr);
    }
    demands_.push_back(demand);
  }
}

std::string SizeBinding::text(const Demand& demand) const {
  const std::string& name = names_[demand.input];
  if (demand.kind == Demand::Given) return name;
  return name + (demand.kind == Demand::Stride ? ".stride(" : ".size(") + std::to_string(demand.dimension) + ")";
}

std::optional<std::string> SizeBinding::check_ranks(std::span<const at::Tensor> inputs) const {
  for (size_t i = 0; i < ranks_.size(); ++i) {
    if (ranks_[i] == kNoTensor || inputs[i].dim() == ranks_[i]) continue;
    return names_[i] + " has " + std::to_string(inputs[i].dim()) + " dimensions, expected " + std::to_string(ranks_[i]);
  }
  return std::nullopt;
}

std::optional<std::string> SizeBinding::bind(std::span<const at::Tensor> inputs, std::span<const int64_t> given,
                                             std::vector<Number>& numbers) const {
  if (auto problem = check_ranks(inputs)) return problem;
  c10::SmallVector<int64_t, 8> values;
  for (const Symbol& symbol : symbols_->symbols()) {
    const SymbolSource& source = symbol.source;
    values.push_back(source.dimension >= 0                       ? inputs[source.input].size(source.dimension)
                     : source.dimension == SymbolSource::kNumber ? given[source.input]
                                                                 : symbol.hint);
  }
  numbers.resize(symbols_->size());
  bool evaluated = false;
  auto evaluate = [&] {
    evaluated = true;
    auto problem = symbols_->evaluate(values, plan_, numbers);
    return problem ? problem : symbols_->check(values, numbers);
  };
  for (const Demand& demand : demands_) {
    if (!demand.fixed && !evaluated) {
      if (auto problem = evaluate()) return problem;
    }
    const at::Tensor& input = inputs[demand.input];
    int64_t found = demand.kind == Demand::Given    ? given[demand.input]
                    : demand.kind == Demand::Stride ? input.stride(demand.dimension)
                                                    : input.size(demand.dimension);
    int64_t expected = demand.fixed ? demand.number : numbers[demand.expr].integer;
    if (found == expected) continue;
    return text(demand) + " is " + std::to_string(found) + ", expected " +
           (demand.fixed ? "" : symbols_->words(demand.expr) + " = ") + std::to_string(expected);
  }
  return evaluated ? std::nullopt : evaluate();
}

}  // namespace magneto::graph
