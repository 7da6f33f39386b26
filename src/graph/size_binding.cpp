// Binding symbols to the sizes of inputs: everything that can be prepared is, so that a run only reads and compares.
#include "graph/size_binding.h"

#include <algorithm>

#include "runtime/errors.h"

namespace magneto::graph {

SizeBinding::SizeBinding(const Graph& graph) : symbols_(graph.symbols) {
  for (uint32_t i = 0; i < graph.inputs.size(); ++i) {
    const Value& value = graph.values[graph.inputs[i]];
    names_.push_back(value.name.empty() ? "input" + std::to_string(i) : value.name);
    ranks_.push_back(static_cast<int64_t>(value.sizes.size()));
    demand(graph, i);
  }
  std::ranges::stable_partition(demands_, &Demand::fixed);
  for (const Symbol& symbol : symbols_->symbols()) {
    const auto& [input, dimension, name] = symbol.source;
    bool is_number = dimension == SymbolSource::kNumber;
    bool found = input < graph.inputs.size();
    if (found && is_number) {
      const Value& value = graph.values[graph.inputs[input]];
      found = value.sizes.empty() && value.dtype == c10::kLong && value.device.is_cpu();
    } else if (found) {
      found = dimension >= 0 && dimension < ranks_[input];
    }
    if (found) continue;
    throw UserError("symbol " + symbol.name + " comes from input " + std::to_string(input) +
                    (is_number ? ", which is not an int64 tensor without dimensions on the CPU"
                               : ", which has no dimension " + std::to_string(dimension)));
  }
  std::vector<ExprId> wanted;
  for (const Op& op : graph.ops) {
    for (const SizeRef& size : op.sizes) wanted.push_back(size.expr);
  }
  for (const Demand& demand : demands_) {
    if (!demand.fixed) wanted.push_back(demand.expr);
  }
  plan_ = symbols_->plan(wanted);
}

// The strides of dimensions of size 1, and of empty tensors, do not matter.
void SizeBinding::demand(const Graph& graph, uint32_t input) {
  const Value& value = graph.values[graph.inputs[input]];
  size_t rank = value.sizes.size();
  bool empty = std::ranges::find(value.sizes, 0) != value.sizes.end();
  for (size_t i = 0; i < 2 * rank; ++i) {
    bool is_stride = i >= rank;
    size_t dimension = i % rank;
    if (is_stride && (empty || value.sizes[dimension] == 1)) continue;
    Demand demand{input,
                  static_cast<uint32_t>(dimension),
                  is_stride,
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

std::string SizeBinding::dimension_text(const Demand& demand) const {
  return names_[demand.input] + (demand.is_stride ? ".stride(" : ".size(") + std::to_string(demand.dimension) + ")";
}

std::optional<std::string> SizeBinding::check_ranks(std::span<const at::Tensor> inputs) const {
  for (size_t i = 0; i < ranks_.size(); ++i) {
    if (inputs[i].dim() == ranks_[i]) continue;
    return names_[i] + " has " + std::to_string(inputs[i].dim()) + " dimensions, expected " + std::to_string(ranks_[i]);
  }
  return std::nullopt;
}

std::optional<std::string> SizeBinding::bind(std::span<const at::Tensor> inputs, std::vector<Number>& numbers) const {
  if (auto problem = check_ranks(inputs)) return problem;
  c10::SmallVector<int64_t, 8> values;
  for (const Symbol& symbol : symbols_->symbols()) {
    const at::Tensor& input = inputs[symbol.source.input];
    values.push_back(symbol.source.dimension == SymbolSource::kNumber ? *input.const_data_ptr<int64_t>()
                                                                      : input.size(symbol.source.dimension));
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
    int64_t found = demand.is_stride ? input.stride(demand.dimension) : input.size(demand.dimension);
    int64_t expected = demand.fixed ? demand.number : numbers[demand.expr].integer;
    if (found == expected) continue;
    return dimension_text(demand) + " is " + std::to_string(found) + ", expected " +
           (demand.fixed ? "" : symbols_->words(demand.expr) + " = ") + std::to_string(expected);
  }
  return evaluated ? std::nullopt : evaluate();
}

}  // namespace magneto::graph
