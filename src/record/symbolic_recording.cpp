// Beside a real run: trace tensors stand for its tensors, and expressions over symbols for its numbers.
#include "record/symbolic_recording.h"

#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>

#include "cpython/gil.h"
#include "cpython/text.h"
#include "record/call_edges.h"
#include "record/plain_tensor.h"
#include "record/recorder_keys.h"
#include "record/sym_node.h"
#include "record/trace_recorder.h"
#include "record/trace_tensor.h"
#include "runtime/errors.h"
#include "runtime/state.h"
#include "runtime/torch_python.h"

namespace magneto::record {
namespace {

using graph::ExprId;
using graph::Symbols;
using runtime::Arithmetic;
using runtime::NumberId;
using runtime::unpack_tensor;

ExprId combine(Symbols& symbols, Arithmetic how, ExprId a, ExprId b) {
  switch (how) {
    case Arithmetic::Add: return symbols.add(a, b);
    case Arithmetic::Subtract: return symbols.sub(a, b);
    case Arithmetic::Multiply: return symbols.mul(a, b);
    case Arithmetic::FloorDivide: return symbols.floordiv(a, b);
    case Arithmetic::Remainder: return symbols.mod(a, b);
    case Arithmetic::Power: return symbols.pow(a, b);
    case Arithmetic::TrueDivide: return symbols.truediv(a, b);
    case Arithmetic::Negative: return symbols.neg(a);
    case Arithmetic::Not: return symbols.logical_not(a);
    case Arithmetic::Less: return symbols.lt(a, b);
    case Arithmetic::LessEqual: return symbols.le(a, b);
    case Arithmetic::Equal: return symbols.eq(a, b);
    case Arithmetic::NotEqual: return symbols.ne(a, b);
    case Arithmetic::Greater: return symbols.gt(a, b);
    case Arithmetic::GreaterEqual: return symbols.ge(a, b);
  }
  MAGNETO_BUG("an unknown operator");
}

// Whether an expression is in this call what Python computed, type and all.
bool is_value(const Symbols& symbols, ExprId expr, PyObject* value) {
  graph::Number hint = symbols.hint(expr);
  switch (symbols.type(expr)) {
    case Symbols::Type::Bool: return value == (hint.integer ? Py_True : Py_False);
    case Symbols::Type::Float: return PyFloat_CheckExact(value) && PyFloat_AS_DOUBLE(value) == hint.real;
    case Symbols::Type::Int: break;
  }
  int overflow = 0;
  return PyLong_CheckExact(value) && PyLong_AsLongLongAndOverflow(value, &overflow) == hint.integer && !overflow;
}

c10::Scalar plain_number(PyObject* number) {
  if (PyBool_Check(number)) return number == Py_True;
  if (PyFloat_Check(number)) return PyFloat_AS_DOUBLE(number);
  return static_cast<int64_t>(PyLong_AsLongLong(number));
}

class BesideRecording final : public runtime::SymbolicRecording {
 public:
  explicit BesideRecording(std::function<void(std::string)> on_fail)
      : on_fail_(std::move(on_fail)), recorder_(options()), symbols_(recorder_.symbols()) {}

  void add_input(PyObject* tensor) override { add_input(tensor, {}); }

  void add_input(PyObject* tensor, const std::vector<int>& open) override {
    if (!is_usable(tensor)) return;
    std::vector<DynamicSize> sizes;
    for (int dimension : open) sizes.push_back({dimension});
    attempt([&] {
      at::Tensor stand_in = recorder_.stand_in(unpack_tensor(tensor), "", sizes);
      if (recorder_.add_input(stand_in)) pair(tensor, std::move(stand_in));
    });
  }

  void add_state(PyObject* tensor) override {
    if (knows(tensor) || !is_usable(tensor)) return;
    attempt([&] {
      at::Tensor stand_in = recorder_.stand_in(unpack_tensor(tensor), "", {});
      if (!recorder_.add_state(stand_in, {state_role(tensor)})) return;
      pair(tensor, std::move(stand_in));
      states_.push_back(py::Ref::borrow(tensor));
    });
  }

  NumberId add_number(PyObject* value) override {
    NumberId number = 0;
    attempt([&] {
      number = PyFloat_CheckExact(value) ? recorder_.add_float(PyFloat_AS_DOUBLE(value), "")
                                         : to_expr(recorder_.add_size(PyLong_AsLongLong(value), "", "", {}), *symbols_);
    });
    return number;
  }

  bool knows(PyObject* tensor) const override { return find(tensor) != nullptr; }
  bool is_fixed(PyObject* tensor) override {
    const at::Tensor* stand_in = find(tensor);
    return stand_in && recorder_.is_fixed(*stand_in);
  }
  size_t op_count() const override { return recorder_.graph().ops.size(); }

  void watch_dimensions(PyObject* tensor, const std::vector<int>& dimensions, std::function<void()> on_pin) override {
    if (find(tensor)) watched_.push_back({*find(tensor), dimensions, std::move(on_pin)});
  }

  std::vector<int> open_dimensions(PyObject* tensor) const override {
    std::vector<int> open;
    const at::Tensor* stand_in = find(tensor);
    for (int i = 0; stand_in && i < stand_in->dim(); ++i) {
      if (expr_of(stand_in->sym_size(i), *symbols_)) open.push_back(i);
    }
    return open;
  }

  // ---- stand-ins

  PyObject* stand_in(PyObject* tensor) const override {
    const at::Tensor* found = find(tensor);
    if (!found) return PyErr_Format(PyExc_RuntimeError, "nothing stands for a tensor of the call"), nullptr;
    return runtime::wrap_tensor(at::Tensor(*found));
  }

  PyObject* stand_in(NumberId number) const override {
    switch (symbols_->type(number)) {
      case Symbols::Type::Int: return runtime::wrap_number(make_sym(symbols_, number));
      case Symbols::Type::Float: return runtime::wrap_number(make_sym_float(symbols_, number));
      case Symbols::Type::Bool: break;
    }
    return runtime::wrap_number(make_sym_bool(symbols_, number));
  }

  std::optional<NumberId> number(PyObject* stand_in) const override {
    auto number = runtime::symbolic_number(stand_in);
    return number ? expr_of(*number, *symbols_) : std::nullopt;
  }

  py::Ref run(const std::function<PyObject*()>& operation) override {
    py::Ref result;
    {
      runtime::PauseWatch pause;
      recorder_.start();
      result = py::Ref::steal(operation());
      recorder_.pause();
    }
    if (!result) fail_with_python_error();
    tell_of_pins();
    return result;
  }

  PyObject* from_numbers(PyObject* numbers, PyObject* tensor) override {
    const at::Tensor& real = unpack_tensor(tensor);
    auto fill = [&](PyObject* number) {
      auto symbol = runtime::symbolic_number(number);
      return at::full({}, symbol ? *symbol : plain_number(number), real.options().requires_grad(false));
    };
    try {
      if (!PyList_Check(numbers) && !PyTuple_Check(numbers)) return runtime::wrap_tensor(fill(numbers));
      std::vector<at::Tensor> items;
      for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(numbers); ++i)
        items.push_back(fill(PySequence_Fast_GET_ITEM(numbers, i)));
      return runtime::wrap_tensor(at::stack(items));
    } catch (...) {
      runtime::set_python_error(std::current_exception());
      return nullptr;
    }
  }

  void learn(PyObject* tensor, PyObject* stand_in) override {
    const at::Tensor& real = unpack_tensor(tensor);
    const at::Tensor& traced = unpack_tensor(stand_in);
    if (const at::Tensor* known = find(tensor)) {
      if (!known->is_same(traced)) fail("the call gets a tensor again that stand-ins make anew");
      return;
    }
    bool alike = is_trace(traced) && recorder_.knows(traced) && real.dim() == traced.dim() &&
                 real.scalar_type() == traced.scalar_type() && real.requires_grad() == traced.requires_grad();
    for (int64_t i = 0; alike && i < real.dim(); ++i) {
      alike = hint_of(traced.sym_size(i)) == real.size(i) && hint_of(traced.sym_stride(i)) == real.stride(i);
    }
    if (!alike) return fail("a tensor comes out in another way than its shape rule says");
    pair(tensor, traced);
  }

  // ---- numbers

  std::optional<NumberId> compute(Arithmetic how, const Operand& left, const Operand& right, PyObject* value) override {
    try {
      std::optional<ExprId> a = expression(left),
                            b = how == Arithmetic::Negative || how == Arithmetic::Not ? ExprId(0) : expression(right);
      if (a && b && !(how == Arithmetic::Power && may_fail(*a, *b))) {
        ExprId result = combine(*symbols_, how, *a, *b);
        if (is_value(*symbols_, result, value)) {
          return symbols_->is_constant(result) ? std::nullopt : std::optional(result);
        }
      }
    } catch (const UserError&) {  // not for these numbers
    }
    for (const Operand* operand : {&left, &right}) {
      if (operand->number) specialise(*operand->number);
    }
    return std::nullopt;
  }

  void decide(NumberId condition) override {
    attempt([&] {
      switch (symbols_->type(condition)) {
        case Symbols::Type::Bool: symbols_->decide(condition); break;
        case Symbols::Type::Int: symbols_->decide(symbols_->eq(condition, symbols_->integer(0))); break;
        case Symbols::Type::Float: symbols_->decide(symbols_->eq(condition, symbols_->real(0))); break;
      }
    });
  }

  void specialise(NumberId number) override {
    attempt([&] {
      switch (symbols_->type(number)) {
        case Symbols::Type::Bool: symbols_->decide(number); break;
        case Symbols::Type::Int: symbols_->specialise(number); break;
        case Symbols::Type::Float: symbols_->specialise_float(number); break;
      }
    });
  }

  bool is_plain(NumberId number) const override { return symbols_->is_constant(symbols_->simplify(number)); }

  // ---- the end

  std::unique_ptr<runtime::Segment> finish(const std::vector<runtime::SegmentOutput>& outputs) override {
    std::unique_ptr<runtime::Segment> segment;
    attempt([&] {
      for (auto [tensor, number] : outputs) {
        if (tensor ? !add_output(tensor) : !recorder_.add_output_size(number)) return;
      }
      recorder_.stop();
      segment = make_segment(recorder_.take_graph(), states_);
    });
    return segment;
  }

 private:
  using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

  struct WatchedSizes {
    at::Tensor stand_in;
    std::vector<int> dimensions;
    std::function<void()> on_pin;
  };

  // After anything that may have assumed something.
  void tell_of_pins() {
    std::erase_if(watched_, [this](const WatchedSizes& watched) {
      bool pinned = std::ranges::any_of(
          watched.dimensions, [&](int dimension) { return !expr_of(watched.stand_in.sym_size(dimension), *symbols_); });
      if (pinned) watched.on_pin();
      return pinned;
    });
  }

  // The weak reference keeps the address of the real tensor from being used again.
  struct Pair {
    WeakTensor real;
    at::Tensor stand_in;
  };

  RecorderOptions options() {
    RecorderOptions options;
    options.on_refuse = [this](const Refusal& refusal) {
      py::Gil gil;
      fail(refusal.reason);
      runtime::throw_python_error(PyExc_RuntimeError, refusal.reason);
    };
    options.beside = true;
    options.answers = true;
    options.answer = [this](const at::Tensor& stand_in) -> std::optional<c10::Scalar> {
      auto found = reals_.find(stand_in.unsafeGetTensorImpl());
      at::Tensor real(found == reals_.end() ? nullptr : pairs_.at(found->second).real.lock());
      if (!real.defined()) return std::nullopt;
      c10::impl::ExcludeDispatchKeyGuard off(kBothKeys);
      return real.item();
    };
    return options;
  }

  void fail(const std::string& reason) {
    if (!std::exchange(has_failed_, true)) on_fail_(reason);
  }

  void fail_with_python_error() {
    std::string text = py::take_error();
    fail("the work on tensors cannot be done for other sizes: " + text);
  }

  template <class Work>
  void attempt(Work work) {
    try {
      work();
    } catch (...) {
      runtime::set_python_error(std::current_exception());
      fail_with_python_error();
    }
    tell_of_pins();
  }

  bool is_usable(PyObject* tensor) {
    auto reason = why_not_plain(tensor);
    if (!reason.empty()) fail(reason);
    return reason.empty();
  }

  const at::Tensor* find(PyObject* tensor) const {
    auto found = pairs_.find(unpack_tensor(tensor).unsafeGetTensorImpl());
    return found == pairs_.end() ? nullptr : &found->second.stand_in;
  }

  void pair(PyObject* tensor, at::Tensor stand_in) {
    const at::Tensor& real = unpack_tensor(tensor);
    reals_.emplace(stand_in.unsafeGetTensorImpl(), real.unsafeGetTensorImpl());
    pairs_.emplace(real.unsafeGetTensorImpl(), Pair{WeakTensor(real.getIntrusivePtr()), std::move(stand_in)});
  }

  bool add_output(PyObject* tensor) {
    const at::Tensor* stand_in = find(tensor);
    if (!stand_in) return fail("an output that no recorded operator made"), false;
    if (!recorder_.add_output(*stand_in)) return false;
    auto reason = why_not_given_out(tensor, recorder_.graph());
    if (!reason.empty()) fail(reason);
    return reason.empty();
  }

  // A power of floats for which Python has an error or a complex number.
  bool may_fail(ExprId base, ExprId exponent) const {
    using enum Symbols::Type;
    if (symbols_->type(base) == Int && symbols_->type(exponent) == Int) return false;
    return symbols_->type(base) != Int || symbols_->range(base).min < 1 || !symbols_->is_constant(exponent);
  }

  // None: a number that has no expression.
  std::optional<ExprId> expression(const Operand& operand) {
    if (operand.number) return symbols_->simplify(*operand.number);
    if (PyFloat_CheckExact(operand.plain)) return symbols_->real(PyFloat_AS_DOUBLE(operand.plain));
    int overflow = 0;
    long long number = PyLong_CheckExact(operand.plain) ? PyLong_AsLongLongAndOverflow(operand.plain, &overflow) : 0;
    bool fits = PyLong_CheckExact(operand.plain) && !overflow;
    return fits ? std::optional(symbols_->integer(number)) : std::nullopt;
  }

  std::function<void(std::string)> on_fail_;
  bool has_failed_ = false;
  TraceRecorder recorder_;
  std::shared_ptr<Symbols> symbols_;
  ska::flat_hash_map<c10::TensorImpl*, Pair> pairs_;              // by the real tensor
  ska::flat_hash_map<c10::TensorImpl*, c10::TensorImpl*> reals_;  // by what stands for them
  std::vector<py::Ref> states_;
  std::vector<WatchedSizes> watched_;
};

}  // namespace

std::unique_ptr<runtime::SymbolicRecording> start_symbolic_recording(std::function<void(std::string)> on_fail) {
  return std::make_unique<BesideRecording>(std::move(on_fail));
}

}  // namespace magneto::record
