// The small machine that runs residual programs.
#include "program/program.h"

#include <algorithm>
#include <array>
#include <span>

#include "cpython/cpython.h"
#include "cpython/error_aside.h"
#include "cpython/text.h"
#include "guard/atoms.h"
#include "guard/deaths.h"
#include "guard/reads.h"
#include "program/memo.h"
#include "program/operators.h"
#include "runtime/config.h"

namespace magneto::program {

// References that are dropped when a run ends, on every path.
class Program::Registers {
 public:
  ~Registers() { clear(); }
  // Makes room for so many.
  PyObject** reserve(ptrdiff_t count) {
    if (count <= count_) return data_;
    if (count > std::ssize(inline_)) {
      if (heap_.empty()) heap_.assign(inline_.begin(), inline_.begin() + count_);
      heap_.resize(static_cast<size_t>(count));
      data_ = heap_.data();
    }
    std::fill(data_ + count_, data_ + count, nullptr);
    count_ = count;
    return data_;
  }
  // The same for the first run, if it fills these alone.
  PyObject** reserve(ptrdiff_t count, const std::vector<uint32_t>& filled) {
    if (count_ || filled.empty() || count > std::ssize(inline_)) return reserve(count);
    for (uint32_t number : filled) data_[number] = nullptr;
    filled_ = &filled;
    return data_;
  }
  PyObject*& operator[](size_t index) { return data_[index]; }
  PyObject* const* data() const { return data_; }
  void clear(ptrdiff_t first = 0) {
    for (ptrdiff_t i = first; i < count_; ++i) Py_CLEAR(data_[i]);
    if (filled_)
      for (uint32_t number : *filled_) Py_CLEAR(data_[number]);
  }

 private:
  std::array<PyObject*, 128> inline_;  // filled as far as it is used
  std::vector<PyObject*> heap_;
  PyObject** data_ = inline_.data();
  ptrdiff_t count_ = 0;
  const std::vector<uint32_t>* filled_ = nullptr;
};

// What is in registers, side by side and borrowed; on the stack if it is little.
class Values {
 public:
  Values(std::span<const uint32_t> numbers, PyObject* const* registers)
      : heap_(numbers.size() > inline_.size() ? numbers.size() : 0) {
    data = heap_.empty() ? inline_.data() : heap_.data();
    for (size_t i = 0; i < numbers.size(); ++i) data[i] = registers[numbers[i]];
  }
  Values(const Values&) = delete;
  Values& operator=(const Values&) = delete;
  PyObject** data;

 private:
  std::array<PyObject*, 8> inline_;
  std::vector<PyObject*> heap_;
};

Program::Program(const Program* before) : registers_(before ? before->registers_ : 0) {
  if (before) older_registers_ = before->older_registers_;
}
Program::~Program() = default;

Stretch::Stretch() = default;
Stretch::~Stretch() = default;
int Stretch::traverse(visitproc visit, void* arg) const {
  if (int stop = Entry::traverse(visit, arg)) return stop;
  return program->traverse(visit, arg);
}

Instruction Program::add(Op op, uint32_t index, const std::vector<uint32_t>& operands) {
  auto count = static_cast<uint32_t>(operands.size());
  Instruction instruction{op, index, static_cast<uint32_t>(operands_.size()), count, registers_++};
  operands_.insert(operands_.end(), operands.begin(), operands.end());
  return instruction;
}

uint32_t Program::emit(Op op, uint32_t index, const std::vector<uint32_t>& operands) {
  uint32_t* known = op == Op::Constant ? &constant_registers_[index] : nullptr;
  if (known && *known != kNoRegister) return result_ = *known;
  Instruction instruction = add(op, index, operands);
  (op < Op::Output ? before_ : after_).push_back(instruction);
  if (op == Op::Older) older_registers_.push_back(instruction.result);
  if (known) *known = instruction.result;
  return result_ = instruction.result;
}

uint32_t Program::emit(Exit* exit, Op op, uint32_t index, const std::vector<uint32_t>& operands) {
  exit->build.push_back(add(op, index, operands));
  return exit->build.back().result;
}

uint32_t Program::add_constant(PyObject* value) {
  // Loops that were unrolled use the same few again and again.
  static constexpr size_t kRemembered = 16;
  for (size_t i = constants_.size(); i-- > 0 && constants_.size() - i <= kRemembered;)
    if (constants_[i].get() == value) return static_cast<uint32_t>(i);
  constants_.push_back(py::Ref::borrow(value));
  constant_registers_.push_back(kNoRegister);
  return static_cast<uint32_t>(constants_.size() - 1);
}

void Program::set_segment(std::unique_ptr<runtime::Segment> segment) {
  segment_ = std::move(segment);
  has_tensor_work_ = segment_->op_count() || segment_->output_count();
}

uint32_t Program::add_older(PyObject* object) {
  older_.push_back(object);
  return static_cast<uint32_t>(older_.size() - 1);
}

uint32_t Program::add_recipe(Recipe recipe) {
  recipes_.push_back(std::move(recipe));
  return static_cast<uint32_t>(recipes_.size() - 1);
}

uint32_t Program::add_iterator(IteratorState iterator) {
  iterators_.push_back(std::move(iterator));
  return static_cast<uint32_t>(iterators_.size() - 1);
}

uint32_t Program::add_place(CodePlace place) {
  places_.push_back(std::move(place));
  return static_cast<uint32_t>(places_.size() - 1);
}

// False, without an error, if something is not as it must be.
[[gnu::always_inline]] inline bool Program::prepare(const Instruction& instruction, PyObject* const* arguments,
                                                    PyObject** registers) const {
  const uint32_t* operands = operands_.data() + instruction.first_operand;
  auto operand = [&](uint32_t i) { return registers[operands[i]]; };
  PyObject*& result = registers[instruction.result];
  switch (instruction.op) {
    case Op::Argument: result = Py_NewRef(arguments[instruction.index]); return true;
    case Op::Older: result = Py_NewRef(older_[instruction.index]); return true;
    case Op::Constant: result = Py_NewRef(constants_[instruction.index].get()); return true;
    case Op::LoadKey:
      result = Py_XNewRef(guard::find_key(operand(0), constants_[instruction.index].get()));
      return result != nullptr;
    case Op::LoadCell: result = Py_XNewRef(PyCell_GET(operand(0))); return result != nullptr;
    case Op::LoadItem:
      if (!PyTuple_Check(operand(0)) || instruction.index >= static_cast<size_t>(PyTuple_GET_SIZE(operand(0))))
        return false;
      result = Py_NewRef(PyTuple_GET_ITEM(operand(0), instruction.index));
      return true;
    case Op::CheckLength:
      return PyTuple_Check(operand(0)) && PyTuple_GET_SIZE(operand(0)) == static_cast<Py_ssize_t>(instruction.index);
    case Op::Unary:
    case Op::Binary:
      result = kOperators[instruction.index].apply(operand(0), instruction.operand_count > 1 ? operand(1) : nullptr);
      break;
    case Op::Compare: result = PyObject_RichCompare(operand(0), operand(1), static_cast<int>(instruction.index)); break;
    case Op::CheckType: return (PyObject*)Py_TYPE(operand(0)) == constants_[instruction.index].get();
    case Op::CheckTruth: return PyObject_IsTrue(operand(0)) == static_cast<int>(instruction.index);
    case Op::CheckSame: return guard::same_value(operand(0), constants_[instruction.index].get());
    case Op::CheckDrop:
      return guard::drops_quietly(operand(0), instruction.operand_count > 1 ? operand(1) : nullptr, instruction.index);
    case Op::CheckDropAttribute: {
      PyObject** dict = mg_dict_slot(operand(0));
      return !dict || !*dict || guard::drops_quietly(*dict, operand(1), instruction.index);
    }
    default: return false;
  }
  if (!result) PyErr_Clear();  // the function itself raises it
  return result != nullptr;
}

bool Program::change(const Instruction& instruction, PyObject* const* registers) const {
  const uint32_t* operands = operands_.data() + instruction.first_operand;
  auto operand = [&](uint32_t i) { return registers[operands[i]]; };
  auto constant = [&] { return constants_[instruction.index].get(); };
  switch (instruction.op) {
    case Op::SetAttribute: return PyObject_GenericSetAttr(operand(0), constant(), operand(1)) == 0;
    case Op::DeleteAttribute: return PyObject_GenericSetAttr(operand(0), constant(), nullptr) == 0;
    case Op::SetItem: return PyObject_SetItem(operand(0), operand(1), operand(2)) == 0;
    case Op::DeleteItem: return PyObject_DelItem(operand(0), operand(1)) == 0;
    case Op::SetCell: return PyCell_Set(operand(0), instruction.operand_count > 1 ? operand(1) : nullptr) == 0;
    default: {
      Values values({operands, instruction.operand_count}, registers);
      return static_cast<bool>(
          py::Ref::steal(PyObject_Vectorcall(constant(), values.data, instruction.operand_count, nullptr)));
    }
  }
}

PyObject* Program::find_plain_result(PyObject* const* registers) const {
  if (cut_ || !after_.empty()) return nullptr;
  bool only_reads = !has_tensor_work_ && segment_inputs_.empty() && !known_ && apart_.empty() && same_.empty();
  if (!only_reads) return nullptr;
  const Steps& left = has_memo_ ? memo_->rest : *steps_;
  return left.others.empty() && (!has_memo_ || memo_->has_values()) ? registers[result_] : nullptr;
}

bool Program::is_as_in_last_run() const {
  if (!memo_) return true;
  if (!memo_->holds()) return false;
  memo_->note_hit();
  return true;
}

Steps Program::steps_of(const std::vector<Instruction>& instructions) const {
  Steps steps;
  for (const Instruction& instruction : instructions) {
    if (instruction.op == Op::Constant)
      steps.fetched.emplace_back(instruction.result, constants_[instruction.index].get());
    else if (instruction.op == Op::Older)
      steps.fetched.emplace_back(instruction.result, older_[instruction.index]);
    else
      steps.others.push_back(instruction);
  }
  return steps;
}

bool Program::prepare_all(const Steps& steps, PyObject* const* arguments, PyObject** registers) const {
  for (auto [number, object] : steps.fetched) registers[number] = Py_NewRef(object);
  for (const Instruction& instruction : steps.others)
    if (!prepare(instruction, arguments, registers)) return false;
  return true;
}

// All that comes before the tensor work. Null: diverged.
PyObject** Program::prepare_all(PyObject* const* arguments, Registers& registers) const {
  if (!steps_) steps_ = std::make_unique<Steps>(steps_of(before_));
  if (has_memo_ && !memo_) has_memo_ = (memo_ = Memo::of(*this)) != nullptr;
  if (has_memo_ && memo_->holds()) {
    PyObject** r = registers.reserve(registers_, memo_->filled);
    memo_->note_hit();
    memo_->recall(r);
    return prepare_all(memo_->rest, arguments, r) ? r : nullptr;
  }
  PyObject** r = registers.reserve(registers_);
  if (has_memo_) memo_->note_miss(), memo_->note_versions();
  if (!prepare_all(*steps_, arguments, r)) return nullptr;
  if (has_memo_) memo_->note_values(r);
  if (has_memo_ && memo_->is_useless()) has_memo_ = false;
  plain_result_ = find_plain_result(r);
  return r;
}

bool Program::run_segment(PyObject* const* tensors, PyObject* const* registers, Registers& outputs) const {
  if (input_checks_ && input_checks_->first_mismatch(Values(checked_inputs_, registers).data) >= 0) return false;
  return segment_->run(segment_inputs_.empty() ? tensors : Values(segment_inputs_, registers).data,
                       outputs.reserve(static_cast<ptrdiff_t>(segment_->output_count())));
}

void Program::keep_apart(Apart apart) {
  if (apart.nodes.empty() || apart.objects.empty()) return;
  std::ranges::sort(apart.objects);
  auto repeated = std::ranges::unique(apart.objects);
  apart.objects.erase(repeated.begin(), repeated.end());
  apart_.push_back(std::move(apart));
}

bool Program::is_apart(PyObject* const* arguments) const {
  return std::ranges::none_of(apart_, [&](const Apart& apart) {
    return std::ranges::any_of(
        apart.nodes, [&](uint32_t node) { return std::ranges::binary_search(apart.objects, arguments[node]); });
  });
}

// Fills in what the nodes stand for.
bool Program::match_known(Registers& registers, std::vector<PyObject*>* values) const {
  Values roots(known_->roots, registers.data());
  values->resize(known_->contents->node_count());
  return known_->contents->match({roots.data, known_->roots.size(), nullptr}, values->data(), nullptr);
}

bool Program::finds_again(const std::vector<PyObject*>& values, PyObject* const* registers) const {
  return std::ranges::all_of(known_->again, [&](auto pair) { return values[pair.first] == registers[pair.second]; });
}

End Program::run_stretch(Nodes& nodes, PyObject* const* tensors, Registers& registers, bool diverges) const {
  Registers outputs;
  std::vector<PyObject*> own;
  if (known_ && !match_known(registers, &own)) return End::Diverged;
  PyObject* const* arguments = known_ ? own.data() : nodes.values;
  if (!is_apart(arguments)) return End::Diverged;
  PyObject** r = prepare_all(arguments, registers);
  if (!r || diverges || !are_same(r) || (known_ && !finds_again(own, r))) return End::Diverged;
  if ((has_tensor_work_ || !segment_inputs_.empty()) && !run_segment(tensors, r, outputs)) {
    if (!PyErr_Occurred()) return End::Diverged;
    return segment_->rerunnable() ? End::Failed : End::Raised;
  }
  if (known_) nodes = {own.data(), std::move(own)};  // which stay where they are
  for (const Instruction& instruction : after_) {
    if (instruction.op == Op::Output) {
      r[instruction.result] = Py_NewRef(outputs[instruction.index]);
    } else if (instruction.op >= Op::SetAttribute) {
      if (!change(instruction, r)) return End::Raised;
    } else if (!(r[instruction.result] = build(instruction, r))) {
      return End::Raised;
    }
  }
  return End::Returned;
}

namespace {

// The frame of a function that stands at this place, with these registers in its slots.
mg_snapshot* stand(const CodePlace& at, PyObject* function, std::span<const uint32_t> slots,
                   PyObject* const* registers) {
  auto* code = (PyCodeObject*)at.code.get();
  int depth = static_cast<int>(slots.size()) - code->co_nlocalsplus;
  mg_snapshot* snapshot = mg_snapshot_new((PyFunctionObject*)function, code, at.index, depth);
  for (size_t i = 0; snapshot && i < slots.size(); ++i)
    snapshot->values[i] = slots[i] == kNoRegister ? nullptr : Py_XNewRef(registers[slots[i]]);
  return snapshot;
}

// Dropping what they hold may run code, which must not see or lose the error that is set.
void take_down_after_error(PyThreadState* thread, int count) {
  py::ErrorAside aside;
  mg_frames_take_down(thread, count);
}

}  // namespace

// Those of the call, for what is called at the cut to see, as far as their values are in registers. How many; -1: error
// set.
int Program::put_up_frames(PyThreadState* thread, Registers& registers) const {
  const std::vector<FrameState>& frames = cut_->before.frames;
  auto is_generator = [](const FrameState& frame) { return frame.generator != kNoRegister; };
  if (cut_->is_question || std::ranges::any_of(frames, is_generator)) return 0;
  PyObject** r = registers.reserve(registers_);
  int count = 0;
  for (const FrameState& frame : frames) {
    auto* code = (PyCodeObject*)frame.at.code.get();
    mg_standing_frame standing{frame.function, code, frame.at.index, frame.slots.data()};
    if (!mg_frame_put_up(thread, &standing, r)) return take_down_after_error(thread, count), -1;
    ++count;
  }
  return count;
}

// Of what is unknown; puts the result into its register. Borrowed; null: error set.
PyObject* Program::make_call(Registers& registers) const {
  Values values(cut_->arguments, registers.data());
  PyObject* names = cut_->keyword_names.get();
  size_t positional = cut_->arguments.size() - (names ? static_cast<size_t>(PyTuple_GET_SIZE(names)) : 0);
  PyThreadState* thread = PyThreadState_Get();
  auto depth = static_cast<int>(cut_->before.frames.size());
  int frames = put_up_frames(thread, registers);
  if (frames < 0) return nullptr;
  mg_recursion_use(thread, depth);
  PyObject* result = PyObject_Vectorcall(registers[cut_->callable], values.data, positional, names);
  if (result)
    mg_frames_take_down(thread, frames);
  else
    take_down_after_error(thread, frames);
  mg_recursion_use(thread, -depth);
  return registers[cut_->result] = result;
}

// CPython goes on with the call; if an error is set, its innermost instruction has raised it.
PyObject* Program::leave(const Exit& exit, Registers& registers) const {
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  std::vector<mg_snapshot*> chain;
  PyObject** r = registers.reserve(registers_);
  bool ready = true;
  for (const Instruction& instruction : exit.build) {
    bool is_constant = instruction.op == Op::Constant;
    r[instruction.result] = is_constant ? Py_NewRef(constants_[instruction.index].get()) : build(instruction, r);
    ready = ready && r[instruction.result];
  }
  for (const FrameState& frame : exit.frames) {
    if (!ready) break;
    mg_snapshot* snapshot = stand(frame.at, r[frame.function], frame.slots, r);
    ready = snapshot != nullptr;
    if (ready && frame.generator != kNoRegister) snapshot->generator = Py_NewRef(r[frame.generator]);
    if (ready && frame.made != kNoRegister) snapshot->instead = Py_NewRef(r[frame.made]);
    if (ready) chain.push_back(snapshot);
  }
  if (!ready) {
    for (mg_snapshot* snapshot : chain) mg_snapshot_free(snapshot);
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(traceback);
    return nullptr;
  }
  registers.clear();  // what the call drops from now on must go at once
  PyErr_Restore(type, value, traceback);
  return mg_resume(PyThreadState_Get(), chain.data(), static_cast<int>(chain.size()));
}

// Runs what follows the cut under the guards that hold now; null: nothing fits, and nothing has happened.
const Program* Program::run_next(Nodes& nodes, PyObject* const* tensors, Registers& registers, bool diverges,
                                 End* end) const {
  std::vector<const guard::Entry*> diverged;
  while (const guard::Entry* entry = cut_->next.find(diverged)) {
    const Program* next = static_cast<const Stretch*>(entry)->program.get();
    *end = next->run_stretch(nodes, tensors, registers, diverges);
    if (*end == End::Returned || *end == End::Raised) return next;
    registers.clear(registers_);
    if (*end == End::Failed) {  // CPython raises it again, where it may be handled
      PyErr_Clear();
      return nullptr;
    }
    diverged.push_back(entry);
  }
  return nullptr;
}

Misfit Program::why_it_diverges(const Nodes& nodes, Registers& registers) const {
  static constexpr const char* kAnother = "a value that the call computes with or asks from a tensor is another one";
  std::vector<PyObject*> own;
  if (known_ && !match_known(registers, &own)) {
    Values roots(known_->roots, registers.data());
    return {known_->contents->explain({roots.data, known_->roots.size(), nullptr})};
  }
  PyObject* const* arguments = known_ ? own.data() : nodes.values;
  PyObject** r = registers.reserve(registers_);
  for (const Instruction& instruction : before_) {
    if (prepare(instruction, arguments, r)) continue;
    if (instruction.op != Op::CheckSame) return {kAnother};
    PyObject *now = r[operands_[instruction.first_operand]], *was = constants_[instruction.index].get();
    if (!guard::is_plain_number(now) || !guard::is_plain_number(was)) return {kAnother};
    return {"a number that the call asks for is " + py::repr(now, 60) + ", was " + py::repr(was, 60), true};
  }
  Values inputs(checked_inputs_, r);
  ptrdiff_t other = input_checks_ ? input_checks_->first_mismatch(inputs.data) : -1;
  if (other < 0) {
    Values all(segment_inputs_, r);
    std::string why = segment_inputs_.empty() ? "" : segment_->why_sizes_differ(all.data);
    return {why.empty() ? kAnother : why};
  }
  auto index = static_cast<size_t>(other);
  return {"a tensor that the call asks for is " + input_checks_->explain(index, inputs.data[index]),
          input_checks_->changed_sizes(index, inputs.data[index]).has_value()};
}

Misfit Program::why_nothing_fits(const Nodes& nodes, Registers& registers) const {
  if (cut_->stretches.empty()) return {"what follows was not captured so far"};
  const Stretch& newest = *cut_->stretches.back();
  std::string why = cut_->next.explain(newest, {});
  if (!why.empty()) return {why};
  Misfit misfit = newest.program->why_it_diverges(nodes, registers);
  registers.clear(registers_);
  return misfit;
}

// Of an older object that nobody else has any more.
bool Program::holds_back_a_death(Registers& registers) const {
  return std::ranges::any_of(older_registers_, [&](uint32_t number) {
    PyObject* object = registers[number];
    return object && Py_REFCNT(object) == 1 && !guard::dies_quietly(object, 1);
  });
}

PyObject* Program::run(PyObject* const* arguments, PyObject* const* tensors, End* end, Misfit* why_left) const {
  Registers registers;
  Nodes nodes{arguments, {}};
  *end = run_stretch(nodes, tensors, registers);
  const Program* program = this;
  int64_t cuts_made = 0;
  while (*end == End::Returned) {
    const Cut* cut = program->cut_.get();
    if (!cut) return std::exchange(registers[program->result_], nullptr);
    if (cut->callable == kNoRegister || !program->make_call(registers)) return program->leave(cut->before, registers);
    bool leaves = ++cuts_made == runtime::config().leave_at_cut;
    // CPython drops an object when nobody needs it any more, and so do we, but later.
    leaves |= !guard::dies_quietly(registers[cut->result], 1);
    leaves |= !cut->is_question && program->holds_back_a_death(registers);
    const Program* next =
        leaves ? nullptr
               : program->run_next(nodes, tensors, registers, cuts_made == runtime::config().diverge_at_cut, end);
    if (!next) {
      *end = leaves ? End::Returned : End::Left;
      if (!leaves && why_left) *why_left = program->why_nothing_fits(nodes, registers);
      return program->leave(cut->after, registers);
    }
    program = next;
  }
  return nullptr;
}

bool Cut::same_as(const Cut& other) const {
  bool same_names = keyword_names == other.keyword_names ||
                    (keyword_names && other.keyword_names &&
                     PyObject_RichCompareBool(keyword_names.get(), other.keyword_names.get(), Py_EQ) == 1);
  return same_names && callable == other.callable && arguments == other.arguments && result == other.result &&
         before == other.before && after == other.after;
}

bool Program::same_as(const Program& other) const {
  auto same = [](const py::Ref& a, const py::Ref& b) { return guard::same_value(a.get(), b.get()); };
  bool same_end = cut_ && other.cut_ ? cut_->same_as(*other.cut_) : cut_ == other.cut_ && result_ == other.result_;
  bool same_known = known_ && other.known_ ? *known_ == *other.known_ : !known_ && !other.known_;
  return same_end && same_known && apart_ == other.apart_ && same_ == other.same_ && before_ == other.before_ &&
         after_ == other.after_ && operands_ == other.operands_ && registers_ == other.registers_ &&
         older_ == other.older_ && recipes_ == other.recipes_ && iterators_ == other.iterators_ &&
         places_ == other.places_ && segment_inputs_ == other.segment_inputs_ &&
         checked_inputs_ == other.checked_inputs_ && !input_checks_ == !other.input_checks_ &&
         (!input_checks_ || input_checks_->same_as(*other.input_checks_)) &&
         std::ranges::equal(constants_, other.constants_, same) &&
         segment_->fingerprint() == other.segment_->fingerprint();
}

PyObject* Program::build(const Instruction& instruction, PyObject* const* registers) const {
  const uint32_t* operands = operands_.data() + instruction.first_operand;
  uint32_t count = instruction.operand_count;
  switch (instruction.op) {
    case Op::Tuple:
    case Op::NamedTuple:
    case Op::Struct: {
      py::Ref tuple = py::Ref::steal(PyTuple_New(count));
      if (!tuple) return nullptr;
      for (uint32_t i = 0; i < count; ++i) PyTuple_SET_ITEM(tuple.get(), i, Py_NewRef(registers[operands[i]]));
      if (instruction.op == Op::Tuple) return tuple.release();
      auto* type = (PyTypeObject*)constants_[instruction.index].get();
      py::Ref packed = py::Ref::steal(PyTuple_Pack(1, tuple.get()));
      newfunc make = instruction.op == Op::NamedTuple ? PyTuple_Type.tp_new : type->tp_new;
      return packed ? make(type, packed.get(), nullptr) : nullptr;
    }
    case Op::List: {
      PyObject* list = PyList_New(count);
      for (uint32_t i = 0; list && i < count; ++i) PyList_SET_ITEM(list, i, Py_NewRef(registers[operands[i]]));
      return list;
    }
    case Op::Dict: {
      py::Ref dict = py::Ref::steal(PyDict_New());
      for (uint32_t i = 0; dict && i < count; i += 2)
        if (PyDict_SetItem(dict.get(), registers[operands[i]], registers[operands[i + 1]]) < 0) return nullptr;
      return dict.release();
    }
    case Op::Set: {
      py::Ref set = py::Ref::steal(PySet_New(nullptr));
      for (uint32_t i = 0; set && i < count; ++i)
        if (PySet_Add(set.get(), registers[operands[i]]) < 0) return nullptr;
      return set.release();
    }
    case Op::Method: return PyMethod_New(registers[operands[0]], registers[operands[1]]);
    case Op::BoundMethod: {
      PyObject *descriptor = registers[operands[0]], *self = registers[operands[1]];
      return Py_TYPE(descriptor)->tp_descr_get(descriptor, self, (PyObject*)Py_TYPE(self));
    }
    case Op::Cell: return PyCell_New(count ? registers[operands[0]] : nullptr);
    case Op::Function: return build_function(places_[instruction.index], operands, registers);
    case Op::Generator: return build_generator(instruction, registers);
    case Op::Make:
      return PyObject_Vectorcall(constants_[instruction.index].get(), Values({operands, count}, registers).data, count,
                                 nullptr);
    case Op::Iterator: {
      const IteratorState& iterator = iterators_[instruction.index];
      PyObject* parts[MG_ITERATOR_WORDS];
      for (uint32_t i = 0; i < count; ++i) parts[i] = registers[operands[i]];
      return mg_iterator_new((PyTypeObject*)iterator.type.get(), &iterator.state, parts);
    }
    default: return build_instance(recipes_[instruction.index], operands, registers);
  }
}

PyObject* Program::build_function(const CodePlace& place, const uint32_t* operands, PyObject* const* registers) const {
  auto operand = [&](int i) { return operands[i] == kNoRegister ? nullptr : Py_NewRef(registers[operands[i]]); };
  auto* function = (PyFunctionObject*)PyFunction_New(place.code.get(), registers[operands[0]]);
  if (!function) return nullptr;
  function->func_defaults = operand(1);
  function->func_kwdefaults = operand(2);
  function->func_annotations = operand(3);
  function->func_closure = operand(4);
  return (PyObject*)function;
}

PyObject* Program::build_generator(const Instruction& instruction, PyObject* const* registers) const {
  std::span operands(operands_.data() + instruction.first_operand, instruction.operand_count);
  const CodePlace& place = places_[instruction.index];
  PyObject* function = registers[operands[0]];
  if (place.index == kNowhere)
    return mg_new_generator(PyThreadState_Get(), (PyFunctionObject*)function, (PyCodeObject*)place.code.get());
  mg_snapshot* snapshot = stand(place, function, operands.subspan(1), registers);
  return snapshot ? mg_suspended_generator(PyThreadState_Get(), snapshot) : nullptr;
}

PyObject* Program::build_instance(const Recipe& recipe, const uint32_t* operands, PyObject* const* registers) const {
  static constexpr PyTypeObject* kBases[] = {&PyBaseObject_Type, &PyDict_Type, &PyODict_Type, &PyList_Type};
  auto* type = (PyTypeObject*)recipe.type.get();
  py::Ref empty = py::Ref::steal(PyTuple_New(0));
  py::Ref object = py::Ref::steal(kBases[static_cast<int>(recipe.base)]->tp_new(type, empty.get(), nullptr));
  if (!object) return nullptr;
  uint32_t at = 0;
  auto next = [&] { return registers[operands[at++]]; };
  while (at < recipe.item_count) {
    int failed;
    if (recipe.base == Recipe::Base::List) {
      failed = PyList_Append(object.get(), next());
    } else {
      PyObject* key = next();
      auto set_item = recipe.base == Recipe::Base::Dict ? PyDict_SetItem : PyODict_SetItem;
      failed = set_item(object.get(), key, next());
    }
    if (failed) return nullptr;
  }
  for (const py::Ref& name : recipe.attributes)
    if (PyObject_GenericSetAttr(object.get(), name.get(), next()) < 0) return nullptr;
  for (const py::Ref& slot : recipe.slots)
    if (Py_TYPE(slot.get())->tp_descr_set(slot.get(), object.get(), next()) < 0) return nullptr;
  return object.release();
}

namespace {

// Runs no code of the user's.
std::string shown(PyObject* constant) {
  bool plain = guard::is_atom(constant) || Py_TYPE(constant) == &PyMethodDescr_Type;
  return plain ? py::repr(constant, 60) : "a " + py::type_name(constant);
}

std::string register_name(uint32_t number) { return number == kNoRegister ? "-" : "r" + std::to_string(number); }

}  // namespace

std::string Program::text(const Instruction& instruction) const {
  static constexpr const char* kNames[] = {
      "argument", "older object", "constant", "load key", "load cell",   "load item", "compute",  "compute",
      "compare",  "check",        "check",    "check",    "check",       "drop",      "drop",     "output",
      "tuple",    "list",         "dict",     "set",      "named tuple", "struct",    "instance", "cell",
      "method",   "method",       "function", "iterator", "generator",   "make",      "set",      "delete",
      "set item", "delete item",  "set cell", "call"};
  static constexpr const char* kComparisons[] = {"<", "<=", "==", "!=", ">", ">="};
  bool checks = is_check(instruction.op);
  bool has_result = !checks && instruction.op < Op::SetAttribute;
  std::string text = has_result ? "r" + std::to_string(instruction.result) + " = " : "";
  text += kNames[static_cast<int>(instruction.op)];
  switch (instruction.op) {
    case Op::Argument:
    case Op::Older:
    case Op::Output: text += " " + std::to_string(instruction.index); break;
    case Op::Constant:
    case Op::LoadKey:
    case Op::SetAttribute:
    case Op::DeleteAttribute:
    case Op::CheckSame:
    case Op::Make:
    case Op::Call: text += " " + shown(constants_[instruction.index].get()); break;
    case Op::NamedTuple:
    case Op::Struct:
    case Op::CheckType: text += std::string(" ") + ((PyTypeObject*)constants_[instruction.index].get())->tp_name; break;
    case Op::LoadItem: text += " " + std::to_string(instruction.index); break;
    case Op::CheckLength: text += " length " + std::to_string(instruction.index); break;
    case Op::CheckTruth: text += instruction.index ? " true" : " false"; break;
    case Op::Compare: text += std::string(" ") + kComparisons[instruction.index]; break;
    case Op::Unary:
    case Op::Binary: text += std::string(" ") + kOperators[instruction.index].text; break;
    case Op::Iterator:
      text += std::string(" ") + ((PyTypeObject*)iterators_[instruction.index].type.get())->tp_name;
      break;
    case Op::Function:
    case Op::Generator:
      text += " " + py::text(((PyCodeObject*)places_[instruction.index].code.get())->co_qualname);
      break;
    case Op::Instance:
      text += std::string(" ") + ((PyTypeObject*)recipes_[instruction.index].type.get())->tp_name;
      break;
    default: break;
  }
  for (uint32_t k = 0; k < instruction.operand_count; ++k)
    text += (k ? ", " : " ") + register_name(operands_[instruction.first_operand + k]);
  return text + "\n";
}

std::vector<runtime::Segment*> Program::segments() const {
  std::vector<runtime::Segment*> all;
  if (segment_->op_count()) all.push_back(segment_.get());
  if (!cut_) return all;
  for (const auto& stretch : cut_->stretches)
    for (runtime::Segment* segment : stretch->program->segments()) all.push_back(segment);
  return all;
}

std::string Program::plain_text() const {
  std::string all;
  for (const Instruction& instruction : before_) all += text(instruction);
  all += "segment: " + std::to_string(segment_->op_count()) + " operations, " +
         std::to_string(segment_->output_count()) + " outputs\n";
  for (const Instruction& instruction : after_) all += text(instruction);
  if (!cut_) return all + "return r" + std::to_string(result_) + "\n";
  if (cut_->callable == kNoRegister) return all;
  all += "cut: r" + std::to_string(cut_->result) + " = call r" + std::to_string(cut_->callable);
  for (uint32_t argument : cut_->arguments) all += ", r" + std::to_string(argument);
  return all + "\n";
}

std::string Program::text() const {
  std::string all = listing_.empty() ? plain_text() : listing_;
  if (!cut_) return all;
  for (const auto& stretch : cut_->stretches) all += stretch->program->text();
  return cut_->stretches.empty() ? all + "CPython goes on\n" : all;
}

int Program::traverse(visitproc visit, void* arg) const {
  for (const py::Ref& constant : constants_) Py_VISIT(constant.get());
  if (int stop = segment_ ? segment_->traverse(visit, arg) : 0) return stop;
  if (int stop = known_ ? known_->contents->traverse(visit, arg) : 0) return stop;
  if (cut_) {
    if (int stop = cut_->next.traverse(visit, arg)) return stop;
    for (const Exit* exit : {&cut_->before, &cut_->after})
      for (const FrameState& frame : exit->frames) Py_VISIT(frame.at.code.get());
  }
  for (const CodePlace& place : places_) Py_VISIT(place.code.get());
  for (const Recipe& recipe : recipes_) {
    Py_VISIT(recipe.type.get());
    for (const py::Ref& name : recipe.attributes) Py_VISIT(name.get());
    for (const py::Ref& slot : recipe.slots) Py_VISIT(slot.get());
  }
  return 0;
}

}  // namespace magneto::program
