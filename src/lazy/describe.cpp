// Calls are described on trace tensors, which alias each other as the results alias the operands.
#include "lazy/describe.h"

#include <algorithm>
#include <string>
#include <utility>

#include "cpython/gil.h"
#include "cpython/text.h"
#include "record/infer.h"
#include "record/tensor_items.h"
#include "runtime/config.h"

namespace magneto::lazy {

using c10::IValue;
using graph::TensorRef;

namespace {

// Who has the tensor expects to see it change at once.
bool writes_elsewhere(const graph::SchemaInfo& info, c10::ArrayRef<IValue> args, const Operands& operands) {
  return std::ranges::any_of(operands.tensors, [&](const TensorRef& ref) {
    return info.written[ref.position] && !is_lazy(operand(args, ref));
  });
}

bool share_memory(const at::Tensor& a, const at::Tensor& b) {
  return a.storage().unsafeGetStorageImpl() == b.storage().unsafeGetStorageImpl();
}

// Stands for the operands of a call while its results are worked out.
class Traces {
 public:
  Traces(c10::ArrayRef<IValue> args, const Operands& operands, c10::Device backing) : stack_(args.vec()) {
    for (const TensorRef& ref : operands.tensors) {
      if (find(ref.value)) continue;
      Layout layout(operand(args, ref));
      traces_.push_back({ref.value, layout.trace(backing), layout});
    }
    for (IValue& value : stack_) {
      record::map_tensors(value, [&](const at::Tensor& tensor) {
        for (const TensorRef& ref : operands.tensors)
          if (operand(args, ref).is_same(tensor)) return find(ref.value)->tensor;
        return tensor;
      });
    }
  }

  c10::Stack& stack() { return stack_; }
  std::optional<uint32_t> same_as(const at::Tensor& result) const {
    return first([&](const at::Tensor& trace) { return trace.is_same(result); });
  }
  std::optional<uint32_t> sharing(const at::Tensor& result) const {
    return first([&](const at::Tensor& trace) { return share_memory(trace, result); });
  }
  bool are_as_before() const {
    return std::ranges::all_of(traces_, [](const Trace& trace) { return trace.layout.fits(trace.tensor); });
  }

 private:
  struct Trace {
    uint32_t id;
    at::Tensor tensor;
    Layout layout;
  };

  const Trace* find(uint32_t id) const {
    auto found = std::ranges::find(traces_, id, &Trace::id);
    return found == traces_.end() ? nullptr : &*found;
  }
  template <class Condition>
  std::optional<uint32_t> first(Condition condition) const {
    auto found = std::ranges::find_if(traces_, condition, &Trace::tensor);
    return found == traces_.end() ? std::nullopt : std::optional(found->id);
  }

  c10::Stack stack_;
  std::vector<Trace> traces_;
};

// Turns what was inferred into the results of a call.
class ResultList {
 public:
  ResultList(Call& call, const Traces& traces, const std::vector<Memory>& memories, uint32_t next_id)
      : call_(call), traces_(traces), memories_(memories), next_id_(next_id) {}

  // False: it is neither a tensor nor a list of tensors.
  bool add(uint32_t position, const IValue& value) {
    if (value.isTensorList()) {
      c10::ArrayRef<IValue> items = value.toListRef();
      call_.result_lists.emplace_back(position, static_cast<uint32_t>(items.size()));
      for (size_t i = 0; i < items.size(); ++i) add(position, static_cast<int32_t>(i), items[i].toTensor());
      return true;
    }
    if (value.isTensor() && value.toTensor().defined()) add(position, TensorRef::kWhole, value.toTensor());
    return value.isTensor();
  }

 private:
  void add(uint32_t position, int32_t item, const at::Tensor& trace) {
    if (auto id = traces_.same_as(trace)) {
      call_.results.push_back({position, item, *id, memory_of(*id), std::nullopt});
      return;
    }
    Memory memory{next_id_, false};
    if (auto id = traces_.sharing(trace)) memory = memory_of(*id);
    for (const auto& [earlier, other] : made_)
      if (share_memory(other, trace)) memory = earlier;
    made_.emplace_back(memory, trace);
    call_.results.push_back({position, item, next_id_++, memory, Layout(trace)});
  }

  Memory memory_of(uint32_t id) const {
    auto found = std::ranges::find(call_.operands.tensors, id, &TensorRef::value);
    return memories_[static_cast<size_t>(found - call_.operands.tensors.begin())];
  }

  Call& call_;
  const Traces& traces_;
  const std::vector<Memory>& memories_;
  uint32_t next_id_;
  std::vector<std::pair<Memory, at::Tensor>> made_;
};

// Of this thread, innermost first. GIL held.
std::vector<std::string> python_frames() {
  std::vector<std::string> frames;
  auto* frame = reinterpret_cast<PyFrameObject*>(Py_XNewRef(reinterpret_cast<PyObject*>(PyEval_GetFrame())));
  while (frame) {
    PyCodeObject* code = PyFrame_GetCode(frame);
    frames.push_back(py::text(code->co_filename) + ":" + std::to_string(PyFrame_GetLineNumber(frame)) + " in " +
                     py::text(code->co_qualname));
    Py_DECREF(code);
    PyFrameObject* outer = PyFrame_GetBack(frame);
    Py_DECREF(frame);
    frame = outer;
  }
  return frames;
}

}  // namespace

c10::DispatchKey key_of(c10::Device backing) {
  return backing.is_cuda() ? c10::DispatchKey::CUDA : c10::DispatchKey::CPU;
}

std::optional<Call> describe(const c10::OperatorHandle& op, c10::ArrayRef<IValue> args, const Operands& operands,
                             const std::vector<Memory>& memories, uint32_t next_id, c10::Device backing) {
  const graph::SchemaInfo& info = graph::schema_info(op);
  if (record::follows_contents(info, args) || writes_elsewhere(info, args, operands)) return std::nullopt;
  Traces traces(args, operands, backing);
  try {
    record::infer(op, info, c10::DispatchKeySet(key_of(backing)), &traces.stack());
  } catch (const std::exception&) {  // it wants contents, or the user made a mistake: the real kernel will tell
    return std::nullopt;
  }
  if (!traces.are_as_before()) return std::nullopt;
  Call call;
  call.op = op;
  call.info = &info;
  call.operands = operands;
  for (const IValue& arg : args) call.args.push_back(arg.isTensor() || is_tensor_list(arg) ? IValue() : arg);
  ResultList results(call, traces, memories, next_id);
  for (uint32_t i = 0; i < traces.stack().size(); ++i)
    if (!results.add(i, traces.stack()[i])) return std::nullopt;
  for (size_t i = 0; i < memories.size(); ++i) {
    bool is_written = info.hidden_writes || info.written[operands.tensors[i].position];
    call.writes_inputs |= is_written && memories[i].is_input;
  }
  return call;
}

void CallLines::note(Call& call) {
  py::Gil gil;
  uint32_t index = finder_.current(lines_);
  while (shared_.size() < lines_.size()) shared_.push_back(std::make_shared<graph::Line>(lines_[shared_.size()]));
  if (index != graph::Op::kNoLine) call.line = shared_[index];
  if (runtime::config().lazy_frames) call.frames = python_frames();
}

}  // namespace magneto::lazy
