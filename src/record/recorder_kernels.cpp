// Registers the kernels that lead to the recorder of the thread.
#include "record/recorder_kernels.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include "graph/schema_info.h"
#include "record/doors.h"
#include "record/infer.h"
#include "record/recorder.h"
#include "record/recorder_keys.h"
#include "record/symbolic_composites.h"
#include "record/symbolic_lstm.h"
#include "record/symbolic_matmul.h"
#include "record/symbolic_resize.h"

namespace magneto::record {
namespace {

using c10::DispatchKey;
using c10::DispatchKeySet;
using c10::OperatorHandle;
using c10::Stack;

void note_kernel(const OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
  if (is_inferring()) return infer(op, graph::schema_info(op), keys, stack);
  if (Recorder* recorder = Recorder::active()) return recorder->call(op, keys, stack);
  // The keys travelled to another thread, or a guard brought them back after the recording had stopped.
  run_below(op, kNoteKey, keys, stack);
}

void gate_refuse_kernel(const OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
  if (Recorder* recorder = Recorder::active()) {
    recorder->refuse(Refusal::DataDependent,
                     "the contents of a tensor decide what happens (" + graph::schema_info(op).name + ")");
  }
  run_below(op, kGateKey, keys, stack);
}

// With gradients, these operators ask others.
bool needs_gradient(const Stack& stack) {
  if (!c10::GradMode::is_enabled()) return false;
  return std::any_of(stack.begin(), stack.end(), [](const c10::IValue& argument) {
    return argument.isTensor() && argument.toTensor().defined() && argument.toTensor().requires_grad();
  });
}

void gate_leaf_kernel(const OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
  if (needs_gradient(*stack)) {
    return op.redispatchBoxed(keys & DispatchKeySet(DispatchKeySet::FULL_AFTER, kGateKey), stack);
  }
  if (Recorder* recorder = Recorder::active()) {
    return recorder->call_as_leaf(op, graph::schema_info(op), kGateKey, keys, stack);
  }
  run_below(op, kGateKey, keys, stack);
}

void gate_matmul_kernel(const OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
  at::Tensor left = torch::jit::peek(*stack, 0, 2).toTensor(), right = torch::jit::peek(*stack, 1, 2).toTensor();
  if (!needs_symbolic_matmul(left, right)) {
    return op.redispatchBoxed(keys & DispatchKeySet(DispatchKeySet::FULL_AFTER, kGateKey), stack);
  }
  torch::jit::drop(*stack, 2);
  stack->emplace_back(symbolic_matmul(std::move(left), std::move(right)));
}

template <bool (*instead)(Stack&)>
void gate_composite_kernel(const OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
  if (instead(*stack)) return;
  op.redispatchBoxed(keys & DispatchKeySet(DispatchKeySet::FULL_AFTER, kGateKey), stack);
}

void gate_unrolled_kernel(const OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
  if (stays_whole(torch::jit::last(*stack, 9))) return gate_leaf_kernel(op, keys, stack);
  op.redispatchBoxed(keys & DispatchKeySet(DispatchKeySet::FULL_AFTER, kGateKey), stack);
}

void gate_resize_kernel(const OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
  if (resize_symbolically(op, *stack)) return;
  op.redispatchBoxed(keys & DispatchKeySet(DispatchKeySet::FULL_AFTER, kGateKey), stack);
}

void gate_max_pool1d_kernel(const OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
  if (needs_gradient(*stack) && pool_symbolically(*stack)) return;
  gate_leaf_kernel(op, keys, stack);
}

// It asks whether all classes are there, and raises an error if not: so it does when it is called as a whole.
void gate_one_hot_kernel(const OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
  if (follows_contents(graph::schema_info(op), torch::jit::last(*stack, 2))) {
    return op.redispatchBoxed(keys & DispatchKeySet(DispatchKeySet::FULL_AFTER, kGateKey), stack);
  }
  gate_leaf_kernel(op, keys, stack);
}

void gate_lstm_kernel(const OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
  c10::ArrayRef<c10::IValue> args = torch::jit::last(*stack, 9);
  std::vector<at::Tensor> state = args[1].toTensorVector();
  bool complete = args[0].toTensor().defined() && state.size() == 2 && state[0].defined() && state[1].defined();
  Lstm lstm{args[0].toTensor(),
            complete ? state[0] : at::Tensor(),
            complete ? state[1] : at::Tensor(),
            args[2].toTensorVector(),
            args[3].toBool(),
            args[4].toInt(),
            args[5].toDouble(),
            args[6].toBool(),
            args[7].toBool(),
            args[8].toBool()};
  if (!complete || !needs_symbolic_lstm(lstm)) {
    return op.redispatchBoxed(keys & DispatchKeySet(DispatchKeySet::FULL_AFTER, kGateKey), stack);
  }
  auto [output, hidden, cell] = symbolic_lstm(lstm);
  torch::jit::drop(*stack, 9);
  torch::jit::push(*stack, std::move(output), std::move(hidden), std::move(cell));
}

// Composite operators that read the memory of their arguments without asking another operator.
constexpr std::array<const char*, 17> kReadsMemory = {"aten::lstm.data",
                                                      "aten::gru.data",
                                                      "aten::rnn_tanh.data",
                                                      "aten::rnn_relu.data",
                                                      "aten::_pad_packed_sequence",
                                                      "aten::tensor_split.tensor_indices_or_sections",
                                                      "aten::ctc_loss.Tensor",
                                                      "aten::_reshape_from_tensor",
                                                      "aten::_choose_qparams_per_tensor",
                                                      "aten::choose_qparams_optimized",
                                                      "aten::_rowwise_prune",
                                                      "aten::_saturate_weight_to_fp16",
                                                      "aten::_sobol_engine_draw",
                                                      "aten::_sobol_engine_ff_",
                                                      "aten::_sobol_engine_scramble_",
                                                      "aten::_sobol_engine_initialize_state_",
                                                      "aten::from_file"};
// Composite operators that fill their result without asking another operator, but can be called as a whole.
constexpr std::array<const char*, 1> kWritesMemory = {"aten::_shape_as_tensor"};

template <auto* kernel>
void register_gate(c10::Dispatcher& dispatcher, const char* name, std::vector<c10::RegistrationHandleRAII>& held) {
  std::string_view text = name;
  size_t dot = text.find('.');
  c10::OperatorName op(std::string(text.substr(0, dot)),
                       dot == std::string_view::npos ? "" : std::string(text.substr(dot + 1)));
  if (!dispatcher.findSchema(op)) return;  // not in this version of torch
  held.push_back(dispatcher.registerImpl(op, kGateKey, c10::KernelFunction::makeFromBoxedFunction<kernel>(),
                                         std::nullopt, nullptr, "magneto"));
}

}  // namespace

std::string install_recorder() {
  auto& dispatcher = c10::Dispatcher::singleton();
  for (DispatchKey key : {kNoteKey, kGateKey}) {
    if (dispatcher.hasBackendFallbackForDispatchKey(key)) {
      return std::string("another library uses torch's dispatch key ") + c10::toString(key);
    }
  }
  // Never destroyed: torch may be gone before us when the process exits.
  auto& held = *new std::vector<c10::RegistrationHandleRAII>;
  held.push_back(
      dispatcher.registerFallback(kNoteKey, c10::KernelFunction::makeFromBoxedFunction<&note_kernel>(), "magneto"));
  held.push_back(dispatcher.registerFallback(kGateKey, c10::KernelFunction::makeFallthrough(), "magneto"));
  for (const char* name : kReadsMemory) register_gate<&gate_refuse_kernel>(dispatcher, name, held);
  for (const char* name : kWritesMemory) register_gate<&gate_leaf_kernel>(dispatcher, name, held);
  for (const char* name : resizing_operators()) register_gate<&gate_resize_kernel>(dispatcher, name, held);
  register_gate<&gate_max_pool1d_kernel>(dispatcher, "aten::max_pool1d", held);
  register_gate<&gate_one_hot_kernel>(dispatcher, "aten::one_hot", held);
  register_gate<&gate_matmul_kernel>(dispatcher, "aten::matmul", held);
  register_gate<&gate_lstm_kernel>(dispatcher, "aten::lstm.input", held);
  for (const char* name : {"aten::gru.input", "aten::rnn_tanh.input", "aten::rnn_relu.input"})
    register_gate<&gate_unrolled_kernel>(dispatcher, name, held);
  register_gate<&gate_composite_kernel<pad_sequence_symbolically>>(dispatcher, "aten::pad_sequence", held);
  register_gate<&gate_composite_kernel<kron_symbolically>>(dispatcher, "aten::kron", held);
  register_gate<&gate_composite_kernel<stft_symbolically>>(dispatcher, "aten::stft", held);
  return install_doors();
}

}  // namespace magneto::record
