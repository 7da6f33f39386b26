// Views that a run makes by itself, without the dispatcher: where no one can tell them from those of the operator.
#pragma once
#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "graph/graph.h"

namespace magneto::runtime {

// What a view operator makes, as it was recorded.
struct DirectView {
  struct Layout {
    c10::SmallVector<int64_t, 4> sizes, strides;
    int64_t offset;  // from where the viewed begins

    at::Tensor over(const at::Tensor& viewed) const;
  };

  // Of the results of `op` that have a place in a run, in this order.
  c10::SmallVector<Layout, 1> results;
  c10::SmallVector<int64_t, 4> sizes, strides;  // of what is viewed
  c10::SmallVector<uint32_t, 1> kept;           // the results among the tensors that stay between runs; empty: none are

  bool is_for(const at::Tensor& viewed) const {
    return viewed.sizes().equals(sizes) && viewed.strides().equals(strides);
  }
};

// Finds the operators of a graph that can be left out.
class DirectViews {
 public:
  explicit DirectViews(const graph::Graph& graph);

  // `results`: those that are used.
  std::optional<DirectView> of(const graph::Op& op, const std::vector<graph::TensorRef>& results) const;

 private:
  bool is_hidden(graph::ValueId value) const { return !seen_[graph_.values[value].memory]; }

  const graph::Graph& graph_;
  std::vector<bool> seen_;  // by memory: that it is a view, or how often it was written, shows
};

}  // namespace magneto::runtime
