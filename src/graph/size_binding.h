// How a run of a graph with symbols finds their values, checks what was assumed of them, and computes sizes.
#pragma once
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "graph/graph.h"

namespace magneto::graph {

class SizeBinding {
 public:
  // `graph` must have symbols. UserError if one of them comes from an input that cannot give it.
  explicit SizeBinding(const Graph& graph);

  // Fills `numbers`, by expression: all that operators and outputs of the graph take. `inputs` begins with the inputs
  // of the graph; those that are numbers are undefined there and stand in `given`, which may be empty where there are
  // none. If they do not fit what was recorded: why, in words.
  std::optional<std::string> bind(std::span<const at::Tensor> inputs, std::span<const int64_t> given,
                                  std::vector<Number>& numbers) const;

 private:
  // What a size or a stride of an input, or an input that is a number, must be.
  struct Demand {
    enum Kind : uint8_t { Size, Stride, Given };
    uint32_t input;
    uint32_t dimension;
    Kind kind;
    ExprId expr;
    int64_t number;  // in the recorded call; what counts where `fixed`
    bool fixed;
  };

  void check_sources(const Graph& graph) const;
  void demand(const Graph& graph, uint32_t input);
  std::string text(const Demand& demand) const;
  std::optional<std::string> check_ranks(std::span<const at::Tensor> inputs) const;

  std::shared_ptr<const Symbols> symbols_;
  std::vector<std::string> names_;  // of inputs
  static constexpr int64_t kNoTensor = -1;
  std::vector<int64_t> ranks_;   // of inputs, or kNoTensor
  std::vector<Demand> demands_;  // the fixed ones first
  std::vector<ExprId> plan_;
};

}  // namespace magneto::graph
