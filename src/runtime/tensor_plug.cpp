// Holds the plug of this process, and the one that stands there before torch's: it knows no tensors at all.
#include "runtime/tensor_plug.h"

#include <utility>

#include "runtime/errors.h"

namespace magneto::runtime {

namespace {

constexpr const char* kNoTensors = "a tensor reached a build without torch";

class NullSegment : public Segment {
 public:
  bool run(PyObject* const*, PyObject**) override { return true; }
  bool rerunnable() const override { return true; }
  bool make_rerunnable() override { return true; }
  size_t output_count() const override { return 0; }
  size_t op_count() const override { return 0; }
  std::string text() const override { return ""; }
  std::string fingerprint() const override { return ""; }
};

class NullRecording : public Recording {
 public:
  void add_input(PyObject*) override { MAGNETO_BUG(kNoTensors); }
  void add_state(PyObject*) override { MAGNETO_BUG(kNoTensors); }
  bool knows(PyObject*) const override { return false; }
  size_t op_count() const override { return 0; }
  std::unique_ptr<Segment> finish(const std::vector<SegmentOutput>& outputs) override {
    if (!outputs.empty()) MAGNETO_BUG(kNoTensors);
    return std::make_unique<NullSegment>();
  }
};

class NullChecks : public TensorChecks {
 public:
  void add(PyObject*, const std::vector<int>&) override { MAGNETO_BUG(kNoTensors); }
  void add(PyObject*, const Dimensions&, const Dimensions&) override { MAGNETO_BUG(kNoTensors); }
  ptrdiff_t first_mismatch(PyObject* const*) const override { return -1; }
  std::optional<std::vector<int>> changed_sizes(size_t, PyObject*) const override { return std::nullopt; }
  size_t size() const override { return 0; }
  bool same_as(const TensorChecks&) const override { return true; }
  std::string explain(size_t, PyObject*) const override { MAGNETO_BUG(kNoTensors); }
};

class NullState : public GlobalState {
 public:
  bool holds() const override { return true; }
  std::string explain() const override { return ""; }
};

class NullPlug : public TensorPlug {
 public:
  std::string why_not_plain(PyObject*) const override { return "this build knows no tensors"; }
  CallKind classify_call(PyObject*) const override { return CallKind::Foreign; }
  CallKind classify_attribute(PyObject*, PyObject*) const override { return CallKind::Foreign; }
  bool ignores_errors(PyObject*) const override { return false; }
  bool only_calls(PyObject*, PyObject* const*, size_t) const override { return false; }
  bool leads_to_unknown(PyObject*, PyObject* const*, size_t) const override { return false; }
  bool may_be_left_out(PyObject*) const override { return false; }
  bool hands_to_python() const override { return false; }
  bool is_part_of_operator(PyObject*, PyObject* const*) const override { return false; }
  bool is_call_context(PyObject*) const override { return false; }
  bool may_be_set(PyObject*) const override { return false; }
  bool selects_by_contents(PyObject*) const override { return false; }
  bool is_immutable(PyTypeObject*) const override { return false; }
  bool is_mode(PyTypeObject*) const override { return false; }
  std::string why_not_record() const override { return ""; }
  std::unique_ptr<Recording> record(std::function<void(std::string)>) const override {
    return std::make_unique<NullRecording>();
  }
  std::unique_ptr<SymbolicRecording> record_symbolic(std::function<void(std::string)>) const override {
    return nullptr;  // numbers alone need no recording
  }
  std::vector<int> openable(PyObject*) const override { return {}; }
  SizeMarks size_marks(PyObject*) const override { return {}; }
  std::unique_ptr<TensorChecks> tensor_checks() const override { return std::make_unique<NullChecks>(); }
  std::unique_ptr<GlobalState> global_state() const override { return std::make_unique<NullState>(); }
  std::string why_not_checked(PyObject*) const override { return "this build knows no tensors"; }
  const std::vector<std::string>& tensor_properties() const override { return no_properties_; }
  PyObject* tensor_property(PyObject*, size_t) const override { return nullptr; }
  std::unique_ptr<GlobalState> whole_state() const override { return std::make_unique<NullState>(); }

 private:
  std::vector<std::string> no_properties_;
};

// Owned by the GIL; changed once, at import. Never destroyed, for threads that outlive the interpreter.
std::unique_ptr<TensorPlug>& slot() {
  static std::unique_ptr<TensorPlug>& plug = *new std::unique_ptr<TensorPlug>(std::make_unique<NullPlug>());
  return plug;
}

}  // namespace

const TensorPlug& tensor_plug() { return *slot(); }

void install_tensor_plug(std::unique_ptr<TensorPlug> plug) {
  MAGNETO_ASSERT(plug != nullptr);
  slot() = std::move(plug);
}

}  // namespace magneto::runtime
