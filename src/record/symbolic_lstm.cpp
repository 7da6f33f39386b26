// The fused layers that an LSTM is made of.
#include "record/symbolic_lstm.h"

#include <ATen/Context.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/mkldnn_rnn_layer.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "record/trace_tensor.h"

namespace magneto::record {
namespace {

using at::Tensor;

constexpr int64_t kLstm = 2;  // as the operator numbers the kinds of networks

// One layer in one direction; `index` counts these.
std::tuple<Tensor, Tensor, Tensor, Tensor> run_layer(const Lstm& lstm, const Tensor& input, const Tensor& hidden,
                                                     const Tensor& cell, int64_t index) {
  const Tensor* weights = lstm.weights.data() + index * (lstm.has_biases ? 4 : 2);
  auto bias = [&](int64_t i) {
    return lstm.has_biases ? weights[i + 2] : at::zeros(weights[i].sizes(), weights[i].options().layout(c10::kStrided));
  };
  bool reverse = lstm.bidirectional && index % 2 == 1;
  Tensor hidden_now = hidden.select(0, index), cell_now = cell.select(0, index);
  Tensor hidden_bias = bias(1), input_bias = bias(0);
  return at::mkldnn_rnn_layer(input, weights[0], weights[1], input_bias, hidden_bias, hidden_now, cell_now, reverse,
                              /*batch_sizes=*/{}, kLstm, hidden.sym_size(2).guard_int(__FILE__, __LINE__), lstm.layers,
                              lstm.has_biases, lstm.bidirectional, lstm.batch_first, lstm.train);
}

bool is_float_on_cpu(const Tensor& tensor) {
  return tensor.is_cpu() && tensor.scalar_type() == c10::kFloat && tensor.layout() == c10::kStrided;
}

}  // namespace

bool needs_symbolic_lstm(const Lstm& lstm) {
  if (!is_symbolic(lstm.hidden) && !is_symbolic(lstm.input)) return false;
  if (!at::hasMKLDNN() || !at::globalContext().userEnabledMkldnn()) return false;
  if (lstm.input.dim() != 3 || lstm.hidden.dim() != 3 || lstm.cell.dim() != 3) return false;
  if (!is_float_on_cpu(lstm.input) || !is_float_on_cpu(lstm.hidden) || !is_float_on_cpu(lstm.cell)) return false;
  if (!std::ranges::all_of(lstm.weights, is_float_on_cpu)) return false;
  auto directions = lstm.bidirectional ? 2 : 1;
  bool complete = static_cast<int64_t>(lstm.weights.size()) == lstm.layers * directions * (lstm.has_biases ? 4 : 2);
  bool projects = lstm.hidden.sym_size(2) != lstm.cell.sym_size(2);
  return complete && !projects && lstm.input.sym_numel() != 0;
}

std::tuple<Tensor, Tensor, Tensor> symbolic_lstm(const Lstm& lstm) {
  Tensor input = (lstm.batch_first ? lstm.input.transpose(0, 1) : lstm.input).contiguous();
  Tensor hidden = lstm.hidden.contiguous(), cell = lstm.cell.contiguous();
  const int64_t directions = lstm.bidirectional ? 2 : 1;
  std::vector<Tensor> last_hidden, last_cell;
  for (int64_t layer = 0; layer < lstm.layers; ++layer) {
    std::vector<Tensor> outputs;
    for (int64_t direction = 0; direction < directions; ++direction) {
      auto results = run_layer(lstm, input, hidden, cell, layer * directions + direction);
      outputs.push_back(std::get<0>(results));
      last_hidden.push_back(std::get<1>(results));
      last_cell.push_back(std::get<2>(results));
    }
    input = directions == 1 ? outputs[0] : at::cat(outputs, -1);
    if (lstm.dropout != 0 && lstm.train && layer < lstm.layers - 1) input = at::dropout(input, lstm.dropout, true);
  }
  Tensor hidden_out = at::stack(last_hidden), cell_out = at::stack(last_cell);
  return {lstm.batch_first ? input.transpose(0, 1) : input, hidden_out, cell_out};
}

}  // namespace magneto::record
