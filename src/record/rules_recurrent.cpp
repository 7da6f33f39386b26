// Rules for recurrent networks on the CPU: fused layers, and those that torch unrolls.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/mkldnn_rnn_layer.h>
#include <ATen/ops/zeros.h>

#include "record/rules_common.h"
#include "record/sym_node.h"

namespace magneto::record::rules {
namespace {

// What the library keeps for a backward, if it expects one, is its secret: ask it, with zeros of the same shapes. If
// these are symbolic, the answer holds for this call only.
at::Tensor workspace(Args args) {
  c10::impl::ExcludeDispatchKeyGuard real(c10::DispatchKeySet(kNoteKey) |
                                          c10::autograd_dispatch_keyset_with_ADInplaceOrView);
  auto zeros = [&](size_t i) {
    const at::Tensor& tensor = args[i].toTensor();
    std::vector<int64_t> sizes;
    for (const SymInt& size : tensor.sym_sizes()) sizes.push_back(hint_of(size));
    return at::zeros(sizes, tensor.scalar_type());
  };
  auto results =
      at::mkldnn_rnn_layer(zeros(0), zeros(1), zeros(2), zeros(3), zeros(4), zeros(5), zeros(6), args[7].toBool(),
                           args[8].toIntVector(), args[9].toInt(), args[10].toInt(), args[11].toInt(),
                           args[12].toBool(), args[13].toBool(), args[14].toBool(), args[15].toBool());
  const at::Tensor& kept = std::get<3>(results);
  if (!kept.defined()) return {};
  for (const SymInt& size : args[0].toTensor().sym_sizes()) {
    if (size.is_heap_allocated()) return make_for(kept, {make_unknown(size, kept.numel())});
  }
  return make_for(kept, kept.sym_sizes());
}

// (input, weights and biases (4), hx, cx, reverse, batch_sizes, mode, hidden_size, num_layers, has_biases,
// bidirectional, batch_first, train)
bool mkldnn_layer(Args args, Stack& results) {
  const at::Tensor &input = args[0].toTensor(), &state = args[5].toTensor(), &cell = args[6].toTensor();
  if (input.dim() != 3 || state.dim() != 2 || input.scalar_type() != ScalarType::Float) return false;
  if (!args[8].toIntVector().empty()) return false;
  return give(results, make_for(input, {input.sym_size(0), input.sym_size(1), args[10].toInt()}),
              make_for(input, state.sym_sizes()), make_for(input, cell.sym_sizes()), workspace(args));
}

// (input, weights and biases (4), hx, cx, output, hy, cy, ...)
bool mkldnn_layer_backward(Args args, Stack& results) {
  for (size_t i = 0; i < 7; ++i) {
    if (!given(args[i])) return false;
  }
  for (size_t i = 0; i < 7; ++i) give(results, make_for(args[i].toTensor(), args[i].toTensor().sym_sizes()));
  return true;
}

// (input, hx, params, has_biases, num_layers, dropout, train, bidirectional, batch_first), as a whole
bool unrolled(Args args, Stack& results) {
  const at::Tensor &input = args[0].toTensor(), &state = args[1].toTensor();
  if (input.dim() != 3 || state.dim() != 3 || !input.is_cpu() || !is(input.scalar_type(), kFloating)) return false;
  if (product(input.sym_sizes()) == 0 || state.scalar_type() != input.scalar_type()) return false;
  const int64_t directions = args[7].toBool() ? 2 : 1, by_batch = args[8].toBool() ? 0 : 1;
  auto weights = args[2].toTensorVector();
  if (static_cast<int64_t>(weights.size()) != args[4].toInt() * directions * (args[3].toBool() ? 4 : 2)) return false;
  if (weights[0].dim() != 2 || weights[0].sym_size(1) != input.sym_size(2)) return false;
  SymInt batch = input.sym_size(by_batch), length = input.sym_size(1 - by_batch);
  if (state.sym_size(0) != args[4].toInt() * directions || state.sym_size(1) != batch) return false;
  Sizes sizes = {length, batch, state.sym_size(2) * directions};
  Sizes strides = contiguous_strides(sizes);
  if (!by_batch) {
    std::swap(sizes[0], sizes[1]);
    std::swap(strides[0], strides[1]);
  }
  return give(results, make_trace(sizes, strides, 0, input.scalar_type(), input.device()),
              make_for(state, state.sym_sizes()));
}

constexpr Row kRecurrentRules[] = {
    {"aten::gru.input", unrolled},
    {"aten::rnn_tanh.input", unrolled},
    {"aten::rnn_relu.input", unrolled},
    {"aten::mkldnn_rnn_layer", mkldnn_layer},
    {"aten::mkldnn_rnn_layer_backward", mkldnn_layer_backward},
};

}  // namespace

Rows recurrent_rules() { return kRecurrentRules; }

}  // namespace magneto::record::rules
