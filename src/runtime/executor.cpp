// How a graph is flattened into steps, and the loop that runs them.
#include "runtime/executor.h"

#include <ATen/core/List.h>
#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>

#include "runtime/errors.h"
#include "runtime/number_casts.h"
#include "runtime/shared_cast.h"

namespace magneto::runtime {

using c10::IValue;
using graph::Role;
using graph::ValueId;

Autocast::Autocast() {
  for (c10::DispatchKey key : {c10::DispatchKey::AutocastCPU, c10::DispatchKey::AutocastCUDA})
    if (!c10::impl::tls_is_dispatch_key_excluded(key)) keys_.push_back(key);
}

void Autocast::set(bool on) {
  if (on == on_) return;
  on_ = on;
  for (c10::DispatchKey key : keys_) c10::impl::tls_set_dispatch_key_excluded(key, !on);
}

// ---- construction

Executor::Executor(graph::Graph graph, ExecutorOptions options) : graph_(std::move(graph)), options_(options) {
  graph::fold_constant_copies(graph_);
  graph::remove_dead_ops(graph_);
  graph::verify(graph_);
  place_values();
  steps_.reserve(graph_.ops.size());
  args_.reserve(4 * graph_.ops.size());
  constants_.reserve(4 * graph_.ops.size());
  operands_.reserve(2 * graph_.ops.size());
  results_.reserve(graph_.ops.size());
  DirectViews views(graph_);
  kept_.emplace(graph_, views);
  for (size_t i = 0; i < graph_.ops.size(); ++i) flatten(graph_.ops[i], i, views);
  for (const graph::Op& op : graph_.ops) derives_ |= op.derives;
  plan_outputs();
  plan_deliveries();
  if (graph_.symbols) sizes_.emplace(graph_);
}

// Inputs take the first slots, in order, then state; results that are used take the following ones.
void Executor::place_values() {
  places_.resize(graph_.values.size());
  last_uses_.assign(graph_.values.size(), kNever);
  for (ValueId input : graph_.inputs) places_[input] = {Operand::Slot, static_cast<uint32_t>(slot_count_++)};
  for (ValueId state : graph_.states) places_[state] = {Operand::Slot, static_cast<uint32_t>(slot_count_++)};
  constant_tensors_ = ready_constants_ = graph_.constant_tensors;
  uint32_t index = 0;
  for (ValueId constant : graph_.constants) places_[constant] = {Operand::Constant, index++};
  for (size_t i = 0; i < graph_.ops.size(); ++i) {
    for (const auto& tensor : graph_.ops[i].tensors) last_uses_[tensor.value] = i;
    for (const auto& result : graph_.ops[i].results) {
      if (places_[result.value].kind == Operand::Absent) {
        places_[result.value] = {Operand::Slot, static_cast<uint32_t>(slot_count_++)};
      }
    }
  }
  for (ValueId output : graph_.outputs) last_uses_[output] = kForever;
}

// Of the op at `index`.
Operand Executor::operand(const graph::TensorRef& tensor, size_t index) {
  Operand place = places_[tensor.value];
  bool temporary = options_.owns_inputs || graph_.values[tensor.value].role == Role::Result;
  if (temporary && place.kind == Operand::Slot && last_uses_[tensor.value] == index) place.kind = Operand::LastUse;
  if (place.kind != Operand::Constant) return place;
  at::Tensor cast = cast_number(graph_, graph_.ops[index], tensor, constant_tensors_[place.index]);
  if (!cast.defined()) return place;
  constant_tensors_.push_back(constant_tensors_[place.index]);
  ready_constants_.push_back(std::move(cast));
  return {Operand::Constant, static_cast<uint32_t>(constant_tensors_.size() - 1)};
}

void Executor::flatten(const graph::Op& op, size_t index, const DirectViews& views) {
  size_t first_arg = args_.size();
  for (const IValue& value : op.args) {
    const auto& type = op.handle.schema().arguments()[args_.size() - first_arg].type();
    bool undefined = value.isNone() && type->kind() == c10::TypeKind::TensorType;
    args_.push_back({ArgSource::Constant, static_cast<uint32_t>(constants_.size()), 0});
    constants_.push_back(undefined ? IValue(at::Tensor()) : value);
  }
  for (const graph::SizeRef& size : op.sizes) {
    ArgSource& arg = args_[first_arg + size.position];
    if (arg.kind != ArgSource::Sized) {
      sized_.push_back({arg.index, {}});
      arg = {ArgSource::Sized, static_cast<uint32_t>(sized_.size() - 1), 0};
    }
    sized_[arg.index].items.push_back({size.item, size.expr, graph_.symbols->type(size.expr)});
  }
  for (const graph::TensorList& list : op.lists) {
    args_[first_arg + list.position] = {list.optional ? ArgSource::OptionalList : ArgSource::List,
                                        static_cast<uint32_t>(operands_.size()), list.size};
    operands_.resize(operands_.size() + list.size);
  }
  c10::SmallVector<uint32_t, 4> seen;  // operands of this op that take the tensor out of its slot
  for (const graph::TensorRef& tensor : op.tensors) {
    Operand from = operand(tensor, index);
    // The tensor may be moved out of its slot only by the last of several uses in one operator; and not if the
    // operator returns it, which then fills the slot again.
    if (from.kind == Operand::LastUse) {
      for (uint32_t earlier : seen) {
        if (operands_[earlier].index == from.index) operands_[earlier].kind = Operand::Slot;
      }
    }
    ArgSource& arg = args_[first_arg + tensor.position];
    uint32_t position;
    if (tensor.item == graph::TensorRef::kWhole) {
      position = static_cast<uint32_t>(operands_.size());
      arg = {ArgSource::Tensor, position, 0};
      operands_.push_back(from);
    } else {
      position = arg.index + static_cast<uint32_t>(tensor.item);
      operands_[position] = from;
    }
    if (from.kind == Operand::LastUse) seen.push_back(position);
  }
  const std::vector<graph::TensorRef> results = flatten_results(op, index);
  std::optional<DirectView> view = views.of(op, results);
  max_args_ = std::max(max_args_, op.args.size());
  steps_.push_back({op.handle, static_cast<uint32_t>(args_.size()), static_cast<uint32_t>(results_.size()), 0,
                    op.grad_mode, op.below_inplace, op.autocast, op.inference, op.shared_cast, -1, -1, -1});
  if (view) {
    for (const graph::TensorRef& result : results)
      if (kept_->place(result.value) != KeptResults::kNone) view->kept.push_back(kept_->place(result.value));
    steps_.back().view = static_cast<int32_t>(views_.size());
    views_.push_back(std::move(*view));
  }
  if (kept_->kernel(index)) flatten_kept(index, first_arg);
  if (op.expected.isNone()) return;
  steps_.back().expected = static_cast<int32_t>(expected_.size());
  expected_.push_back(op.expected);
}

void Executor::flatten_kept(size_t index, size_t first_arg) {
  const graph::Op& op = graph_.ops[index];
  KeptStep kept{kept_->kernel(index), kept_->place(op.results[0].value), {}, {}};
  for (const graph::TensorRef& tensor : op.tensors) {
    const ArgSource& arg = args_[first_arg + tensor.position];
    uint32_t place =
        tensor.item == graph::TensorRef::kWhole ? arg.index : arg.index + static_cast<uint32_t>(tensor.item);
    bool is_fixed = operands_[place].kind == Operand::Constant || kept_->place(tensor.value) != KeptResults::kNone;
    if (!is_fixed) kept.checks.push_back({place, tensor.value});
    if (operands_[place].kind == Operand::LastUse) kept.released.push_back(operands_[place].index);
  }
  steps_.back().kept = static_cast<int32_t>(kept_steps_.size());
  kept_steps_.push_back(std::move(kept));
}

// Those that somebody uses.
std::vector<graph::TensorRef> Executor::flatten_results(const graph::Op& op, size_t index) {
  std::vector<graph::TensorRef> used;
  for (const graph::TensorRef& result : op.results) {
    const Operand& place = places_[result.value];
    if (place.kind != Operand::Slot) continue;  // a constant that was written and returned
    if (graph::is_state(graph_.values[result.value].role)) continue;
    if (last_uses_[result.value] == kNever) continue;
    if (last_uses_[result.value] != kForever && last_uses_[result.value] <= index) continue;
    results_.push_back({result.position, result.item, place.index});
    used.push_back(result);
  }
  return used;
}

void Executor::plan_outputs() {
  for (size_t i = 0; i < graph_.outputs.size(); ++i) {
    ValueId value = graph_.outputs[i];
    Output output{graph_.values[value].role, places_[value].index, -1};
    if (output.role == Role::Size) output.index = graph_.values[value].shape[0];
    for (size_t k = 0; k < i; ++k) {
      if (graph_.outputs[k] == value) output.same_as = static_cast<int32_t>(k);
    }
    outputs_.push_back(output);
  }
}

// An output is ready behind the last operator that has to do with its memory.
void Executor::plan_deliveries() {
  std::vector<size_t> steps_of_memory(graph_.values.size(), 0);  // how many steps until it is left alone
  for (size_t i = 0; i < graph_.ops.size(); ++i) {
    for (const auto& tensor : graph_.ops[i].tensors) steps_of_memory[graph_.values[tensor.value].memory] = i + 1;
    for (const auto& result : graph_.ops[i].results) steps_of_memory[graph_.values[result.value].memory] = i + 1;
  }
  auto steps_before = [&](uint32_t output) {
    const graph::Value& value = graph_.values[graph_.outputs[output]];
    return value.role == Role::Size ? 0 : steps_of_memory[value.memory];
  };
  for (uint32_t i = 0; i < outputs_.size(); ++i) deliveries_.push_back(i);
  std::ranges::stable_sort(deliveries_, {}, steps_before);
  auto next = deliveries_.begin();
  auto ready_after = [&](size_t steps) {
    next = std::find_if(next, deliveries_.end(), [&](uint32_t output) { return steps_before(output) > steps; });
    return static_cast<uint32_t>(next - deliveries_.begin());
  };
  ready_at_once_ = ready_after(0);
  for (size_t i = 0; i < steps_.size(); ++i) steps_[i].deliveries_end = ready_after(i + 1);
}

// ---- running

IValue Executor::make_list(const ArgSource& source, Run& run) const {
  auto take = [&](const Operand& from) -> at::Tensor {
    switch (from.kind) {
      case Operand::Slot: return run.slots[from.index];
      case Operand::LastUse: return std::move(run.slots[from.index]);
      case Operand::Constant: return run.constants[from.index];
      case Operand::Absent: break;
    }
    return {};
  };
  if (source.kind == ArgSource::List) {
    c10::List<at::Tensor> list;
    list.reserve(source.count);
    for (uint32_t i = 0; i < source.count; ++i) list.push_back(take(operands_[source.index + i]));
    return list;
  }
  c10::List<std::optional<at::Tensor>> list;
  list.reserve(source.count);
  for (uint32_t i = 0; i < source.count; ++i) {
    const Operand& from = operands_[source.index + i];
    list.push_back(from.kind == Operand::Absent ? std::optional<at::Tensor>() : std::optional(take(from)));
  }
  return list;
}

IValue Executor::make_sized(const SizedArg& arg, const Numbers& numbers) const {
  auto number = [&](const SizedArg::Item& item) -> IValue {
    if (item.type == graph::Symbols::Type::Float) return numbers[item.expr].real;
    if (item.type == graph::Symbols::Type::Bool) return numbers[item.expr].integer != 0;
    return numbers[item.expr].integer;
  };
  if (arg.items[0].index == graph::TensorRef::kWhole) return number(arg.items[0]);
  c10::List<IValue> list = constants_[arg.constant].toList().copy();
  for (const SizedArg::Item& item : arg.items) list.set(static_cast<size_t>(item.index), number(item));
  return list;
}

void Executor::push_arguments(const Step& step, Run& run, c10::Stack& stack) const {
  for (; run.next_arg < step.args_end; ++run.next_arg) {
    const ArgSource& source = args_[run.next_arg];
    if (source.kind == ArgSource::Constant) {
      stack.push_back(constants_[source.index]);
    } else if (source.kind == ArgSource::Tensor) {
      const Operand& from = operands_[source.index];
      if (from.kind == Operand::Slot) {
        stack.emplace_back(run.slots[from.index]);
      } else if (from.kind == Operand::LastUse) {
        stack.emplace_back(std::move(run.slots[from.index]));
      } else {
        stack.emplace_back(run.constants[from.index]);
      }
    } else if (source.kind == ArgSource::Sized) {
      stack.push_back(make_sized(sized_[source.index], run.numbers));
    } else {
      stack.push_back(make_list(source, run));
    }
  }
}

bool Executor::view_directly(const Step& step, Run& run) const {
  const DirectView& view = views_[static_cast<size_t>(step.view)];
  const Operand& from = operands_[args_[run.next_arg].index];
  const at::Tensor& viewed = from.kind == Operand::Constant ? run.constants[from.index] : run.slots[from.index];
  if (run.kept && !view.kept.empty()) {
    for (uint32_t place : view.kept) run.slots[results_[run.next_result++].slot] = run.kept[place];
  } else {
    if (!view.is_for(viewed)) return false;
    for (const DirectView::Layout& result : view.results)
      run.slots[results_[run.next_result++].slot] = result.over(viewed);
  }
  if (from.kind == Operand::LastUse) run.slots[from.index].reset();
  run.next_arg = step.args_end;
  return true;
}

// False: the operator has to be called after all.
bool Executor::write_kept(const Step& step, Run& run) const {
  const KeptStep& kept = kept_steps_[static_cast<size_t>(step.kept)];
  const StepArguments arguments(&args_[run.next_arg], operands_.data(), constants_.data(), run.slots.data(),
                                run.constants.data());
  for (const KeptStep::Check& check : kept.checks) {
    if (KeptResults::is_as_recorded(arguments.operand(check.operand), graph_.values[check.value])) continue;
    run.kept = nullptr;  // nor will what follows be
    return false;
  }
  at::Tensor* results = run.kept + kept.first;
  kept.kernel(arguments, results);
  for (uint32_t slot : kept.released) run.slots[slot].reset();
  for (; run.next_result < step.results_end; ++run.next_result) {
    const ResultTarget& target = results_[run.next_result];
    run.slots[target.slot] = results[target.position];
  }
  run.next_arg = step.args_end;
  return true;
}

// Several outputs may be one tensor: the last of them takes it out of its slot.
void Executor::deliver(Run& run, uint32_t end, const Sink& sink) const {
  for (uint32_t& next = run.next_delivery; next < end; ++next) {
    const Output& output = outputs_[deliveries_[next]];
    bool is_needed = false;
    for (uint32_t later = next + 1; later < end; ++later)
      is_needed |= graph_.outputs[deliveries_[later]] == graph_.outputs[deliveries_[next]];
    if (output.role == Role::Constant)
      sink(deliveries_[next], at::Tensor(graph_.constant_tensors[output.index]));
    else if (is_needed)
      sink(deliveries_[next], at::Tensor(run.slots[output.index]));
    else
      sink(deliveries_[next], std::move(run.slots[output.index]));
  }
}

std::optional<std::string> Executor::bind(const Slots& slots, std::span<const int64_t> given, Numbers& numbers) const {
  return sizes_ ? sizes_->bind(slots, given, numbers) : std::nullopt;
}

bool Executor::execute(Slots& slots, const Numbers& numbers, const Sink* sink, const graph::Op** failed) const {
  const c10::impl::LocalDispatchKeySet keys_outside = c10::impl::tls_local_dispatch_key_set();
  std::optional<c10::impl::ExcludeDispatchKeyGuard> below_autograd;  // puts back all keys, so it ends last
  if (!derives_) below_autograd.emplace(c10::autograd_dispatch_keyset);
  Autocast autocast;
  autocast.set(false);
  c10::AutoGradMode restore_grad_mode(c10::GradMode::is_enabled());
  struct RestoreInplace {
    bool before = c10::impl::tls_is_dispatch_key_excluded(c10::DispatchKey::ADInplaceOrView);
    ~RestoreInplace() { c10::impl::tls_set_dispatch_key_excluded(c10::DispatchKey::ADInplaceOrView, before); }
  } inplace;
  bool grad_mode = c10::GradMode::is_enabled();
  bool below_inplace = inplace.before;
  auto set_modes = [&](bool grad, bool below, bool cast) {
    if (grad != grad_mode) c10::GradMode::set_enabled(grad_mode = grad);
    if (below != below_inplace) {
      c10::impl::tls_set_dispatch_key_excluded(c10::DispatchKey::ADInplaceOrView, below_inplace = below);
    }
    autocast.set(cast);
  };
  std::optional<c10::InferenceMode> inference;
  bool grad_outside = grad_mode;
  auto set_inference = [&](bool on) {
    set_modes(inference ? false : grad_outside, inplace.before, false);  // as it found them, and leaves them
    if (on)
      inference.emplace(true);
    else
      inference.reset();
    grad_mode = c10::GradMode::is_enabled();
  };
  c10::Stack stack;
  stack.reserve(max_args_);
  const bool is_watched = !(keys_outside.included_ - c10::default_included_set).empty();  // by a mode or a recorder
  Run run{slots, numbers, is_watched ? constant_tensors_ : ready_constants_};
  std::unique_ptr<KeptResults::Tensors> kept;
  if (!is_watched && !at::getStepCallbacksUnlessEmpty(at::RecordScope::FUNCTION)) kept = kept_->take();
  if (kept) run.kept = kept->data();
  auto give = [&](uint32_t end) {
    if (!sink || run.next_delivery == end) return;
    c10::impl::ForceDispatchKeyGuard keys(keys_outside);
    c10::AutoGradMode grad(grad_outside);
    deliver(run, end, *sink);
  };
  // Who comes next in the block of autocast may want a gradient, although nobody does here. On a GPU that may be a
  // capture into a CUDA graph, whose memory is not for others.
  auto share_cast = [&](c10::Stack& stack) {
    const at::Tensor& parameter = stack[0].toTensor();
    auto key = parameter.is_cpu() ? c10::DispatchKey::AutocastCPU : c10::DispatchKey::AutocastCUDA;
    if (keys_outside.excluded_.has(key) || !autocast_keeps(parameter, stack[1].toScalarType())) return false;
    if (!derives_ && !parameter.is_cpu()) return false;
    c10::impl::ForceDispatchKeyGuard keys(keys_outside);
    c10::impl::ExcludeDispatchKeyGuard off(key);
    at::Tensor cast = shared_cast(parameter, stack[1].toScalarType());
    stack = {std::move(cast)};
    return true;
  };
  give(ready_at_once_);
  for (const Step& step : steps_) {
    if (failed) *failed = &graph_.ops[static_cast<size_t>(&step - steps_.data())];
    if (step.view >= 0 && !is_watched && view_directly(step, run)) {
      give(step.deliveries_end);
      continue;
    }
    if (step.inference != inference.has_value()) set_inference(step.inference);
    if (step.kept >= 0 && run.kept) {
      set_modes(step.grad_mode, true, false);
      if (write_kept(step, run)) {
        give(step.deliveries_end);
        continue;
      }
    }
    push_arguments(step, run, stack);
    set_modes(step.grad_mode, derives_ ? inplace.before : step.below_inplace, step.autocast);
    if (!step.shared_cast || !share_cast(stack)) step.op.callBoxed(&stack);
    if (step.expected >= 0 && !graph::same_number(stack.back(), expected_[static_cast<size_t>(step.expected)])) {
      return false;
    }
    for (; run.next_result < step.results_end; ++run.next_result) {
      const ResultTarget& result = results_[run.next_result];
      if (result.item < 0) {
        slots[result.slot] = std::move(stack[result.position]).toTensor();
      } else {
        slots[result.slot] = stack[result.position].toListRef()[static_cast<size_t>(result.item)].toTensor();
      }
    }
    stack.clear();
    give(step.deliveries_end);
  }
  if (kept) kept_->put_back(std::move(kept));
  return true;
}

}  // namespace magneto::runtime
