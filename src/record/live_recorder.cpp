// The live recorder, and the recording of a watched call that is made with it.
#include "record/live_recorder.h"

#include "cpython/gil.h"
#include "record/call_edges.h"
#include "record/plain_tensor.h"
#include "record/recorder_keys.h"
#include "runtime/torch_python.h"

namespace magneto::record {

void LiveRecorder::execute(const c10::OperatorHandle& op, const graph::SchemaInfo&, c10::DispatchKey key,
                           c10::DispatchKeySet keys, c10::Stack* stack) {
  run_below(op, key, keys, stack);
}

namespace {

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
      bool is_new = recorder_.add_state(runtime::unpack_tensor(tensor), {state_role(tensor)});
      if (is_new) states_.push_back(py::Ref::borrow(tensor));
    }
  }

  bool knows(PyObject* tensor) const override { return recorder_.knows(runtime::unpack_tensor(tensor)); }
  bool is_fixed(PyObject* tensor) override { return recorder_.is_fixed(runtime::unpack_tensor(tensor)); }
  size_t op_count() const override { return recorder_.graph().ops.size(); }

  PyObject* run_aside(const std::function<PyObject*()>& operation) override {
    recorder_.pause();
    PyObject* result = operation();
    if (!recorder_.refusal()) recorder_.start();
    return result;
  }

  std::unique_ptr<runtime::Segment> finish(const std::vector<runtime::SegmentOutput>& outputs) override {
    recorder_.stop();
    for (auto [output, number] : outputs) {
      if (!recorder_.add_output(runtime::unpack_tensor(output))) return nullptr;
      auto reason = why_not_given_out(output, recorder_.graph());
      if (!reason.empty()) fail(reason);
    }
    return recorder_.refusal() ? nullptr : make_segment(recorder_.take_graph(), states_);
  }

 private:
  static RecorderOptions options(std::function<void(std::string)> on_fail) {
    RecorderOptions options;
    options.on_refuse = [on_fail = std::move(on_fail)](const Refusal& refusal) {
      py::Gil gil;  // kernels run without the GIL, the callback needs it
      on_fail(refusal.reason);
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

  LiveRecorder recorder_;
  std::vector<py::Ref> states_;
};

}  // namespace

std::unique_ptr<runtime::Recording> start_recording(std::function<void(std::string)> on_fail) {
  return std::make_unique<CallRecording>(std::move(on_fail));
}

}  // namespace magneto::record
