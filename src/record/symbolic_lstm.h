// torch.lstm for symbolic sizes: torch's own composite then leaves the fused kernel of the CPU, and so eager's results.
#pragma once
#include <ATen/core/Tensor.h>

#include <tuple>
#include <vector>

namespace magneto::record {

struct Lstm {
  at::Tensor input, hidden, cell;
  std::vector<at::Tensor> weights;
  bool has_biases;
  int64_t layers;
  double dropout;
  bool train, bidirectional, batch_first;
};

// Sizes are symbolic, and eager would run the fused kernel, which takes any batch and any length.
bool needs_symbolic_lstm(const Lstm& lstm);

// Calls the operators that at::lstm calls: output, hidden state, cell state.
std::tuple<at::Tensor, at::Tensor, at::Tensor> symbolic_lstm(const Lstm& lstm);

}  // namespace magneto::record
