// How recordings note operators, and when they refuse.
#include "record/recorder.h"

#include <ATen/SavedTensorHooks.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "graph/schema_info.h"
#include "record/global_state.h"
#include "record/infer.h"
#include "record/plain_tensor.h"
#include "record/recorder_keys.h"
#include "record/shared_casts.h"
#include "record/tensor_items.h"
#include "runtime/shared_cast.h"
#include "runtime/state.h"

namespace magneto::record {

using c10::DispatchKey;
using c10::DispatchKeySet;
using c10::IValue;
using c10::OperatorHandle;
using c10::Stack;
using graph::Role;
using graph::SchemaInfo;
using graph::TensorRef;
using graph::ValueId;

namespace {

constexpr size_t kExpectedOps = 256;
constexpr size_t kRoom = 2048;  // for operators: moving what is there costs more than memory that is never touched

template <class T>
void give_room_back(std::vector<T>& list) {
  if (list.size() < list.capacity() / 2) list.shrink_to_fit();
}

// Owned by its thread.
thread_local Recorder* active_recorder = nullptr;

void include_keys(bool on) {
  c10::impl::tls_set_dispatch_key_included(kNoteKey, on);
  c10::impl::tls_set_dispatch_key_included(kGateKey, on);
}

// The device types that autocast is on for.
uint8_t autocast_bits() {
  DispatchKeySet excluded = c10::impl::tls_local_dispatch_key_set().excluded_;
  auto on = [&](DispatchKey key) { return !excluded.has(key); };
  return static_cast<uint8_t>(on(DispatchKey::AutocastCPU) | on(DispatchKey::AutocastCUDA) << 1);
}

// Kernels that call other operators through the dispatcher.
bool has_parts(const SchemaInfo& info) {
  return info.name.starts_with("aten::_transformer_encoder_layer_fwd") ||
         info.name.starts_with("aten::_native_multi_head_attention");
}

// Inside an autograd kernel, where version counters and views are not kept for the parts of the operator.
bool is_below_inplace() { return c10::impl::tls_is_dispatch_key_excluded(DispatchKey::ADInplaceOrView); }

bool same_offset(const c10::SymInt& a, const c10::SymInt& b) {
  return a.is_heap_allocated() || b.is_heap_allocated() ? a.is_same(b) : a == b;
}

bool is_constant_argument(const IValue& value) {
  if (value.isNone() || value.isBool() || value.isInt() || value.isDouble() || value.isComplexDouble() ||
      value.isString() || value.isDevice() || value.isGenerator()) {
    return true;
  }
  if (!value.isList()) return false;
  for (const IValue& item : value.toListRef()) {
    if (!is_constant_argument(item)) return false;
  }
  return true;
}

struct NoSuchCast : std::exception {};

}  // namespace

Recorder* Recorder::active() { return active_recorder; }

Recorder::Recorder(RecorderOptions options)
    : options_(std::move(options)),
      autocast_at_start_(autocast_bits()),
      inference_at_start_(c10::InferenceMode::is_enabled()),
      attention_at_start_(attention_settings()) {
  graph_.values.reserve(2 * kRoom);
  graph_.ops.reserve(kRoom);
  known_.reserve(kExpectedOps);
  storages_.reserve(kExpectedOps);
  users_.reserve(kRoom);
}

void Recorder::start() {
  active_recorder = this;
  include_keys(true);
}

void Recorder::pause() {
  if (active_recorder != this) return;
  settle_casts();
  active_recorder = nullptr;
  include_keys(false);
}

void Recorder::stop() {
  pause();
  restore_gradients();
}

// What really runs goes on unrecorded. What does not would change the state that it meets: it stays with us, and each
// further operator is refused, too.
void Recorder::refuse(Refusal::Kind kind, std::string reason) {
  unsettled_casts_.clear();
  if (is_live()) stop();
  if (!refusal_) {
    refusal_ = Refusal{kind, std::move(reason)};
    uint32_t line = options_.lines ? lines_.current(graph_.lines) : graph::Op::kNoLine;
    if (line != graph::Op::kNoLine) refusal_->line = graph_.lines[line];
  } else if (is_live()) {
    return;
  }
  options_.on_refuse(*refusal_);
}

bool Recorder::unsupported(std::string reason) { return refuse(Refusal::Unsupported, std::move(reason)), false; }
bool Recorder::data_dependent(std::string reason) { return refuse(Refusal::DataDependent, std::move(reason)), false; }

// Autocast lets autograd take part in casts that nobody differentiates.
graph::Graph Recorder::take_graph() {
  stop();
  for (graph::Op& op : graph_.ops) op.derives &= gives_gradients_;
  if (is_live()) graph_.ran_on = std::this_thread::get_id();
  give_room_back(graph_.values);
  give_room_back(graph_.ops);
  return std::move(graph_);
}

void Recorder::rewind(const Mark& mark) {
  std::erase_if(unsettled_casts_, [&](const UnsettledCast& cast) { return cast.op >= mark.ops; });
  graph_.ops.erase(graph_.ops.begin() + static_cast<ptrdiff_t>(mark.ops), graph_.ops.end());
  graph_.values.erase(graph_.values.begin() + static_cast<ptrdiff_t>(mark.values), graph_.values.end());
  graph_.states.resize(mark.states);
  if (options_.holds_state) states_.resize(mark.states);
  graph_.constants.resize(mark.constants);
  graph_.constant_tensors.resize(mark.constants);
  graph_.outputs.resize(mark.outputs);
  for (auto known = known_.begin(); known != known_.end();)
    known = known->second.value < mark.values ? std::next(known) : known_.erase(known);
  auto is_gone = [&](const auto& user) { return user.value >= mark.values; };
  for (StorageUsers& users : users_)
    users.tensors.erase(std::remove_if(users.tensors.begin(), users.tensors.end(), is_gone), users.tensors.end());
  refusal_.reset();
}

// ---- inputs, state, outputs

at::Tensor Recorder::stand_in_for_gradient(const at::Tensor& output) {
  c10::impl::ExcludeDispatchKeyGuard off(kBothKeys);
  return at::ones_like(output.detach());
}

bool Recorder::add_input(const at::Tensor& tensor, std::string name) {
  if (refusal_) return false;
  if (auto found = known_.find(tensor.unsafeGetTensorImpl()); found != known_.end()) {
    Role role = graph_.values[found->second.value].role;
    if (graph::is_state(role)) return unsupported("an argument is also part of the state");
    if (role == Role::Argument) return unsupported("the same tensor is two arguments");
    return unsupported("a tensor made during the call came back as an argument");
  }
  return add_outside(tensor, Role::Argument, std::move(name), graph_.inputs);
}

bool Recorder::add_state(const at::Tensor& tensor, State state) {
  if (refusal_) return false;
  if (auto found = known_.find(tensor.unsafeGetTensorImpl()); found != known_.end()) {
    if (graph_.values[found->second.value].role != Role::Argument) return false;  // noted already, or made by the call
    return unsupported("an argument is also part of the state");
  }
  if (!add_outside(tensor, state.role, std::move(state.name), graph_.states)) return false;
  if (options_.holds_state) states_.push_back(tensor);
  return true;
}

bool Recorder::add_outside(const at::Tensor& tensor, Role role, std::string name, std::vector<ValueId>& list) {
  if (auto reason = why_not_recordable(tensor); !reason.empty()) return unsupported(reason);
  ValueId value = learn(tensor, add_value(role, tensor));
  graph_.values[value].name = std::move(name);
  if (options_.gradients && tensor.is_leaf()) gradients_.emplace_back(tensor, tensor.grad());
  place(tensor, value);
  if (graph_.values[graph_.values[value].memory].role == Role::Result) {
    return unsupported("memory made during the call came back under another name");
  }
  list.push_back(value);
  return true;
}

bool Recorder::add_output(const at::Tensor& tensor) {
  if (refusal_) return false;
  const ValueId* value = find(tensor);
  if (!value) return unsupported("an output that no recorded operator made");
  Role role = graph_.values[*value].role;
  if (role == Role::Constant) return unsupported("an output that is a constant");
  if (role == Role::Result && is_live() && tensor.numel() > 0) {
    const StorageUsers* users = users_of(tensor);
    if (users && users->unwritten) {
      return unsupported("an output whose memory no recorded operator wrote");
    }
  }
  if (!options_.gradients && tensor.requires_grad() && !is_derived(*value)) {
    return unsupported("an output with a gradient that no recorded operator leads to");
  }
  gives_gradients_ |= tensor.requires_grad();
  graph_.outputs.push_back(*value);
  return true;
}

// A run that lets autograd take part gives it what it has here. What C++ code makes by itself of recorded operators,
// like a node of a script function, is missing there.
bool Recorder::is_derived(ValueId value) const {
  return graph_.values[value].role != Role::Result || std::ranges::binary_search(derived_, value);
}

// A backward that accumulates is no operator, unless it adds to a .grad that is there.
void Recorder::restore_gradients() {
  for (const auto& [tensor, gradient] : gradients_) {
    if (tensor.grad().is_same(gradient)) continue;
    tensor.mutable_grad() = gradient;
    if (!refusal_) refusal_ = Refusal{Refusal::Unsupported, replaced_gradient()};
  }
  gradients_.clear();  // from now on they are the program's to set
}

// ---- which value a tensor is

std::string Recorder::why_not_recordable(const at::Tensor& tensor) const {
  return why_not_plain(*tensor.unsafeGetTensorImpl());
}

ValueId Recorder::add_value(Role role, const at::Tensor& tensor) { return graph_.add_value(role, tensor); }

bool Recorder::looks_like(const at::Tensor& tensor, const graph::Value& value) const {
  return value.dtype == tensor.scalar_type() && tensor.sizes() == value.sizes && tensor.strides() == value.strides;
}

Recorder::StorageUsers* Recorder::users_of(const at::Tensor& tensor) {
  auto found = storages_.find(tensor.storage().unsafeGetStorageImpl());
  return found == storages_.end() ? nullptr : &users_[found->second];
}

Recorder::StorageUsers& Recorder::add_users(const at::Tensor& tensor, ValueId memory) {
  auto next = static_cast<uint32_t>(users_.size());
  auto [known, is_new] = storages_.emplace(tensor.storage().unsafeGetStorageImpl(), next);
  if (is_new) users_.emplace_back(tensor.storage().getWeakStorageImpl(), memory);
  return users_[known->second];
}

Recorder::StorageUsers& Recorder::place(const at::Tensor& tensor, ValueId value) {
  StorageUsers& users = add_users(tensor, value);
  graph_.values[value].memory = users.memory;
  return users;
}

void Recorder::share_memory(const at::Tensor& tensor, ValueId value) { add_users(tensor, graph_.values[value].memory); }

ValueId Recorder::learn(const at::Tensor& tensor, ValueId value) {
  known_.emplace(tensor.unsafeGetTensorImpl(), Known{WeakTensor(tensor.getIntrusivePtr()), value});
  return value;
}

// Without gradients it matters whether the tensors that live in a memory are gone.
void Recorder::forget(c10::TensorImpl* tensor) {
  if (!options_.gradients) return;
  auto known = known_.find(tensor);
  if (known != known_.end()) known_.erase(known);
}

void Recorder::forget(c10::StorageImpl* storage) {
  auto found = storages_.find(storage);
  if (found == storages_.end()) return;
  StorageUsers& users = users_[found->second];
  users.storage.reset();
  users.tensors.clear();
  storages_.erase(found);
}

const ValueId* Recorder::find(const at::Tensor& tensor) {
  auto found = known_.find(tensor.unsafeGetTensorImpl());
  return found != known_.end() ? &found->second.value : find_by_storage(tensor);
}

bool Recorder::User::is_at(const at::Tensor& other) const {
  return same_offset(offset, other.sym_storage_offset()) && is_conj == other.is_conj() && is_neg == other.is_neg();
}

// Autograd's view bookkeeping may replace a kernel's result by a shallow copy and drop the original. So a tensor that
// looks exactly like a result that is gone, over the same memory, is that result. What autograd saved for the backward
// comes back as a shallow copy, too, whose original may be alive: to an operator they are the same.
const ValueId* Recorder::find_by_storage(const at::Tensor& tensor) {
  if (!tensor.has_storage()) return nullptr;
  const StorageUsers* users = users_of(tensor);
  if (!users) return nullptr;
  for (auto user = users->tensors.rbegin(); user != users->tensors.rend(); ++user) {
    if (!user->is_at(tensor)) continue;
    if (!looks_like(tensor, graph_.values[user->value])) continue;
    if (!options_.gradients && !known_.at(user->tensor).tensor.expired()) continue;
    learn(tensor, user->value);
    return &known_.at(tensor.unsafeGetTensorImpl()).value;
  }
  return nullptr;
}

bool Recorder::admits(const at::Tensor& tensor) {
  if (find(tensor)) return true;
  std::optional<State> state = options_.adopt ? options_.adopt(tensor) : std::nullopt;
  return state && add_state(tensor, std::move(*state));
}

ValueId Recorder::add_constant(const at::Tensor& tensor) {
  ValueId value = graph_.add_value(Role::Constant, tensor);
  graph_.constants.push_back(value);
  graph_.constant_tensors.push_back(tensor);
  place(tensor, value);
  return learn(tensor, value);
}

// ---- one operator

bool Recorder::is_fixed(const at::Tensor& tensor) {
  const ValueId* value = find(tensor);
  return value ? fixed_.contain(graph_, *value) : tensor.unsafeGetTensorImpl()->is_wrapped_number();
}

std::optional<at::Tensor> Recorder::fixed_contents(const at::Tensor& tensor) {
  return is_fixed(tensor) ? contents_of(tensor) : std::nullopt;
}

bool Recorder::follows_fixed_contents(const SchemaInfo& info, const Stack& stack) {
  bool any = false, fixed = true;  // without tensors it asks about the machine
  size_t base = stack.size() - info.written.size();
  for (size_t i = base; i < stack.size(); ++i) {
    if (!decides(info, i - base)) continue;
    each_tensor(stack[i], [&](const at::Tensor& tensor) {
      any = true;
      fixed = fixed && is_fixed(tensor);
    });
  }
  return any && fixed;
}

bool Recorder::check_operator(const SchemaInfo& info, bool follows_contents) {
  // The sizes of its results may follow from contents, and nothing would tell.
  if (info.foreign) return unsupported("an operator that is not torch's own (" + info.name + ")");
  if (!follows_contents) return true;
  if (info.answer == graph::Answer::None) return data_dependent(sizes_from_contents(info));
  // A run that finds another number must be able to give up without a trace.
  if (info.answer == graph::Answer::Number && options_.answers && !had_effect_) return true;
  return data_dependent(value_asked(info));
}

// Contents that got into memory by another way than recorded operators would be missing from a replay.
bool Recorder::check_memory(const SchemaInfo& info, uint32_t position, const at::Tensor& tensor) {
  if (unwritten_ == 0) return true;
  StorageUsers* users = users_of(tensor);
  if (!users || !users->unwritten) return true;
  if (info.written[position]) {
    if (info.initialises) {
      users->unwritten = false;
      --unwritten_;
    }
    return true;
  }
  if (!is_live() || info.reads_metadata_only || tensor.numel() == 0) return true;
  return unsupported("memory that no recorded operator wrote is read (" + info.name + ")");
}

bool Recorder::take_tensor(graph::Op& noted, uint32_t position, int32_t item, const at::Tensor& tensor) {
  if (!tensor.defined()) return true;
  const SchemaInfo& info = *noted.info;
  const ValueId* found = find(tensor);
  if (!found && (admits(tensor) || admits_cast(tensor))) found = find(tensor);
  if (refusal_) return false;
  ValueId value;
  if (found) {
    value = *found;
    bool needs_gradient = tensor.requires_grad() && !options_.gradients;
    // Views require gradients if their base does, whatever the mode.
    if (needs_gradient && !noted.grad_mode) noted.derives |= info.returns_view && !info.writes && is_derived(value);
    if (needs_gradient && noted.grad_mode) {
      if (!is_derived(value)) return unsupported("a gradient that no recorded operator leads to (" + info.name + ")");
      // Such views are made plain inside the autograd kernel, by operators that are none of their own.
      if ((tensor.is_conj() || tensor.is_neg()) && !info.tracks_views)
        return unsupported("a conjugate or negative view where gradients are needed (" + info.name + ")");
      noted.derives = true;
    }
    if (info.written[position] && graph_.values[graph_.values[value].memory].role == Role::Constant) {
      return unsupported("a constant is written (" + info.name + ")");
    }
    if (!check_memory(info, position, tensor)) return false;
  } else if (!info.written[position] && tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
    value = add_constant(tensor);
  } else {
    std::string reason = why_not_recordable(tensor);
    if (reason.empty()) reason = "a constant tensor that is neither input nor state (" + info.name + ")";
    return unsupported(reason);
  }
  noted.tensors.push_back({position, item, value});
  return true;
}

// Autocast casts a parameter once in its block. What it had cast before the recording began is noted when it is met.
bool Recorder::admits_cast(const at::Tensor& tensor) {
  if (!is_live() || !autocast_at_start_) return false;
  at::Tensor parameter = parameter_of_cast(tensor);
  if (!parameter.defined() || !is_shared_cast(parameter, tensor) || !admits(parameter)) return false;
  static const auto to_copy = c10::Dispatcher::singleton().findSchemaOrThrow("aten::_to_copy", "");
  graph::Op noted = new_op(to_copy, graph::schema_info(to_copy));
  noted.grad_mode = noted.shared_cast = true;
  Stack arguments{parameter, tensor.scalar_type(), IValue(), IValue(), IValue(), false, IValue()}, results{tensor};
  if (!take_arguments(noted, arguments) || !take_results(noted, results)) return false;
  add_op(std::move(noted));
  return true;
}

// Autocast makes a cast that it does not find, which reaches us in the place of an operator: then there is none.
bool Recorder::is_shared_cast(const at::Tensor& parameter, const at::Tensor& cast) {
  struct Look {
    bool& flag;
    explicit Look(bool& looks) : flag(looks) { flag = true; }
    ~Look() { flag = false; }
  } look(looks_for_cast_);
  try {
    c10::impl::IncludeDispatchKeyGuard on(kNoteKey);
    return runtime::shared_cast(parameter, cast.scalar_type()).is_same(cast);
  } catch (const NoSuchCast&) {
    return false;
  }
}

void Recorder::settle_casts() {
  for (const auto& [op, parameter, cast] : std::exchange(unsettled_casts_, {}))
    graph_.ops[op].shared_cast = is_shared_cast(parameter, cast);
}

bool Recorder::take_arguments(graph::Op& noted, const Stack& stack) {
  size_t count = noted.info->written.size();
  size_t base = stack.size() - count;
  noted.args.resize(count);
  for (uint32_t i = 0; i < count; ++i) {
    const IValue& value = stack[base + i];
    if (value.isTensor()) {
      if (!take_tensor(noted, i, TensorRef::kWhole, value.toTensor())) return false;
    } else if (value.isList() && (value.isTensorList() || value.isOptionalTensorList())) {
      const auto items = value.toListRef();
      noted.lists.push_back({i, static_cast<uint32_t>(items.size()), value.isOptionalTensorList()});
      for (size_t k = 0; k < items.size(); ++k) {
        if (items[k].isNone()) continue;
        if (!take_tensor(noted, i, static_cast<int32_t>(k), items[k].toTensor())) return false;
      }
    } else if (is_constant_argument(value)) {
      noted.args[i] = value;
    } else if (!take_symbolic(noted, i, value)) {
      return false;
    }
  }
  return true;
}

bool Recorder::take_symbolic(graph::Op& noted, uint32_t, const IValue& value) {
  return unsupported("an argument of kind " + value.tagKind() + " (" + noted.info->name + ")");
}

bool Recorder::take_result(graph::Op& noted, uint32_t position, int32_t item, const at::Tensor& tensor) {
  if (!tensor.defined()) return true;
  const SchemaInfo& info = *noted.info;
  if (auto reason = why_not_recordable(tensor); !reason.empty()) return unsupported(info.name + " made " + reason);
  auto found = known_.find(tensor.unsafeGetTensorImpl());
  if (found != known_.end()) {
    noted.results.push_back({position, item, found->second.value});
    return true;
  }
  ValueId value = learn(tensor, add_value(Role::Result, tensor));
  noted.results.push_back({position, item, value});
  StorageUsers& users = place(tensor, value);
  users.tensors.emplace_back(tensor, value);
  if (info.allocates) {
    users.unwritten = true;
    ++unwritten_;
  }
  return true;
}

bool Recorder::take_results(graph::Op& noted, const Stack& stack) {
  size_t count = noted.handle.schema().returns().size();
  size_t base = stack.size() - count;
  for (uint32_t i = 0; i < count; ++i) {
    const IValue& value = stack[base + i];
    if (value.isTensor()) {
      if (!take_result(noted, i, TensorRef::kWhole, value.toTensor())) return false;
    } else if (value.isTensorList()) {
      const auto items = value.toListRef();
      for (size_t k = 0; k < items.size(); ++k) {
        if (!take_result(noted, i, static_cast<int32_t>(k), items[k].toTensor())) return false;
      }
    } else if (!value.isNone() && !value.isInt()) {
      return unsupported("a result of kind " + value.tagKind() + " (" + noted.info->name + ")");
    }
  }
  return true;
}

// What the program does with the number is not seen, so runs must find the same one.
bool Recorder::take_number(graph::Op& noted, const Stack& stack) {
  const IValue& number = stack.back();
  if (!number.isBool() && !number.isInt() && !number.isDouble() && !number.isComplexDouble()) {
    return unsupported("a result of kind " + number.tagKind() + " (" + noted.info->name + ")");
  }
  noted.expected = number;
  return true;
}

graph::Op Recorder::new_op(const OperatorHandle& op, const SchemaInfo& info) {
  uint8_t autocast = autocast_bits();
  graph::Op noted{op,
                  &info,
                  {},
                  {},
                  {},
                  {},
                  c10::GradMode::is_enabled(),
                  below_inplace_ || (!info.tracks_views && is_below_inplace()),
                  autocast && autocast == autocast_at_start_,
                  c10::InferenceMode::is_enabled() && !inference_at_start_,
                  false};
  if (options_.lines) noted.line = lines_.current(graph_.lines);
  has_saved_by_hooks_ |= !at::SavedTensorDefaultHooks::get_tls_state().stack.empty();
  return noted;
}

void Recorder::note_derived(const graph::Op& noted) {
  auto note = [this](ValueId value) {
    auto at = std::ranges::lower_bound(derived_, value);
    if (at == derived_.end() || *at != value) derived_.insert(at, value);
  };
  for (const TensorRef& result : noted.results) note(result.value);
  for (const TensorRef& tensor : noted.tensors) {
    if (!noted.info->written[tensor.position]) continue;
    gives_gradients_ |= graph_.values[graph_.values[tensor.value].memory].role != Role::Result;
    for (ValueId value = 0; value < graph_.values.size(); ++value)
      if (graph_.values[value].memory == graph_.values[tensor.value].memory) note(value);
  }
}

void Recorder::add_op(graph::Op&& noted) {
  if (noted.derives) note_derived(noted);
  had_effect_ = had_effect_ || graph::has_effect(graph_, noted);
  has_drawn_ = has_drawn_ || noted.info->random;
  fixed_.note(graph_, noted);
  graph_.ops.push_back(std::move(noted));
}

void Recorder::call(const OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
  if (looks_for_cast_) throw NoSuchCast();
  if (refusal_ && !is_live()) options_.on_refuse(*refusal_);
  const SchemaInfo& info = graph::schema_info(op);
  bool cuda = keys.has_backend(c10::BackendComponent::CUDABit);
  if (cuda ? info.composite_cuda : info.composite_cpu) return decompose(op, info, keys, stack);
  if (info.answer == graph::Answer::Metadata) return pass(op, info, keys, stack);
  if (info.lifts && lift(op, keys, stack)) return;
  if (info.detaches && !stack->back().toTensor().requires_grad()) return pass(op, info, keys, stack);
  call_as_leaf(op, info, kNoteKey, keys, stack);
}

void Recorder::call_as_leaf(const OperatorHandle& op, const SchemaInfo& info, DispatchKey key, DispatchKeySet keys,
                            Stack* stack) {
  runtime::PauseWatch pause;
  bool casts = autocast_at_start_ && may_be_shared_cast(info, *stack);
  if (!casts) settle_casts();
  graph::Op noted = new_op(op, info);
  if (!noted.autocast && has_parts(info) && autocast_bits()) {
    unsupported("a fused operator (" + info.name + ") under an autocast that the call turned on");
  }
  if (has_parts(info) && attention_settings() != attention_at_start_)
    unsupported("a fused operator (" + info.name + ") with a choice of attention that the call made");
  if (inference_at_start_ && !c10::InferenceMode::is_enabled()) {
    unsupported("an operator (" + info.name + ") outside the inference mode that the call began in");
  }
  bool follows = follows_contents(info, *stack), fixed = follows && follows_fixed_contents(info, *stack);
  if (refusal_ || !check_operator(info, follows && !fixed)) return run_below(op, key, keys, stack);
  if (fixed && info.answer != graph::Answer::None) return execute_on_contents(op, info, key, keys, stack);
  prepare(info, stack);
  if (!take_arguments(noted, *stack)) return run_below(op, key, keys, stack);
  at::Tensor parameter =
      casts ? (stack->end() - static_cast<ptrdiff_t>(info.written.size()))->toTensor() : at::Tensor();
  try {
    fixed ? execute_on_contents(op, info, key, keys, stack) : execute(op, info, key, keys, stack);
  } catch (...) {
    if (is_live()) refuse_quietly("an operator raised an error (" + info.name + ")");
    throw;
  }
  if (refusal_) return;
  bool number = info.answer == graph::Answer::Number;
  if (!(number ? take_number(noted, *stack) : take_results(noted, *stack))) return;
  add_op(std::move(noted));
  if (casts) unsettled_casts_.push_back({graph_.ops.size() - 1, std::move(parameter), stack->back().toTensor()});
}

// The error may depend on contents, and so may what the program does about it. It is the user's to see, not ours.
void Recorder::refuse_quietly(std::string reason) {
  try {
    data_dependent(std::move(reason));
  } catch (...) {
  }
}

// A composite that reached us, as in inference mode: run its parts, which come back here one by one.
void Recorder::decompose(const OperatorHandle& op, const SchemaInfo& info, DispatchKeySet keys, Stack* stack) {
  if (info.foreign) unsupported("an operator that is not torch's own (" + info.name + ")");
  struct Restore {
    bool& flag;
    bool before = flag;
    ~Restore() { flag = before; }
  } restore{below_inplace_};
  runtime::PauseWatch pause;
  below_inplace_ |= is_below_inplace();
  bool cuda = keys.has_backend(c10::BackendComponent::CUDABit);
  op.redispatchBoxed(DispatchKeySet(cuda ? DispatchKey::CUDA : DispatchKey::CPU), stack);
}

void Recorder::pass(const OperatorHandle& op, const SchemaInfo&, DispatchKeySet keys, Stack* stack) {
  run_below(op, kNoteKey, keys, stack);
}

// torch.tensor(data) fills memory by hand and then lifts it. The contents become a constant and each run gets a fresh
// copy, which the program may write. False: an operator like any other.
bool Recorder::lift(const OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
  at::Tensor tensor = stack->back().toTensor();
  if (find(tensor)) return false;
  const auto* impl = tensor.unsafeGetTensorImpl();
  if (!is_plain(*impl) || impl->pyobj_slot()->load_pyobj() != nullptr) return false;
  if (!tensor.storage().resizable()) return false;  // memory of numpy or of a buffer, which others may write
  static const auto clone = c10::Dispatcher::singleton().findSchemaOrThrow("aten::clone", "");
  at::Tensor snapshot;
  {
    c10::impl::ExcludeDispatchKeyGuard off(kBothKeys | c10::autograd_dispatch_keyset_with_ADInplaceOrView);
    Stack arguments{tensor, IValue()};
    clone.callBoxed(&arguments);
    snapshot = arguments[0].toTensor();
  }
  lifted(op, keys, stack);
  graph::Op noted = new_op(clone, graph::schema_info(clone));
  noted.below_inplace = true;
  noted.autocast = false;
  noted.args.resize(2);
  noted.tensors.push_back({0, TensorRef::kWhole, add_constant(snapshot)});
  if (take_results(noted, *stack)) add_op(std::move(noted));
  return true;
}

void Recorder::lifted(const OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
  run_below(op, kNoteKey, keys, stack);
}

}  // namespace magneto::record
