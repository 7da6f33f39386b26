// The one interface through which tensors enter the torch-free layers (guard, program, trace, frame).
//
// Torch implements it in record/; the core module plugs in nothing and then compiles functions without tensors.
// Every call is made with the GIL held. A virtual that "may raise" returns with a Python error set.
#pragma once
#include <Python.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cpython/ref.h"

namespace magneto::runtime {

// What the tracer may assume about a callable, attribute or operator that torch implements in C.
enum class CallKind : uint8_t {
  Foreign,   // not torch's
  Asks,      // TensorOp, but its result depends on what tensors hold
  TensorOp,  // all its work passes the dispatcher, so the recording sees it; only tensors in its result are trusted
  Query,     // answers from tensor metadata or from state that GlobalState covers; has no effect
  Balanced,  // changes state that GlobalState covers; allowed if the call leaves that state as it found it
  Refused,   // torch's, but nothing is known about it
};

// Straight-line tensor work that was recorded once and can run again.
class Segment {
 public:
  virtual ~Segment() = default;
  // Fills `outputs` (output_count() of them) with new references. False: nothing is owned, and either a Python error
  // is set or, without one, the run *diverged*: a value that the recording relied on came out differently, or the
  // inputs have sizes that it does not hold for, before anything was changed.
  virtual bool run(PyObject* const* inputs, PyObject** outputs) = 0;
  // The latter in words; empty if it holds for these.
  virtual std::string why_sizes_differ(PyObject* const* /*inputs*/) const { return ""; }
  // Whether a run that failed has had no effect at all (it writes no input and no state and draws no random numbers,
  // or has put that back), so that the function can be called instead.
  virtual bool rerunnable() const = 0;
  // Lets each run save what it changes, and put it back if it fails. False: that cannot be done.
  virtual bool make_rerunnable() = 0;
  virtual size_t output_count() const = 0;
  virtual size_t op_count() const = 0;
  virtual std::string text() const = 0;
  // Lets `backend(magneto.Graph)` say what is called in place of the recorded operators: a callable that takes the
  // inputs and returns the outputs; None: nothing is. Once. False: error set.
  virtual bool lower(PyObject* /*backend*/) { return true; }
  virtual int traverse(visitproc, void*) const { return 0; }
  // Two segments of one process that do the same work on the same state have the same one.
  virtual std::string fingerprint() const = 0;
};

// A number that runs may change, as a symbolic recording knows it.
using NumberId = uint32_t;

// What a segment gives out.
struct SegmentOutput {
  PyObject* tensor;     // null: a number
  NumberId number = 0;  // of a symbolic recording
};

// A live recording on this thread: from creation until finish() or destruction, kernels run for real and are noted.
class Recording {
 public:
  virtual ~Recording() = default;
  virtual void add_input(PyObject* tensor) = 0;
  // `tensor` was reached by a read that a guard covers. The segment takes it from the same Python object at each run,
  // and does not keep that alive: guards vouch for it before each run.
  virtual void add_state(PyObject* tensor) = 0;
  // An input, a state tensor, or made by a recorded operation.
  virtual bool knows(PyObject* tensor) const = 0;
  // Whether the tensor holds the same in every run, so that what is asked of it needs no check.
  virtual bool is_fixed(PyObject* /*tensor*/) { return false; }
  virtual size_t op_count() const = 0;
  // Does something of which nothing is noted.
  virtual PyObject* run_aside(const std::function<PyObject*()>& operation) { return operation(); }
  // Stops recording. Null when the recording failed; the reason went to the on_fail callback.
  virtual std::unique_ptr<Segment> finish(const std::vector<SegmentOutput>& outputs) = 0;
};

enum class Arithmetic : uint8_t {
  Add,
  Subtract,
  Multiply,
  FloorDivide,
  Remainder,
  Power,
  TrueDivide,
  Negative,
  Not,
  Less,  // and the other comparisons in the order of Py_LT, Py_LE, ...
  LessEqual,
  Equal,
  NotEqual,
  Greater,
  GreaterEqual,
};

// A recording beside a real run. The program really runs, unrecorded, and whatever it does with tensors is done again
// on *stand-ins*: tensors without data, some of whose sizes are numbers that runs may change. Such numbers are
// followed, too. What fails is told to the on_fail callback.
class SymbolicRecording : public Recording {
 public:
  // A number in an expression: one that runs may change, or a plain one.
  struct Operand {
    std::optional<NumberId> number;
    PyObject* plain;
  };

  using Recording::add_input;
  // `open`: the dimensions whose sizes runs may change. Those of 0 and 1 never are.
  virtual void add_input(PyObject* tensor, const std::vector<int>& open) = 0;
  // An int or float that becomes the next input.
  virtual NumberId add_number(PyObject* value) = 0;
  // Somebody wants to know when these dimensions of an input are taken for granted all the same.
  virtual void watch_dimensions(PyObject* tensor, const std::vector<int>& dimensions, std::function<void()> on_pin) = 0;
  // Of a tensor that is known: the dimensions whose sizes runs may change.
  virtual std::vector<int> open_dimensions(PyObject* tensor) const = 0;

  // What stands for a tensor that is known, or for a number: a new reference; null with an error set.
  virtual PyObject* stand_in(PyObject* tensor) const = 0;
  virtual PyObject* stand_in(NumberId number) const = 0;
  // The number that a stand-in is; none: it is something else, or a plain number.
  virtual std::optional<NumberId> number(PyObject* stand_in) const = 0;
  // Does something with stand-ins. Null, without an error: failed.
  virtual py::Ref run(const std::function<PyObject*()>& operation) = 0;
  // A stand-in for `tensor`, which torch.tensor made from a number or a list of these; new, or null with an error set.
  virtual PyObject* from_numbers(PyObject* numbers, PyObject* tensor) = 0;
  // `stand_in` came out where the real run got `tensor`.
  virtual void learn(PyObject* tensor, PyObject* stand_in) = 0;

  // What was computed as `value`; none: a plain number, as long as the operands are what they are.
  virtual std::optional<NumberId> compute(Arithmetic how, const Operand& left, const Operand& right,
                                          PyObject* value) = 0;
  // From now on it is taken for granted that the condition, or the number, is what it is in this call.
  virtual void decide(NumberId condition) = 0;
  virtual void specialise(NumberId number) = 0;
  // Whether it is by now.
  virtual bool is_plain(NumberId number) const = 0;
};

// Of the attributes in which tensors keep what is marked on them (magneto.mark_dynamic and its like).
inline constexpr const char* kMarkPrefix = "_magneto_";
// Of names that only mean something to those who compile, ours and torch.compile's.
inline constexpr const char* kMarkPrefixes[] = {kMarkPrefix, "_dynamo_", "_has_dynamo_", "_specialize_on", nullptr};
inline bool is_mark(std::string_view name) {
  for (const char* const* prefix = kMarkPrefixes; *prefix; ++prefix)
    if (name.starts_with(*prefix)) return true;
  return false;
}

// What is marked on a tensor: dimensions.
struct SizeMarks {
  std::vector<int> dynamic, maybe_dynamic, fixed;
};

// One number for each dimension; none: any will do.
using Dimensions = std::vector<std::optional<int64_t>>;

// The metadata that a graph relies on, for a fixed list of tensors.
class TensorChecks {
 public:
  virtual ~TensorChecks() = default;
  // A plain one, with any size in the dimensions that are `open`; its strides are then left to the recording.
  virtual void add(PyObject* tensor, const std::vector<int>& open) = 0;
  // Any one that can be checked, with these sizes and strides in place of its own: as many as it has dimensions.
  virtual void add(PyObject* tensor, const Dimensions& sizes, const Dimensions& strides) = 0;
  // The index of the first of the `size()` tensors that does not match, or -1. Any object may be passed.
  virtual ptrdiff_t first_mismatch(PyObject* const* tensors) const = 0;
  // The dimensions in which the size of an object differs; none: it differs in something else.
  virtual std::optional<std::vector<int>> changed_sizes(size_t index, PyObject* tensor) const = 0;
  virtual size_t size() const = 0;
  // Both expect the same of the same number of tensors.
  virtual bool same_as(const TensorChecks& other) const = 0;
  // "float32[2, 3], was float32[2, 4]"
  virtual std::string explain(size_t index, PyObject* actual) const = 0;
};

// A snapshot of torch's global and per-thread state (grad mode, default dtype, autocast, modes, ...).
class GlobalState {
 public:
  virtual ~GlobalState() = default;
  virtual bool holds() const = 0;
  // "grad mode is on, was off"
  virtual std::string explain() const = 0;
};

class TensorPlug {
 public:
  virtual ~TensorPlug() = default;
  // Instances of this type and its subtypes are tensors; null when there are none.
  PyTypeObject* tensor_type = nullptr;

  bool is_tensor(PyObject* object) const { return tensor_type && PyObject_TypeCheck(object, tensor_type); }

  // Exactly a plain tensor or parameter, dense, without Python overrides: one that guards and graphs understand.
  // Otherwise a short reason ("a tensor subclass MyTensor").
  virtual std::string why_not_plain(PyObject* tensor) const = 0;
  virtual CallKind classify_call(PyObject* callable) const = 0;
  // Whether the C function, called with these, does nothing but call Python code with a new object before them, and
  // hand on what that returns (autograd.Function.apply where nothing needs a gradient).
  virtual bool only_calls(PyObject* callable, PyObject* const* args, size_t count) const = 0;
  // Whether the method, called with these, comes to a C function that nobody understands (autograd.Function.apply where
  // something needs a gradient).
  virtual bool leads_to_unknown(PyObject* method, PyObject* const* args, size_t count) const = 0;
  // Whether a Python function only notes something for another compiler, about objects that a program does not make.
  virtual bool may_be_left_out(PyObject* function) const = 0;
  // Whether operators go to Python code of the user's first, now.
  virtual bool hands_to_python() const = 0;
  // Whether C code calls it, with these, in the middle of tensor work that is noted as a whole.
  virtual bool is_part_of_operator(PyObject* function, PyObject* const* args) const = 0;
  // Whether it may be such an object, and which C attributes of it may be set without any effect but that.
  virtual bool is_call_context(PyObject* object) const = 0;
  virtual bool may_be_set(PyObject* name) const = 0;
  virtual CallKind classify_attribute(PyObject* tensor, PyObject* name) const = 0;
  // Whether this code with its handlers, or this bound __exit__ of a `with` block, does nothing about the error of an
  // operator that could be told afterwards.
  virtual bool ignores_errors(PyObject* handler) const = 0;
  // A tensor of truths, or something that contains one: what it selects from another depends on what it holds.
  virtual bool selects_by_contents(PyObject* key) const = 0;
  // Objects with fixed values that may be compared and baked in: dtypes, devices, layouts, memory formats, sizes.
  virtual bool is_immutable(PyTypeObject* type) const = 0;
  // A mode as an object, whose methods turn it on and off (Balanced).
  virtual bool is_mode(PyTypeObject* type) const = 0;

  // Empty if a recording may start now; otherwise why not ("a torch function mode is active").
  virtual std::string why_not_record() const = 0;
  virtual std::unique_ptr<Recording> record(std::function<void(std::string reason)> on_fail) const = 0;
  virtual std::unique_ptr<SymbolicRecording> record_symbolic(std::function<void(std::string reason)> on_fail) const = 0;
  // The dimensions that a symbolic recording can leave open: those of a size other than 0 and 1.
  virtual std::vector<int> openable(PyObject* tensor) const = 0;
  virtual SizeMarks size_marks(PyObject* tensor) const = 0;
  virtual std::unique_ptr<TensorChecks> tensor_checks() const = 0;
  virtual std::unique_ptr<GlobalState> global_state() const = 0;

  // For guards that users build, on any tensor.
  // Empty if the metadata of this tensor can be read without running Python code; otherwise why not.
  virtual std::string why_not_checked(PyObject* tensor) const = 0;
  // What tensor_property() knows, by index.
  virtual const std::vector<std::string>& tensor_properties() const = 0;
  // A new reference to a constant; null, without an error, if this tensor has no such property.
  virtual PyObject* tensor_property(PyObject* tensor, size_t index) const = 0;
  // Also what no recording depends on: the very function modes (the default device is one) and the thread count.
  virtual std::unique_ptr<GlobalState> whole_state() const = 0;
};

// The plug of this process; one without tensors until torch's is installed.
const TensorPlug& tensor_plug();
void install_tensor_plug(std::unique_ptr<TensorPlug> plug);

}  // namespace magneto::runtime
