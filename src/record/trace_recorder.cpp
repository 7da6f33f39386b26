// How real tensors and trace tensors take each other's place in a recording.
#include "record/trace_recorder.h"

#include "record/infer.h"
#include "record/recorder_keys.h"
#include "record/tensor_items.h"
#include "record/trace_tensor.h"

namespace magneto::record {

using c10::OperatorHandle;
using c10::Stack;
using graph::SchemaInfo;

// ---- real tensors

TraceRecorder::Pair& TraceRecorder::pair_for(const at::Tensor& real) {
  auto [found, is_new] = pairs_.emplace(real.unsafeGetTensorImpl(), Pair{real, {}});
  Pair& pair = found->second;
  if (!is_new) return pair;
  at::Tensor& memory = memories_[real.storage().unsafeGetStorageImpl()];
  if (!memory.defined()) {
    pair.trace = memory = trace_of(real);
  } else {
    pair.trace =
        make_trace_view(memory, real.sym_sizes(), real.sym_strides(), real.sym_storage_offset(), real.scalar_type());
    pair.trace._set_conj(real.is_conj());
    pair.trace._set_neg(real.is_neg());
  }
  return pair;
}

at::Tensor TraceRecorder::trace_for(const at::Tensor& real) {
  if (real.unsafeGetTensorImpl()->is_wrapped_number()) return trace_of(real);
  Pair& pair = pair_for(real);
  if (!pair.is_placed) {
    if (const graph::ValueId* value = find(real)) {
      share_memory(pair.trace, *value);
      pair.is_placed = true;
    }
  }
  return pair.trace;
}

at::Tensor TraceRecorder::stand_in(const at::Tensor& argument) {
  Pair& pair = pair_for(argument);
  pair.is_argument = pair.is_placed = true;
  if (argument.requires_grad()) pair.trace.set_requires_grad(true);
  return pair.trace;
}

at::Tensor TraceRecorder::stand_in_for_gradient(const at::Tensor& output) {
  if (!is_trace(output)) return trace_of(Recorder::stand_in_for_gradient(output));
  static const auto empty_like = c10::Dispatcher::singleton().findSchemaOrThrow("aten::empty_like", "");
  Stack stack{output, {}, {}, {}, {}, {}};
  infer(empty_like, graph::schema_info(empty_like), output.key_set(), &stack);
  return stack[0].toTensor();
}

std::string TraceRecorder::why_not_recordable(const at::Tensor& tensor) const {
  return is_trace(tensor) ? "" : Recorder::why_not_recordable(tensor);
}

// ---- operators

// The program may reach an argument in another way, too.
void TraceRecorder::prepare(const SchemaInfo& info, Stack* stack) {
  for (size_t i = stack->size() - info.written.size(); i < stack->size(); ++i) {
    map_tensors((*stack)[i], [this](const at::Tensor& tensor) {
      if (is_trace(tensor)) return tensor;
      auto found = pairs_.find(tensor.unsafeGetTensorImpl());
      return found != pairs_.end() && found->second.is_argument ? found->second.trace : tensor;
    });
  }
}

void TraceRecorder::pass(const OperatorHandle& op, const SchemaInfo& info, c10::DispatchKeySet keys, Stack* stack) {
  execute(op, info, kNoteKey, keys, stack);
}

void TraceRecorder::lifted(const OperatorHandle&, c10::DispatchKeySet, Stack* stack) {
  stack->back() = trace_of(stack->back().toTensor());
}

void TraceRecorder::execute(const OperatorHandle& op, const SchemaInfo& info, c10::DispatchKey,
                            c10::DispatchKeySet keys, Stack* stack) {
  c10::SmallVector<std::pair<at::Tensor, at::Tensor>, 4> replaced;
  size_t base = stack->size() - info.written.size();
  for (size_t i = base; i < stack->size(); ++i) {
    map_tensors((*stack)[i], [&](const at::Tensor& tensor) {
      if (is_trace(tensor)) return tensor;
      return replaced.emplace_back(tensor, trace_for(tensor)).second;
    });
  }
  try {
    infer(op, info, keys, stack);
  } catch (const NotInferable& error) {
    refuse(error.kind, error.what_without_backtrace());
    throw;
  }
  // The program goes on with its own tensors, where an operator returns its argument.
  for (const auto& [real, trace] : replaced) {
    if (trace.sizes() != real.sizes() || trace.strides() != real.strides()) {
      unsupported("a tensor that is not an argument gets another shape in place (" + info.name + ")");
    }
    for (size_t i = base; i < stack->size(); ++i) {
      map_tensors((*stack)[i], [&](const at::Tensor& result) { return result.is_same(trace) ? real : result; });
    }
  }
}

}  // namespace magneto::record
