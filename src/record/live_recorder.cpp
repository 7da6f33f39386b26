// How live recordings note operators and when they give up.
#include "record/live_recorder.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/SmallVector.h>
#include <c10/util/flat_hash_map.h>

#include <algorithm>
#include <array>

#include "cpython/ref.h"
#include "graph/graph.h"
#include "graph/schema_info.h"
#include "record/plain_tensor.h"
#include "runtime/replay.h"
#include "runtime/state.h"
#include "runtime/torch_python.h"

namespace magneto::record {
namespace {

using c10::DispatchKey;
using c10::DispatchKeySet;
using c10::IValue;
using c10::OperatorHandle;
using c10::Stack;
using graph::Role;
using graph::SchemaInfo;
using graph::TensorRef;
using graph::ValueId;

// Below autograd, and one that torch leaves to others. Torch turns both off while it fills memory by hand.
constexpr DispatchKey kNoteKey = DispatchKey::Fake;
// Above autograd.
constexpr DispatchKey kGateKey = DispatchKey::DeferredInit;
constexpr DispatchKeySet kBothKeys = DispatchKeySet({kNoteKey, kGateKey});

void include_keys(bool on) {
  c10::impl::tls_set_dispatch_key_included(kNoteKey, on);
  c10::impl::tls_set_dispatch_key_included(kGateKey, on);
}

void run_below(const OperatorHandle& op, DispatchKey key, DispatchKeySet keys, Stack* stack) {
  c10::impl::ExcludeDispatchKeyGuard off(kBothKeys);
  op.redispatchBoxed(keys & DispatchKeySet(DispatchKeySet::FULL_AFTER, key), stack);
}

// Inside an autograd kernel, where version counters and views are not kept for the parts of the operator.
// The device types that autocast is on for.
uint8_t autocast_bits() {
  auto on = [](DispatchKey key) { return !c10::impl::tls_is_dispatch_key_excluded(key); };
  return static_cast<uint8_t>(on(DispatchKey::AutocastCPU) | on(DispatchKey::AutocastCUDA) << 1);
}

// Kernels that call other operators through the dispatcher.
bool has_parts(const SchemaInfo& info) {
  return info.name.starts_with("aten::_transformer_encoder_layer_fwd") ||
         info.name.starts_with("aten::_native_multi_head_attention");
}

bool is_below_inplace() { return c10::impl::tls_is_dispatch_key_excluded(DispatchKey::ADInplaceOrView); }

using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
using WeakStorage = c10::weak_intrusive_ptr<c10::StorageImpl>;

// The weak reference keeps the address from being used again, while the memory of the tensor is freed in time.
struct Known {
  WeakTensor tensor;
  ValueId value;
};

struct StorageUsers {
  StorageUsers(WeakStorage held, ValueId first) : storage(std::move(held)), memory(first) {}
  WeakStorage storage;
  ValueId memory;                                                     // the first value that lives here
  c10::SmallVector<std::pair<c10::TensorImpl*, int64_t>, 1> tensors;  // with their storage offsets, oldest first
  bool unwritten = false;  // allocated by a recorded operator, and no recorded operator wrote to it
};

class LiveRecorder final : public runtime::Recording {
 public:
  explicit LiveRecorder(std::function<void(std::string)> on_fail) : on_fail_(std::move(on_fail)) {
    graph_.values.reserve(kExpectedOps);
    graph_.ops.reserve(kExpectedOps);
    known_.reserve(kExpectedOps);
    storages_.reserve(kExpectedOps);
    active_ = this;
    include_keys(true);
  }
  ~LiveRecorder() override { stop(); }

  static LiveRecorder* active() { return active_; }

  void add_input(PyObject* tensor) override;
  void add_state(PyObject* tensor) override;
  bool knows(PyObject* tensor) const override {
    return known_.count(runtime::unpack_tensor(tensor).unsafeGetTensorImpl()) != 0;
  }
  size_t op_count() const override { return graph_.ops.size(); }
  std::unique_ptr<runtime::Segment> finish(const std::vector<PyObject*>& outputs) override;

  // The kernel on kNoteKey.
  void call(const OperatorHandle& op, DispatchKeySet keys, Stack* stack);
  // Notes a composite operator as a whole.
  void call_as_leaf(const OperatorHandle& op, const SchemaInfo& info, DispatchKey key, DispatchKeySet keys,
                    Stack* stack);
  void fail(std::string reason);

 private:
  static constexpr size_t kExpectedOps = 256;

  void stop();
  void decompose(const OperatorHandle& op, DispatchKeySet keys, Stack* stack);
  bool lift(const OperatorHandle& op, DispatchKeySet keys, Stack* stack);

  // Each returns false after fail().
  bool check_operator(const SchemaInfo& info, const Stack& stack);
  bool take_number(const SchemaInfo& info, graph::Op& noted, const Stack& stack);
  bool take_arguments(const SchemaInfo& info, graph::Op& noted, const Stack& stack);
  bool take_tensor(const SchemaInfo& info, graph::Op& noted, uint32_t position, int32_t item, const at::Tensor& tensor);
  bool check_memory(const SchemaInfo& info, uint32_t position, const at::Tensor& tensor);
  bool take_results(const SchemaInfo& info, graph::Op& noted, const Stack& stack);
  bool take_result(const SchemaInfo& info, graph::Op& noted, uint32_t position, int32_t item, const at::Tensor& tensor);
  bool take_output(PyObject* output);

  const ValueId* find(const at::Tensor& tensor);
  const ValueId* find_by_storage(const at::Tensor& tensor);
  ValueId learn(const at::Tensor& tensor, ValueId value);
  ValueId add_constant(const at::Tensor& tensor);
  StorageUsers& place(const at::Tensor& tensor, ValueId value);
  bool add_outside(const at::Tensor& tensor, Role role, std::vector<ValueId>& list);

  // Owned by its thread.
  static thread_local LiveRecorder* active_;

  std::function<void(std::string)> on_fail_;
  bool failed_ = false;
  bool below_inplace_ = false;
  const uint8_t autocast_at_start_ = autocast_bits();
  bool had_effect_ = false;  // a recorded operator changed something that outlives a run
  graph::Graph graph_;
  std::vector<py::Ref> state_objects_;
  ska::flat_hash_map<c10::TensorImpl*, Known> known_;
  ska::flat_hash_map<c10::StorageImpl*, StorageUsers> storages_;
  size_t unwritten_ = 0;
};

thread_local LiveRecorder* LiveRecorder::active_ = nullptr;

void LiveRecorder::stop() {
  if (active_ != this) return;
  active_ = nullptr;
  include_keys(false);
}

void LiveRecorder::fail(std::string reason) {
  stop();
  if (std::exchange(failed_, true)) return;
  PyGILState_STATE gil = PyGILState_Ensure();  // kernels run without the GIL, the callback needs it
  on_fail_(std::move(reason));
  PyGILState_Release(gil);
}

// ---- inputs, state, outputs

void LiveRecorder::add_input(PyObject* tensor) {
  const at::Tensor& input = runtime::unpack_tensor(tensor);
  if (failed_) return;
  if (auto found = known_.find(input.unsafeGetTensorImpl()); found != known_.end()) {
    Role role = graph_.values[found->second.value].role;
    if (graph::is_state(role)) return fail("an argument is also part of the state");
    if (role == Role::Argument) return fail("the same tensor is two arguments");
    return fail("a tensor made during the call came back as an argument");
  }
  if (auto reason = why_not_plain(tensor); !reason.empty()) return fail(reason);
  add_outside(input, Role::Argument, graph_.inputs);
}

void LiveRecorder::add_state(PyObject* tensor) {
  const at::Tensor& state = runtime::unpack_tensor(tensor);
  if (failed_) return;
  if (auto found = known_.find(state.unsafeGetTensorImpl()); found != known_.end()) {
    if (graph_.values[found->second.value].role == Role::Argument) fail("an argument is also part of the state");
    return;  // already noted, or made during the call and stored somewhere
  }
  if (auto reason = why_not_plain(tensor); !reason.empty()) return fail(reason);
  Role role = Py_TYPE(tensor) == runtime::parameter_class() ? Role::Parameter : Role::Buffer;
  if (add_outside(state, role, graph_.states)) state_objects_.push_back(py::Ref::borrow(tensor));
}

bool LiveRecorder::add_outside(const at::Tensor& tensor, Role role, std::vector<ValueId>& list) {
  ValueId value = learn(tensor, graph_.add_value(role, tensor));
  place(tensor, value);
  if (graph_.values[graph_.values[value].memory].role == Role::Result) {
    return fail("memory made during the call came back under another name"), false;
  }
  list.push_back(value);
  return true;
}

bool LiveRecorder::take_output(PyObject* output) {
  const at::Tensor& tensor = runtime::unpack_tensor(output);
  const ValueId* value = find(tensor);
  if (!value) return fail("an output that no recorded operator made"), false;
  Role role = graph_.values[*value].role;
  if (role == Role::Constant) return fail("an output that is a constant"), false;
  if (role == Role::Result) {
    if (Py_TYPE(output) != runtime::tensor_class()) {
      return fail(std::string("an output of type ") + Py_TYPE(output)->tp_name + " made during the call"), false;
    }
    if (tensor.requires_grad()) return fail("an output that requires grad"), false;
    if (auto users = storages_.find(tensor.storage().unsafeGetStorageImpl());
        users != storages_.end() && users->second.unwritten && tensor.numel() > 0) {
      return fail("an output whose memory no recorded operator wrote"), false;
    }
  }
  graph_.outputs.push_back(*value);
  return true;
}

std::unique_ptr<runtime::Segment> LiveRecorder::finish(const std::vector<PyObject*>& outputs) {
  stop();
  if (failed_) return nullptr;
  for (PyObject* output : outputs) {
    if (!take_output(output)) return nullptr;
  }
  std::vector<PyObject*> states;
  for (const py::Ref& object : state_objects_) states.push_back(object.get());
  return runtime::make_replay(std::move(graph_), std::move(states));
}

// ---- which value a tensor is

StorageUsers& LiveRecorder::place(const at::Tensor& tensor, ValueId value) {
  auto* storage = tensor.storage().unsafeGetStorageImpl();
  auto found = storages_.find(storage);
  if (found == storages_.end()) {
    found = storages_.emplace(storage, StorageUsers(tensor.storage().getWeakStorageImpl(), value)).first;
  }
  graph_.values[value].memory = found->second.memory;
  return found->second;
}

ValueId LiveRecorder::learn(const at::Tensor& tensor, ValueId value) {
  known_.emplace(tensor.unsafeGetTensorImpl(), Known{WeakTensor(tensor.getIntrusivePtr()), value});
  return value;
}

const ValueId* LiveRecorder::find(const at::Tensor& tensor) {
  auto found = known_.find(tensor.unsafeGetTensorImpl());
  return found != known_.end() ? &found->second.value : find_by_storage(tensor);
}

// Autograd's view bookkeeping may replace a kernel's result by a shallow copy and drop the original. So a tensor that
// looks exactly like a result that is gone, over the same memory, is that result.
const ValueId* LiveRecorder::find_by_storage(const at::Tensor& tensor) {
  if (!tensor.has_storage()) return nullptr;
  auto users = storages_.find(tensor.storage().unsafeGetStorageImpl());
  if (users == storages_.end()) return nullptr;
  for (auto user = users->second.tensors.rbegin(); user != users->second.tensors.rend(); ++user) {
    const Known& known = known_.at(user->first);
    const graph::Value& value = graph_.values[known.value];
    if (user->second == tensor.storage_offset() && value.dtype == tensor.scalar_type() &&
        tensor.sizes() == value.sizes && tensor.strides() == value.strides && known.tensor.expired()) {
      ValueId id = known.value;
      learn(tensor, id);
      return &known_.at(tensor.unsafeGetTensorImpl()).value;
    }
  }
  return nullptr;
}

ValueId LiveRecorder::add_constant(const at::Tensor& tensor) {
  ValueId value = graph_.add_value(Role::Constant, tensor);
  graph_.constants.push_back(value);
  graph_.constant_tensors.push_back(tensor);
  place(tensor, value);
  return learn(tensor, value);
}

// ---- one operator

bool LiveRecorder::check_operator(const SchemaInfo& info, const Stack& stack) {
  bool asks = info.answer == graph::Answer::Value;
  // A run that finds another number must be able to give up without a trace.
  asks |= info.answer == graph::Answer::Number && had_effect_;
  if (asks) return fail("a value was asked from a tensor (" + info.name + ")"), false;
  // The sizes of its results may follow from contents, and nothing would tell.
  if (info.foreign) return fail("an operator that is not torch's own (" + info.name + ")"), false;
  if (!info.dynamic_shape) return true;
  if (info.indexing) {
    bool masked = false;
    for (const IValue& index : stack.back().toListRef()) {
      if (!index.isTensor() || !index.toTensor().defined()) continue;
      auto dtype = index.toTensor().scalar_type();
      masked |= dtype == c10::ScalarType::Bool || dtype == c10::ScalarType::Byte;
    }
    if (!masked) return true;
  }
  return fail("sizes that depend on the contents of a tensor (" + info.name + ")"), false;
}

// Contents that got into memory by another way than recorded operators would be missing from a replay.
bool LiveRecorder::check_memory(const SchemaInfo& info, uint32_t position, const at::Tensor& tensor) {
  if (unwritten_ == 0) return true;
  auto users = storages_.find(tensor.storage().unsafeGetStorageImpl());
  if (users == storages_.end() || !users->second.unwritten) return true;
  if (info.written[position]) {
    if (info.initialises) {
      users->second.unwritten = false;
      --unwritten_;
    }
    return true;
  }
  if (info.reads_metadata_only || tensor.numel() == 0) return true;
  return fail("memory that no recorded operator wrote is read (" + info.name + ")"), false;
}

// Casts of autocast's cache and detached tensors; a use of their results in grad mode is still refused.
bool may_take_grad(const SchemaInfo& info) { return info.name == "aten::detach" || info.name == "aten::_to_copy"; }

bool LiveRecorder::take_tensor(const SchemaInfo& info, graph::Op& noted, uint32_t position, int32_t item,
                               const at::Tensor& tensor) {
  if (!tensor.defined()) return true;
  ValueId value;
  if (const ValueId* found = find(tensor)) {
    value = *found;
    if (noted.grad_mode && tensor.requires_grad() && !may_take_grad(info)) {
      return fail("gradients are needed"), false;
    }
    if (info.written[position] && graph_.values[graph_.values[value].memory].role == Role::Constant) {
      return fail("a constant is written (" + info.name + ")"), false;
    }
    if (!check_memory(info, position, tensor)) return false;
  } else if (!info.written[position] && tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
    value = add_constant(tensor);
  } else {
    std::string reason = why_not_plain(*tensor.unsafeGetTensorImpl());
    if (reason.empty()) reason = "a constant tensor that is neither input nor state (" + info.name + ")";
    return fail(reason), false;
  }
  noted.tensors.push_back({position, item, value});
  return true;
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

bool LiveRecorder::take_arguments(const SchemaInfo& info, graph::Op& noted, const Stack& stack) {
  size_t count = info.written.size();
  size_t base = stack.size() - count;
  noted.args.resize(count);
  for (uint32_t i = 0; i < count; ++i) {
    const IValue& value = stack[base + i];
    if (value.isTensor()) {
      if (!take_tensor(info, noted, i, TensorRef::kWhole, value.toTensor())) return false;
    } else if (value.isTensorList() || value.isOptionalTensorList()) {
      const auto items = value.toListRef();
      noted.lists.push_back({i, static_cast<uint32_t>(items.size()), value.isOptionalTensorList()});
      for (size_t k = 0; k < items.size(); ++k) {
        if (items[k].isNone()) continue;
        if (!take_tensor(info, noted, i, static_cast<int32_t>(k), items[k].toTensor())) return false;
      }
    } else if (is_constant_argument(value)) {
      noted.args[i] = value;
    } else {
      return fail("an argument of kind " + value.tagKind() + " (" + info.name + ")"), false;
    }
  }
  return true;
}

bool LiveRecorder::take_result(const SchemaInfo& info, graph::Op& noted, uint32_t position, int32_t item,
                               const at::Tensor& tensor) {
  if (!tensor.defined()) return true;
  if (!is_plain(*tensor.unsafeGetTensorImpl())) {
    return fail(info.name + " made " + why_not_plain(*tensor.unsafeGetTensorImpl())), false;
  }
  auto found = known_.find(tensor.unsafeGetTensorImpl());
  if (found != known_.end()) {
    noted.results.push_back({position, item, found->second.value});
    return true;
  }
  ValueId value = learn(tensor, graph_.add_value(Role::Result, tensor));
  noted.results.push_back({position, item, value});
  StorageUsers& users = place(tensor, value);
  users.tensors.emplace_back(tensor.unsafeGetTensorImpl(), tensor.storage_offset());
  if (info.allocates && tensor.numel() > 0) {
    users.unwritten = true;
    ++unwritten_;
  }
  return true;
}

bool LiveRecorder::take_results(const SchemaInfo& info, graph::Op& noted, const Stack& stack) {
  size_t count = noted.handle.schema().returns().size();
  size_t base = stack.size() - count;
  for (uint32_t i = 0; i < count; ++i) {
    const IValue& value = stack[base + i];
    if (value.isTensor()) {
      if (!take_result(info, noted, i, TensorRef::kWhole, value.toTensor())) return false;
    } else if (value.isTensorList()) {
      const auto items = value.toListRef();
      for (size_t k = 0; k < items.size(); ++k) {
        if (!take_result(info, noted, i, static_cast<int32_t>(k), items[k].toTensor())) return false;
      }
    } else if (!value.isNone() && !value.isInt()) {
      return fail("a result of kind " + value.tagKind() + " (" + info.name + ")"), false;
    }
  }
  return true;
}

// What the program does with the number is not seen, so runs must find the same one.
bool LiveRecorder::take_number(const SchemaInfo& info, graph::Op& noted, const Stack& stack) {
  const IValue& number = stack.back();
  if (!number.isBool() && !number.isInt() && !number.isDouble() && !number.isComplexDouble()) {
    return fail("a result of kind " + number.tagKind() + " (" + info.name + ")"), false;
  }
  noted.expected = number;
  return true;
}

void LiveRecorder::call(const OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
  const SchemaInfo& info = graph::schema_info(op);
  bool cuda = keys.has_backend(c10::BackendComponent::CUDABit);
  if (cuda ? info.composite_cuda : info.composite_cpu) return decompose(op, keys, stack);
  if (info.answer == graph::Answer::Metadata) return run_below(op, kNoteKey, keys, stack);
  if (info.lifts && lift(op, keys, stack)) return;
  if (info.detaches && !stack->back().toTensor().requires_grad()) {
    return run_below(op, kNoteKey, keys, stack);  // changes nothing
  }
  call_as_leaf(op, info, kNoteKey, keys, stack);
}

void LiveRecorder::call_as_leaf(const OperatorHandle& op, const SchemaInfo& info, DispatchKey key, DispatchKeySet keys,
                                Stack* stack) {
  runtime::PauseWatch pause;
  bool below_inplace = below_inplace_ || (!info.tracks_views && is_below_inplace());
  uint8_t autocast = autocast_bits();
  if (autocast && autocast != autocast_at_start_ && has_parts(info)) {
    fail("a fused operator (" + info.name + ") under an autocast that the call turned on");
  }
  graph::Op noted{op,
                  &info,
                  {},
                  {},
                  {},
                  {},
                  c10::GradMode::is_enabled(),
                  below_inplace,
                  autocast && autocast == autocast_at_start_};
  if (!check_operator(info, *stack) || !take_arguments(info, noted, *stack)) {
    return run_below(op, key, keys, stack);
  }
  try {
    run_below(op, key, keys, stack);
  } catch (...) {
    // The error may depend on contents, and so may what the program does about it.
    fail("an operator raised an error (" + info.name + ")");
    throw;
  }
  if (failed_) return;
  bool number = info.answer == graph::Answer::Number;
  if (!(number ? take_number(info, noted, *stack) : take_results(info, noted, *stack))) return;
  had_effect_ = had_effect_ || graph::has_effect(graph_, noted);
  graph_.ops.push_back(std::move(noted));
}

// A composite that reached us, as in inference mode: run its parts, which come back here one by one.
void LiveRecorder::decompose(const OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
  const SchemaInfo& info = graph::schema_info(op);
  if (info.foreign) fail("an operator that is not torch's own (" + info.name + ")");
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

// torch.tensor(data) fills memory by hand and then lifts it. The contents become a constant and each run gets a fresh
// copy, which the program may write. False: an operator like any other.
bool LiveRecorder::lift(const OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
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
  run_below(op, kNoteKey, keys, stack);
  graph::Op noted{clone,
                  &graph::schema_info(clone),
                  {IValue(), IValue()},
                  {},
                  {},
                  {},
                  c10::GradMode::is_enabled(),
                  /*below_inplace=*/true,
                  /*autocast=*/false};
  noted.tensors.push_back({0, TensorRef::kWhole, add_constant(snapshot)});
  if (take_results(*noted.info, noted, *stack)) graph_.ops.push_back(std::move(noted));
  return true;
}

// ---- kernels

void note_kernel(const OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
  if (LiveRecorder* recorder = LiveRecorder::active()) return recorder->call(op, keys, stack);
  // The keys travelled to another thread, or a guard brought them back after the recording had stopped.
  run_below(op, kNoteKey, keys, stack);
}

void gate_refuse_kernel(const OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
  if (LiveRecorder* recorder = LiveRecorder::active()) {
    recorder->fail("the contents of a tensor decide what happens (" + graph::schema_info(op).name + ")");
  }
  run_below(op, kGateKey, keys, stack);
}

void gate_leaf_kernel(const OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
  if (LiveRecorder* recorder = LiveRecorder::active()) {
    return recorder->call_as_leaf(op, graph::schema_info(op), kGateKey, keys, stack);
  }
  run_below(op, kGateKey, keys, stack);
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
constexpr std::array<const char*, 2> kWritesMemory = {"aten::max_pool1d", "aten::_shape_as_tensor"};

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
  return "";
}

bool is_recording() { return LiveRecorder::active() != nullptr; }

uint64_t recorder_key_bits() { return kBothKeys.raw_repr(); }

std::unique_ptr<runtime::Recording> start_recording(std::function<void(std::string reason)> on_fail) {
  return std::make_unique<LiveRecorder>(std::move(on_fail));
}

}  // namespace magneto::record
