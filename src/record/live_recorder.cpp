// The live recorder, and the recording of a watched call that is made with it.
#include "record/live_recorder.h"

#include "cpython/ref.h"
#include "record/plain_tensor.h"
#include "record/recorder_keys.h"
#include "runtime/replay.h"
#include "runtime/torch_python.h"

namespace magneto::record {

void LiveRecorder::execute(const c10::OperatorHandle& op, const graph::SchemaInfo&, c10::DispatchKey key,
                           c10::DispatchKeySet keys, c10::Stack* stack) {
  run_below(op, key, keys, stack);
}

namespace {

using graph::Role;

class CallRecording final : public runtime::Recording {
 public:
  explicit CallRecording(std::function<void(std::string)> on_fail) : recorder_(options(std::move(on_fail))) {
    recorder_.start();
  }

  void add_input(PyObject* tensor) override {
    if (is_usable(tensor)) recorder_.add_input(runtime::unpack_tensor(tensor));
  }

  void add_state(PyObject* tensor) override {
    if (knows(tensor) || is_usable(tensor)) {
      Role role = Py_TYPE(tensor) == runtime::parameter_class() ? Role::Parameter : Role::Buffer;
      if (recorder_.add_state(runtime::unpack_tensor(tensor), {role})) states_.push_back(py::Ref::borrow(tensor));
    }
  }

  bool knows(PyObject* tensor) const override { return recorder_.knows(runtime::unpack_tensor(tensor)); }
  size_t op_count() const override { return recorder_.graph().ops.size(); }

  std::unique_ptr<runtime::Segment> finish(const std::vector<runtime::SegmentOutput>& outputs) override {
    recorder_.stop();
    for (auto [output, number] : outputs) {
      if (!recorder_.add_output(runtime::unpack_tensor(output)) || !may_be_given_out(output)) return nullptr;
    }
    if (recorder_.refusal()) return nullptr;
    std::vector<PyObject*> states;
    for (const py::Ref& state : states_) states.push_back(state.get());
    return runtime::make_replay(recorder_.take_graph(), std::move(states));
  }

 private:
  static RecorderOptions options(std::function<void(std::string)> on_fail) {
    RecorderOptions options;
    options.on_refuse = [on_fail = std::move(on_fail)](const Refusal& refusal) {
      PyGILState_STATE gil = PyGILState_Ensure();  // kernels run without the GIL, the callback needs it
      on_fail(refusal.reason);
      PyGILState_Release(gil);
    };
    options.answers = true;
    return options;
  }

  void fail(std::string reason) { recorder_.refuse(Refusal::Unsupported, std::move(reason)); }

  // Its Python type counts, too.
  bool is_usable(PyObject* tensor) {
    auto reason = why_not_plain(tensor);
    if (!reason.empty()) fail(reason);
    return reason.empty();
  }

  // A replay makes tensors of torch's own class that need no gradient.
  bool may_be_given_out(PyObject* output) {
    const graph::Graph& graph = recorder_.graph();
    if (graph.values[graph.outputs.back()].role != Role::Result) return true;
    if (Py_TYPE(output) != runtime::tensor_class()) {
      return fail(std::string("an output of type ") + Py_TYPE(output)->tp_name + " made during the call"), false;
    }
    if (runtime::unpack_tensor(output).requires_grad()) return fail("an output that requires grad"), false;
    return true;
  }

  LiveRecorder recorder_;
  std::vector<py::Ref> states_;
};

}  // namespace

std::unique_ptr<runtime::Recording> start_recording(std::function<void(std::string)> on_fail) {
  return std::make_unique<CallRecording>(std::move(on_fail));
}

}  // namespace magneto::record
