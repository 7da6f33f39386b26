// Which graphs can be captured, what a capture remembers, and how it is run.
#include "runtime/cuda_replay.h"

#include <ATen/Context.h>
#include <ATen/core/enum_tag.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <thread>

#include "cpython/ref.h"
#include "cpython/text.h"
#include "runtime/background.h"
#include "runtime/config.h"
#include "runtime/cuda_graph.h"
#include "runtime/log.h"
#include "runtime/raw_tensors.h"
#include "runtime/replay.h"
#include "runtime/state.h"
#include "runtime/torch_python.h"

namespace magneto::runtime {
namespace {

using graph::Role;
using graph::ValueId;

constexpr int kMaxCaptures = 8;
constexpr const char* kStaticMark = "_magneto_static_address";

void note_refusal(const std::string& reason) {
  count("cuda_graphs_refused", reason);
  log(Log::Graph, "not captured into a CUDA graph: " + reason);
}

// ---- which graphs can be captured

struct Plan {
  c10::Device device{c10::DeviceType::CPU};
  std::vector<bool> written_inputs;
  std::vector<bool> written_states;
  int64_t kernels = 0;
  bool writes = false;  // any of them
};

// Attention puts the seed of its dropout on the host, except while it is captured.
bool may_answer_on_host(std::string_view name) {
  return name.starts_with("aten::_scaled_dot_product_") || name.starts_with("aten::_flash_attention_forward") ||
         name.starts_with("aten::_efficient_attention_forward") || name.starts_with("aten::_cudnn_attention_forward");
}

bool writes_argument(const graph::Op& op, uint32_t position) {
  if (op.info->written[position]) return true;
  if (!op.info->hidden_writes) return false;
  const std::string& name = op.handle.schema().arguments()[position].name();
  return name.starts_with("running_") || name == "noise" || name == "dropout_state" || name == "weight_buf";
}

class Planner {
 public:
  Planner(const graph::Graph& graph, c10::Device device) : graph_(graph), written_(graph.values.size(), false) {
    plan_.device = device;
  }

  // None: `reason` says why not.
  std::optional<Plan> run(std::string& reason) {
    reason_ = &reason;
    for (const graph::Value& value : graph_.values) {
      if (!value.shape.empty()) return refuse("its sizes are symbolic");
    }
    for (ValueId input : graph_.inputs) {
      if (!is_here(input)) return refuse("an argument is not on " + plan_.device.str());
    }
    for (ValueId state : graph_.states) {
      if (!is_here(state)) return refuse("a tensor that it reads is not on " + plan_.device.str());
    }
    for (const graph::Op& op : graph_.ops) {
      if (!check(op)) return std::nullopt;
    }
    if (!check_writes()) return std::nullopt;
    return plan_;
  }

 private:
  bool is_here(ValueId value) const { return graph_.values[value].device == plan_.device; }
  std::nullopt_t refuse(std::string reason) const { return *reason_ = std::move(reason), std::nullopt; }
  bool fail(const char* what, const graph::Op& op) const { return refuse(what + op.info->name + ")"), false; }

  bool check(const graph::Op& op) {
    if (!op.expected.isNone()) return fail("a value is asked from a tensor (", op);
    if (!op.sizes.empty()) return fail("its sizes are symbolic (", op);
    for (const c10::IValue& value : op.args) {
      if (value.isGenerator()) return fail("random numbers come from a generator of the program's own (", op);
    }
    bool to_here = false;
    for (const graph::TensorRef& result : op.results) {
      if (!is_here(result.value) && !may_answer_on_host(op.info->name)) return fail("a result on the host (", op);
      to_here = true;
    }
    bool changes_layout = op.handle.hasTag(at::Tag::inplace_view);
    for (const graph::TensorRef& tensor : op.tensors) {
      const graph::Value& value = graph_.values[tensor.value];
      Role owner = graph_.values[value.memory].role;
      if (value.role == Role::Constant && !is_here(tensor.value)) {
        bool copied = op.info->name == "aten::_to_copy" || op.info->name == "aten::copy_";
        if (copied || !value.sizes.empty()) return fail("contents come from the host (", op);
      }
      if (!writes_argument(op, tensor.position)) continue;
      if (changes_layout && owner != Role::Result) return fail("the layout of an older tensor changes (", op);
      written_[value.memory] = true;
    }
    plan_.kernels += to_here && !op.info->returns_view;
    return true;
  }

  // A copy of an argument does not see what is written to the memory that the argument shares with another one.
  bool check_writes() {
    std::vector<int> owners(graph_.values.size(), 0);
    auto note = [&](const std::vector<ValueId>& values, std::vector<bool>& written) {
      for (ValueId value : values) {
        ValueId memory = graph_.values[value].memory;
        written.push_back(written_[memory]);
        plan_.writes |= written_[memory];
        ++owners[memory];
      }
    };
    note(graph_.inputs, plan_.written_inputs);
    note(graph_.states, plan_.written_states);
    for (ValueId input : graph_.inputs) {
      ValueId memory = graph_.values[input].memory;
      if (written_[memory] && owners[memory] > 1) {
        return refuse("an argument shares memory with something that is written"), false;
      }
    }
    return true;
  }

  const graph::Graph& graph_;
  Plan plan_;
  std::vector<bool> written_;  // by the first value in that memory
  std::string* reason_ = nullptr;
};

std::optional<c10::Device> find_gpu(const graph::Graph& graph) {
  if (!at::hasCUDA()) return std::nullopt;
  for (const graph::Value& value : graph.values) {
    if (value.device.is_cuda()) return value.device;
  }
  return std::nullopt;
}

// What kernels are chosen by, beside their arguments. The boxed replay's kernels ask each time.
using Settings = std::array<uint8_t, 12>;
Settings kernel_settings() {
  using Backend = at::Float32Backend;
  using Op = at::Float32Op;
  const at::Context& context = at::globalContext();
  auto precision = [&](Op op) { return static_cast<uint8_t>(context.float32Precision(Backend::CUDA, op)); };
  return {precision(Op::MATMUL),
          precision(Op::CONV),
          precision(Op::RNN),
          static_cast<uint8_t>(context.allowFP16ReductionCuBLAS()),
          static_cast<uint8_t>(context.allowBF16ReductionCuBLAS()),
          context.allowFP16AccumulationCuBLAS(),
          context.userEnabledCuDNN(),
          context.benchmarkCuDNN(),
          context.deterministicCuDNN(),
          context.deterministicAlgorithms(),
          context.deterministicFillUninitializedMemory(),
          c10::impl::tls_is_dispatch_key_excluded(c10::DispatchKey::AutocastCUDA)};
}

// ---- a capture

// A tensor that runs give out, or that one of them is a view of.
struct Made {
  enum Kind : uint8_t { Input, State, Fresh, View, Cast };
  Kind kind;
  uint32_t from;  // index of the input, of the state, in Capture::memories, of the earlier one that it views, in casts
  Look look;
};

struct Capture {
  std::unique_ptr<CudaGraph> graph;
  Settings settings;
  std::vector<bool> in_place;       // by input: the graph uses the caller's own memory
  std::vector<at::Tensor> buffers;  // by input: what the graph uses otherwise
  std::vector<const void*> input_addresses;
  std::vector<const void*> state_addresses;
  std::vector<Made> made;
  std::vector<uint32_t> outputs;     // in `made`
  std::vector<at::Tensor> memories;  // of fresh results
  std::vector<at::Tensor> casts;     // results that are given out as another type
};

// The graph with kernels of our own, while and after it is made on another thread.
struct Kernels {
  std::unique_ptr<graph::Graph> graph;
  std::string reason;  // why there are none
};

class CudaReplay final : public Segment {
 public:
  CudaReplay(std::unique_ptr<Segment> boxed, const graph::Graph& graph, Plan plan, std::vector<PyObject*> states)
      : boxed_(std::move(boxed)),
        graph_(graph),
        plan_(std::move(plan)),
        states_(std::move(states)),
        moved_(plan_.written_inputs.size(), false),
        done_(c10::DeviceType::CUDA) {}

  bool run(PyObject* const* inputs, PyObject** outputs) override;
  bool rerunnable() const override { return boxed_->rerunnable(); }
  bool make_rerunnable() override { return boxed_->make_rerunnable(); }
  size_t output_count() const override { return boxed_->output_count(); }
  size_t op_count() const override { return boxed_->op_count(); }
  std::string text() const override { return boxed_->text(); }
  std::string fingerprint() const override { return boxed_->fingerprint(); }
  bool lower(PyObject* backend) override {
    refused_ = true;  // the backend decides what runs
    return boxed_->lower(backend);
  }
  int traverse(visitproc visit, void* arg) const override { return boxed_->traverse(visit, arg); }

 private:
  size_t input_count() const { return plan_.written_inputs.size(); }

  bool wanted() const;
  bool writes_alone(PyObject* const* inputs) const;
  bool fits(const Capture& capture, PyObject* const* inputs);

  // Libraries make their plans for each thread.
  bool ran_here_before() const { return !fused_ && graph_.ran_on == std::this_thread::get_id(); }
  void make_kernels();
  void take_kernels();
  bool run_uncaptured(PyObject* const* inputs, PyObject** outputs);
  bool finish_outputs(PyObject** outputs) const;                  // of kernels; false: a Python error is set
  std::vector<uint32_t> versions(PyObject* const* inputs) const;  // of inputs, then states

  // Null after refuse().
  std::unique_ptr<Capture> capture(PyObject* const* inputs);
  bool run_for_capture(Capture& capture, PyObject* const* inputs, std::vector<py::Ref>& results);
  bool describe_results(Capture& capture, PyObject* const* inputs, const std::vector<py::Ref>& results);
  void refuse(const std::string& reason);

  bool launch(Capture& capture, PyObject* const* inputs, PyObject** outputs);
  void copy_in(Capture& capture, PyObject* const* inputs);
  void copy_back(const Capture& capture, PyObject* const* inputs);
  std::vector<at::Tensor> make_room(const Capture& capture);
  void copy_out(const Capture& capture, const std::vector<at::Tensor>& fresh);
  bool give(const Capture& capture, const std::vector<at::Tensor>& fresh, PyObject* const* inputs, PyObject** outputs);

  const std::unique_ptr<Segment> boxed_;
  const graph::Graph& graph_;  // that of `boxed_`
  const Plan plan_;
  const std::vector<PyObject*> states_;  // borrowed: who runs a segment vouches for them

  // Owned by the GIL; while `busy_`, by the thread that set it.
  bool busy_ = false;
  bool warm_ = false;
  bool refused_ = false;
  int captures_ = 0;
  std::shared_ptr<Job> job_;  // makes `kernels_`
  std::shared_ptr<Kernels> kernels_;
  std::unique_ptr<Segment> fused_;         // runs these; null: not there yet, or never
  std::vector<uint32_t> bumps_;            // how often a run raises the versions of inputs, then states
  std::vector<uint32_t> result_versions_;  // by output, where it is a new tensor: how often operators write it
  // By output, of a graph with kernels: what its result is cast to when it is given out.
  std::vector<std::optional<c10::ScalarType>> casts_;
  std::vector<bool> moved_;  // by input: static once, but its address changed
  std::unique_ptr<Capture> capture_;
  c10::Event done_;  // the last run, on `stream_`
  std::optional<c10::Stream> stream_;
};

// What kernels are in the way of is done without them.
void CudaReplay::refuse(const std::string& reason) {
  if (fused_) {
    fused_.reset();
    return count("cuda_kernels_refused", reason);
  }
  refused_ = true;
  note_refusal(reason);
}

// A launch shows its operators to nobody: to no mode, no recording and no other capture.
bool CudaReplay::wanted() const {
  int64_t least = config().cuda_graphs;
  if (refused_ || least == 0 || plan_.kernels < least) return false;
  auto included = c10::impl::tls_local_dispatch_key_set().included_;
  return (included - c10::default_included_set).empty() && !is_capturing();
}

bool CudaReplay::writes_alone(PyObject* const* inputs) const {
  if (!plan_.writes) return true;
  for (size_t i = 0; i < input_count(); ++i) {
    const at::Tensor& input = unpack_tensor(inputs[i]);
    for (size_t k = 0; k < states_.size(); ++k) {
      bool written = plan_.written_states[k] || plan_.written_inputs[i];
      if (written && share_memory(input, unpack_tensor(states_[k]))) return false;
    }
    for (size_t k = 0; k < i; ++k) {
      bool written = plan_.written_inputs[k] || plan_.written_inputs[i];
      if (written && share_memory(input, unpack_tensor(inputs[k]))) return false;
    }
  }
  return true;
}

bool CudaReplay::fits(const Capture& capture, PyObject* const* inputs) {
  bool same = capture.settings == kernel_settings();
  for (size_t i = 0; i < input_count(); ++i) {
    if (!capture.in_place[i] || unpack_tensor(inputs[i]).const_data_ptr() == capture.input_addresses[i]) continue;
    moved_[i] = true;
    same = false;
  }
  for (size_t i = 0; same && i < states_.size(); ++i) {
    same = unpack_tensor(states_[i]).const_data_ptr() == capture.state_addresses[i];
  }
  return same;
}

bool CudaReplay::run(PyObject* const* inputs, PyObject** outputs) {
  if (busy_ || !wanted() || !writes_alone(inputs)) return boxed_->run(inputs, outputs);
  struct Busy {
    bool& flag;
    explicit Busy(bool& flag) : flag(flag) { flag = true; }
    ~Busy() { flag = false; }
  } busy(busy_);
  if (job_ && job_->is_done()) take_kernels();
  if (!std::exchange(warm_, true) && !ran_here_before()) return run_uncaptured(inputs, outputs);
  if (capture_ && !fits(*capture_, inputs)) capture_.reset();
  if (!capture_ && (capture_ = capture(inputs))) make_kernels();
  return capture_ ? launch(*capture_, inputs, outputs) : run_uncaptured(inputs, outputs);
}

// ---- kernels of our own

void CudaReplay::make_kernels() {
  if (kernels_ || !config().cuda_kernels || !process_state().make_kernels) return;
  kernels_ = std::make_shared<Kernels>();
  auto work = [graph = graph_, kernels = kernels_, gpu = plan_.device.index()] {
    kernels->graph = process_state().make_kernels(graph, gpu, kernels->reason);
  };
  job_ = Job::start(std::move(work));
  if (!config().wait_for_kernels) return;
  job_->wait();
  take_kernels();
}

// The next run warms libraries up for them, and the one behind it captures.
void CudaReplay::take_kernels() {
  job_.reset();
  if (!kernels_->graph) {
    if (!kernels_->reason.empty()) count("cuda_kernels_refused", kernels_->reason);
    return;
  }
  count("cuda_kernels", "graphs");
  casts_.clear();
  for (size_t i = 0; i < graph_.outputs.size(); ++i) {
    auto type_in = [&](const graph::Graph& graph) { return graph.values[graph.outputs[i]].dtype; };
    bool same = type_in(graph_) == type_in(*kernels_->graph);
    casts_.push_back(same ? std::nullopt : std::optional(type_in(graph_)));
  }
  fused_ = make_boxed_replay(std::move(*kernels_->graph), states_);
  warm_ = false;
  capture_.reset();
  captures_ = 0;
}

std::vector<uint32_t> CudaReplay::versions(PyObject* const* inputs) const {
  std::vector<uint32_t> result;
  for (size_t i = 0; i < input_count(); ++i) result.push_back(version_of(unpack_tensor(inputs[i])));
  for (PyObject* state : states_) result.push_back(version_of(unpack_tensor(state)));
  return result;
}

at::Tensor room_for_cast(const at::Tensor& tensor, c10::ScalarType type) {
  return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().dtype(type));
}

bool CudaReplay::finish_outputs(PyObject** outputs) const {
  try {
    c10::impl::ExcludeDispatchKeyGuard below_autograd(c10::autograd_dispatch_keyset_with_ADInplaceOrView);
    for (size_t i = 0; i < output_count(); ++i) {
      if (casts_[i]) {
        const at::Tensor& from = unpack_tensor(outputs[i]);
        at::Tensor cast = room_for_cast(from, *casts_[i]);
        cast.copy_(from);
        PyObject* object = wrap_tensor(std::move(cast));
        if (!object) return false;
        Py_SETREF(outputs[i], object);
      }
      const std::vector<graph::Value>& values = graph_.values;
      bool is_new = values[values[graph_.outputs[i]].memory].role == Role::Result;
      if (is_new) set_version(unpack_tensor(outputs[i]), result_versions_[i]);
    }
    return true;
  } catch (...) {
    set_python_error(std::current_exception());
    return false;
  }
}

// A graph with kernels writes each tensor once, at its end; versions are raised as often as eager would.
bool CudaReplay::run_uncaptured(PyObject* const* inputs, PyObject** outputs) {
  if (!fused_) return boxed_->run(inputs, outputs);
  std::vector<uint32_t> before = versions(inputs);
  if (fused_->run(inputs, outputs)) {
    for (size_t i = 0; i < before.size(); ++i) {
      PyObject* tensor = i < input_count() ? inputs[i] : states_[i - input_count()];
      if (version_of(unpack_tensor(tensor)) != before[i]) set_version(unpack_tensor(tensor), before[i] + bumps_[i]);
    }
    if (finish_outputs(outputs)) return true;
    for (size_t i = 0; i < output_count(); ++i) Py_CLEAR(outputs[i]);
    return false;
  }
  count("cuda_kernels_refused", PyErr_Occurred() ? py::take_error() : "a number came out differently");
  fused_.reset();
  return boxed_->run(inputs, outputs);
}

// ---- capturing

bool has_mark(PyObject* tensor) {
  bool marked = PyObject_HasAttrString(tensor, kStaticMark);
  return marked || Py_TYPE(tensor) == parameter_class();
}

// Inside the capture, so that buffers are memory of its pool: their life ends with the graph's, on whatever stream.
bool CudaReplay::run_for_capture(Capture& capture, PyObject* const* inputs, std::vector<py::Ref>& results) {
  std::vector<py::Ref> owned;
  std::vector<PyObject*> given;
  for (size_t i = 0; i < input_count(); ++i) {
    const at::Tensor& input = unpack_tensor(inputs[i]);
    at::Tensor& buffer = capture.buffers.emplace_back();
    if (!capture.in_place[i]) {
      Look look(input);
      look.offset = look.version = 0;
      buffer = tensor_over(at::empty({span(look.sizes, look.strides)}, input.options()).storage(), look);
    }
    owned.push_back(buffer.defined() ? py::Ref::steal(wrap_tensor(at::Tensor(buffer))) : py::Ref::borrow(inputs[i]));
    if (!owned.back()) return false;
    given.push_back(owned.back().get());
  }
  std::vector<PyObject*> outputs(output_count());
  if (!(fused_ ? fused_ : boxed_)->run(given.data(), outputs.data())) return false;
  for (PyObject* output : outputs) results.push_back(py::Ref::steal(output));
  return true;
}

std::unique_ptr<Capture> CudaReplay::capture(PyObject* const* inputs) {
  if (captures_++ == kMaxCaptures)
    return refuse("its state keeps moving in memory, or settings keep changing"), nullptr;
  auto capture = std::make_unique<Capture>();
  capture->settings = kernel_settings();
  for (size_t i = 0; i < input_count(); ++i) {
    capture->in_place.push_back(!moved_[i] && has_mark(inputs[i]));
    capture->input_addresses.push_back(unpack_tensor(inputs[i]).const_data_ptr());
  }
  for (PyObject* state : states_) capture->state_addresses.push_back(unpack_tensor(state).const_data_ptr());
  std::vector<uint32_t> before = versions(inputs);
  std::vector<py::Ref> results;
  auto work = [&] {
    try {
      return run_for_capture(*capture, inputs, results);
    } catch (...) {
      set_python_error(std::current_exception());
      return false;
    }
  };
  std::string reason;
  capture->graph = CudaGraph::capture(plan_.device, work, reason);
  // Kernels have only been noted, but versions have been raised. Each run does that itself.
  std::vector<uint32_t> bumps;
  for (size_t i = 0; i < before.size(); ++i) {
    bool is_copied = i < capture->buffers.size() && !capture->in_place[i];
    const at::Tensor& used =
        is_copied ? capture->buffers[i] : unpack_tensor(i < input_count() ? inputs[i] : states_[i - input_count()]);
    if (is_copied) before[i] = 0;
    bumps.push_back(version_of(used) - before[i]);
    if (bumps.back()) set_version(used, before[i]);
  }
  if (!capture->graph) return refuse(reason), nullptr;
  if (!describe_results(*capture, inputs, results)) return nullptr;
  if (fused_) {
    count("cuda_kernels", captures_ == 1 ? "captured" : "captured again");
  } else {
    bumps_ = std::move(bumps);
    count("cuda_graphs", captures_ == 1 ? "captured" : "captured again");
  }
  log(Log::Graph, "captured into a CUDA graph");
  return capture;
}

// Finds out what the results are: an argument, state, fresh, or a view of one of these.
class Describer {
 public:
  Describer(Capture& capture, std::vector<at::Tensor> inputs, std::vector<at::Tensor> states)
      : capture_(capture), inputs_(std::move(inputs)), states_(std::move(states)) {}

  uint32_t describe(const at::Tensor& tensor) {
    for (uint32_t i = 0; i < tensors_.size(); ++i) {
      if (tensors_[i].is_same(tensor)) return i;
    }
    if (auto index = find_same(inputs_, tensor)) return add(Made::Input, *index, tensor);
    if (auto index = find_same(states_, tensor)) return add(Made::State, *index, tensor);
    for (const auto* owners : {&inputs_, &states_}) {
      for (const at::Tensor& owner : *owners) {
        if (share_memory(owner, tensor)) return add(Made::View, describe(owner), tensor);
      }
    }
    if (tensor.is_view() && tensor._base().dtype() == tensor.dtype()) {
      return add(Made::View, describe(at::Tensor(tensor._base())), tensor);
    }
    std::vector<at::Tensor>& memories = capture_.memories;
    size_t memory = 0;
    while (memory < memories.size() && !share_memory(memories[memory], tensor)) ++memory;
    if (memory == memories.size()) memories.push_back(whole_memory(tensor));
    return add(Made::Fresh, memory, tensor);
  }

  uint32_t describe_cast(const at::Tensor& tensor, c10::ScalarType type) {
    capture_.casts.push_back(tensor);
    return add(Made::Cast, capture_.casts.size() - 1, room_for_cast(tensor, type));
  }

 private:
  static std::optional<size_t> find_same(const std::vector<at::Tensor>& among, const at::Tensor& tensor) {
    for (size_t i = 0; i < among.size(); ++i) {
      if (among[i].is_same(tensor)) return i;
    }
    return std::nullopt;
  }

  uint32_t add(Made::Kind kind, size_t from, const at::Tensor& tensor) {
    capture_.made.push_back({kind, static_cast<uint32_t>(from), Look(tensor)});
    tensors_.push_back(tensor);
    return static_cast<uint32_t>(tensors_.size() - 1);
  }

  Capture& capture_;
  std::vector<at::Tensor> inputs_;  // as the graph sees them
  std::vector<at::Tensor> states_;
  std::vector<at::Tensor> tensors_;  // parallel to capture_.made
};

bool CudaReplay::describe_results(Capture& capture, PyObject* const* inputs, const std::vector<py::Ref>& results) {
  if (!fused_) result_versions_.clear();
  std::vector<at::Tensor> used, states;
  for (size_t i = 0; i < input_count(); ++i) {
    used.push_back(capture.in_place[i] ? unpack_tensor(inputs[i]) : capture.buffers[i]);
  }
  for (PyObject* state : states_) states.push_back(unpack_tensor(state));
  Describer describer(capture, std::move(used), std::move(states));
  for (size_t i = 0; i < results.size(); ++i) {
    const at::Tensor& result = unpack_tensor(results[i].get());
    bool is_cast = fused_ && casts_[i];
    capture.outputs.push_back(is_cast ? describer.describe_cast(result, *casts_[i]) : describer.describe(result));
    if (fused_)
      capture.made[capture.outputs[i]].look.version = result_versions_[i];
    else
      result_versions_.push_back(capture.made[capture.outputs[i]].look.version);
  }
  for (const Made& made : capture.made) {
    if (made.kind == Made::View && made.look.dtype != capture.made[made.from].look.dtype) {
      return refuse("a result views older memory as another type"), false;
    }
  }
  return true;
}

// ---- launching

void CudaReplay::copy_in(Capture& capture, PyObject* const* inputs) {
  std::vector<at::Tensor> targets, sources;
  for (size_t i = 0; i < input_count(); ++i) {
    if (capture.in_place[i]) continue;
    targets.push_back(flat(capture.buffers[i]));
    sources.push_back(flat(unpack_tensor(inputs[i])));
  }
  copy_all(targets, sources);
}

void CudaReplay::copy_back(const Capture& capture, PyObject* const* inputs) {
  for (size_t i = 0; i < input_count(); ++i) {
    if (plan_.written_inputs[i] && !capture.in_place[i]) {
      unpack_tensor(inputs[i]).copy_(capture.buffers[i], /*non_blocking=*/true);
    }
  }
}

// For fresh results, then for casts; where it is short, a launch fails before it has changed anything.
std::vector<at::Tensor> CudaReplay::make_room(const Capture& capture) {
  std::vector<at::Tensor> fresh = capture.memories;
  if (config().cuda_graph_copies) {
    for (at::Tensor& memory : fresh) memory = at::empty(memory.sizes(), memory.options());
  }
  for (const Made& made : capture.made) {
    if (made.kind == Made::Cast)
      fresh.push_back(room_for_cast(capture.casts[made.from], made.look.dtype.toScalarType()));
  }
  return fresh;
}

void CudaReplay::copy_out(const Capture& capture, const std::vector<at::Tensor>& fresh) {
  std::vector<at::Tensor> targets, sources;
  for (size_t i = 0; i < fresh.size(); ++i) {
    bool is_cast = i >= capture.memories.size();
    const at::Tensor& source = is_cast ? capture.casts[i - capture.memories.size()] : capture.memories[i];
    if (source.is_same(fresh[i])) continue;
    targets.push_back(fresh[i]);
    sources.push_back(source);
  }
  copy_all(targets, sources);
}

bool CudaReplay::launch(Capture& capture, PyObject* const* inputs, PyObject** outputs) {
  try {
    std::vector<at::Tensor> fresh;
    {
      c10::impl::ExcludeDispatchKeyGuard below_autograd(c10::autograd_dispatch_keyset_with_ADInplaceOrView);
      c10::DeviceGuard on_device(plan_.device);
      c10::Stream stream = c10::impl::VirtualGuardImpl(plan_.device.type()).getStream(plan_.device);
      if (stream_ && *stream_ != stream) done_.block(stream);  // the buffers are in use until then
      fresh = make_room(capture);
      copy_in(capture, inputs);
      if (!capture.graph->launch()) return false;
      copy_back(capture, inputs);
      copy_out(capture, fresh);
      done_.record(stream);
      stream_ = stream;
    }
    for (size_t i = 0; i < input_count(); ++i) bump(unpack_tensor(inputs[i]), bumps_[i]);
    for (size_t i = 0; i < states_.size(); ++i) bump(unpack_tensor(states_[i]), bumps_[input_count() + i]);
    return give(capture, fresh, inputs, outputs);
  } catch (...) {
    set_python_error(std::current_exception());
    return false;
  }
}

bool CudaReplay::give(const Capture& capture, const std::vector<at::Tensor>& fresh, PyObject* const* inputs,
                      PyObject** outputs) {
  c10::impl::ExcludeDispatchKeyGuard below_autograd(c10::autograd_dispatch_keyset);
  std::vector<at::Tensor> tensors;
  for (const Made& made : capture.made) {
    if (made.kind == Made::Input) {
      tensors.push_back(unpack_tensor(inputs[made.from]));
    } else if (made.kind == Made::State) {
      tensors.push_back(unpack_tensor(states_[made.from]));
    } else if (made.kind == Made::Fresh || made.kind == Made::Cast) {
      size_t at = made.from + (made.kind == Made::Cast ? capture.memories.size() : 0);
      tensors.push_back(tensor_over(fresh[at].storage(), made.look));
    } else {
      const at::Tensor& base = tensors[made.from];
      int64_t offset = made.look.offset - capture.made[made.from].look.offset + base.storage_offset();
      tensors.push_back(at::as_strided(base, made.look.sizes, made.look.strides, offset));
    }
  }
  std::vector<py::Ref> objects(tensors.size());
  for (size_t i = 0; i < capture.outputs.size(); ++i) {
    py::Ref& object = objects[capture.outputs[i]];
    if (!object) object = py::Ref::steal(wrap_tensor(at::Tensor(tensors[capture.outputs[i]])));
    if (!object) {
      while (i-- > 0) Py_CLEAR(outputs[i]);
      return false;
    }
    outputs[i] = Py_NewRef(object.get());
  }
  return true;
}

}  // namespace

std::unique_ptr<Segment> with_cuda_graph(std::unique_ptr<Segment> boxed, const graph::Graph& graph,
                                         std::vector<PyObject*> states) {
  std::optional<c10::Device> device = find_gpu(graph);
  if (!device) return boxed;
  std::string reason;
  std::optional<Plan> plan = Planner(graph, *device).run(reason);
  if (!plan) {
    note_refusal(reason);
    return boxed;
  }
  return std::make_unique<CudaReplay>(std::move(boxed), graph, std::move(*plan), std::move(states));
}

}  // namespace magneto::runtime
