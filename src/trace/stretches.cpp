// Where a watched call is cut: what the program has done by then, how CPython could go on, and what is still known.
#include <algorithm>

#include "cpython/cpython.h"
#include "cpython/text.h"
#include "guard/deaths.h"
#include "program/operators.h"
#include "runtime/config.h"
#include "trace/call_table.h"
#include "trace/frame_run.h"
#include "trace/listing.h"
#include "trace/rules.h"
#include "trace/writer.h"

namespace magneto::trace {

namespace {

constexpr size_t kMaxCuts = 64;
constexpr size_t kNowhere = SIZE_MAX;

// Of a frame that is at a call: locals and stack, but not what the call takes from it. kNowhere: it cannot be put back.
size_t size_without_operands(const FrameRun& frame) {
  int depth = mg_snapshot_depth(frame.code(), frame.executing(), true);
  if (depth < 0) PyErr_Clear();
  return depth < 0 ? kNowhere : static_cast<size_t>(frame.code()->co_nlocalsplus + depth);
}

// For tp_traverse: all but classes.
int add_part(PyObject* part, void* list) {
  if (!PyType_Check(part)) static_cast<std::vector<PyObject*>*>(list)->push_back(part);
  return 0;
}

}  // namespace

bool Watch::ends_cleanly() {
  if (!open_context_.empty()) give_up("the call leaves a context variable set");
  if (alive() && !effects.empty() && guards.hold_the_last_reference())
    give_up("the call drops an object that it has looked into");
  bool repeats = std::any_of(effects.begin(), effects.end(), [](const Effect& effect) { return !effect.container; });
  if (alive() && !repeats && !global_state_->holds())
    give_up("the call leaves torch's state changed: " + global_state_->explain());
  return alive();
}

void Watch::check_size() {
  const runtime::Config& config = runtime::config();
  size_t steps = std::max(provenance.size() + effects.size(), program_->size());
  if (steps > static_cast<size_t>(config.program_limit))
    give_up("the call computes or changes too much for a program (program_limit)", Around::Never);
  else if (alive() && recording->op_count() > static_cast<size_t>(config.graph_limit))
    give_up("the call runs too many tensor operations for a graph (graph_limit)", Around::Never);
}

// Everything is written: the tensor work and the guards are added.
bool Watch::close_stretch(std::unique_ptr<program::Cut> cut) {
  if (alive()) check_size();
  if (!alive()) return false;
  if (!stretch_) note_left_open();
  if (symbolic_) note_open_answers();
  if (listing) listing->take();
  std::unique_ptr<runtime::Segment> segment = recording->finish(writer_->outputs);
  if (!segment) give_up("the recording failed");
  if (segment && work_in_handler && !segment->make_rerunnable())
    give_up("the call changes tensors where it also handles exceptions");
  if (!alive()) return false;
  keep_apart();
  operations_ += segment->op_count();
  program_->set_segment(std::move(segment));
  program_->set_segment_inputs(std::exchange(input_registers_, {}), std::exchange(checked_registers_, {}),
                               std::move(input_checks_));
  program_->set_cut(std::move(cut));
  bool is_first_look = !stretch_ || !known_.roots.empty();
  if (stretch_ && is_first_look) program_->set_known(std::exchange(known_, {}));
  std::vector<PyObject*> known = held_objects_;
  for (const auto& [object, name] : roots) {
    known.push_back(object);
    known.push_back((PyObject*)Py_TYPE(object));
  }
  if (!stretch_) {  // behind a cut, guards are checked before what was looked into, which cannot vouch for its classes
    std::vector<PyObject*> classes = contents().classes();
    known.insert(known.end(), classes.begin(), classes.end());
  }
  std::vector<guard::Read> reads = guards.finish(known, changed_);
  entry_->tensors = guards.take_tensors();
  if (std::string why = first_change(reads); !why.empty())
    give_up("what the call read was changed while it ran: " + why, Around::Never);
  if (alive() && listing) {
    std::vector<std::string> lines;
    if (is_first_look) contents().describe(&lines);
    program_->set_listing(listing->text(*program_, reads, lines));
  }
  if (alive()) add_to_programs(std::move(reads));
  entry_->global_state = std::move(global_state_);
  return alive();
}

// The program of an earlier capture that has done the same so far and goes on in the same way.
const program::Program* Watch::twin() const {
  if (!last_cut_) return base && base->same_as(*program_) ? base : nullptr;
  for (const auto& known : fitting_)
    if (static_cast<const program::Stretch&>(*known).program->same_as(*program_))
      return static_cast<const program::Stretch&>(*known).program.get();
  return nullptr;
}

void Watch::add_to_programs(std::vector<guard::Read> reads) {
  if (const program::Program* known = twin()) {
    outcome = Outcome::Joined;
    last_cut_ = known->cut();
    return;
  }
  if (last_cut_) {
    if (last_cut_->stretches.size() >= static_cast<size_t>(std::max<int64_t>(runtime::config().cache_limit, 1)))
      return give_up("too many forms of the call are known from here on (cache_limit)", Around::Never);
    last_cut_->next.insert(stretch_, std::move(reads));
    last_cut_->stretches.push_back(stretch_);
    if (outcome == Outcome::Joined) outcome = Outcome::Added;
  } else {
    first_reads = std::move(reads);
  }
  last_cut_ = program_->cut();
}

// In words, what is not any more as it was read; empty if all is.
std::string Watch::first_change(std::vector<guard::Read>& reads) const {
  std::vector<const guard::Read*> before;
  for (guard::Read& read : reads) {
    if (!read.outdated && !read.verify()) return guard::Names(before, roots).describe_failure(read);
    before.push_back(&read);
  }
  return entry_->explain();
}

void Watch::finish(Value result) {
  if (!open_generators.empty()) give_up("the call leaves a generator that has a handler or finally clause to run");
  if (!alive() || !ends_cleanly()) return;
  if (!operations_ && !recording->op_count() && !runtime::config().without_tensors) return give_up(kNoTensorWork);
  writer_->write_effects();
  program_->set_result(writer_->value(result));
  close_stretch(nullptr);
}

bool Watch::has_program() const { return alive() || (cuts_ && (operations_ || runtime::config().without_tensors)); }

bool Watch::pays() const {
  static constexpr size_t kStepsOfCut = 16;  // so many does CPython execute in the time that a cut takes
  return operations_ || steps > cuts_ * kStepsOfCut;
}

// ---- cuts

bool Watch::can_be_put_back(const FrameRun& frame) const {
  const mg_flow* flow = mg_code_flow(frame.code());
  if (!flow) PyErr_Clear();
  return frame.is_direct() && flow && flow[frame.executing()].saved < 0;
}

// Whether code that has seen the opaque objects could change this one, which the call made. `clean` are objects of
// which this is known not to be so; it gets more of them.
bool Watch::reaches_opaque(PyObject* object, bool keeps_contents, guard::PointerSet& clean) const {
  std::vector<PyObject*> open{object}, seen;
  while (!open.empty()) {
    PyObject* next = open.back();
    open.pop_back();
    if (guard::is_atom(next)) continue;
    if (opaque_.contains(next) || (!keeps_contents && contents().containers().contains(next))) {
      for (PyObject* passed : seen) clean.erase(passed);
      return true;
    }
    bool holds_others = PyTuple_Check(next) || PyMethod_Check(next) || fresh_.contains(next);
    if (!holds_others || PyType_Check(next) || !Py_TYPE(next)->tp_traverse || !clean.insert(next)) continue;
    seen.push_back(next);
    Py_TYPE(next)->tp_traverse(next, add_part, &open);
  }
  return false;
}

// Every value that the frames hold, or that is being made for them.
template <class Visitor>
void Watch::visit_frames(Visitor visit) const {
  for (const FrameRun* frame : running) {
    for (size_t i = 0; i < frame->size(); ++i)
      if (Value value = frame->value(i); value.object) visit(value);
    if (frame->made()) visit(Value{frame->made()});
  }
}

NodeId Watch::node_of_new(PyObject* object) {
  return opaque_.contains(object) ? provenance.add_register(*writer_->find(object), object) : kKnown;
}

// What was built for the unknown function, and all that leads to it, is not known any more.
void Watch::make_opaque(bool keeps_contents) {
  size_t done = 0;
  for (bool changed = true; changed && alive();) {
    changed = false;
    guard::PointerSet clean;
    for (; done < writer_->built.size(); ++done) opaque_.insert(writer_->built[done]);
    visit_frames([&](Value value) {
      if (!alive() || opaque_.contains(value.object) || writer_->find(value.object)) return;
      if (!reaches_opaque(value.object, keeps_contents, clean)) return;
      writer_->value(value);
      opaque_.insert(value.object);
      changed = true;
    });
  }
}

// Of the locals and the stack of a frame, those that the instruction which runs something unknown leaves there.
size_t Watch::slots_kept(const FrameRun& frame, How how) const {
  if (&frame != running.back()) return size_without_operands(frame);
  return how == How::Again ? frame.size() - 1 : how == How::Entered ? frame.size() : size_without_operands(frame);
}

// Unknown code may get objects at the addresses of those that the call made and dropped.
void Watch::forget_dead() {
  guard::PointerSet living, seen, attributes;  // of new objects, in dicts that nobody has marked
  std::vector<PyObject*> open;
  visit_frames([&](Value value) { open.push_back(value.object); });
  while (!open.empty()) {
    PyObject* next = open.back();
    open.pop_back();
    bool is_fresh = fresh_.contains(next);
    if (!is_fresh && !PyTuple_Check(next) && !PyMethod_Check(next) && !attributes.contains(next)) continue;
    if (is_fresh) living.insert(next);
    size_t first = open.size();
    if (Py_TYPE(next)->tp_traverse && seen.insert(next)) Py_TYPE(next)->tp_traverse(next, add_part, &open);
    bool has_attributes = is_fresh && kind_of(Py_TYPE(next)) == Kind::Instance;
    for (; has_attributes && first < open.size(); ++first)
      if (PyDict_CheckExact(open[first])) attributes.insert(open[first]);
  }
  fresh_ = std::move(living);
}

// The frames as they stand at the call, or, with its result, behind it.
void Watch::describe_frames(program::Exit* exit, uint32_t result, How how) {
  for (size_t i = 0; i < running.size() && alive(); ++i) {
    const FrameRun& frame = *running[i];
    bool innermost = i + 1 == running.size();
    bool behind = innermost && result != program::kNoRegister;
    bool again = behind && how == How::Again;
    bool whole = innermost && !behind;
    size_t count = whole ? frame.size() : slots_kept(frame, how);
    if (count == kNowhere) return give_up("a frame of the call cannot be put back");
    int index = behind && !again ? mg_decoded(frame.code())[frame.executing()].next : frame.executing();
    program::FrameState state{
        writer_->value({frame.function()}), {py::Ref::borrow((PyObject*)frame.code()), index}, {}};
    for (size_t slot = 0; slot < count; ++slot) state.slots.push_back(writer_->value_at_exit(frame.value(slot), exit));
    if (behind && how == How::Fetched && !MG_HOLE) state.slots.push_back(program::kNoRegister);
    if (behind && how != How::Stored) state.slots.push_back(result);
    if (behind && how == How::Fetched && MG_HOLE) state.slots.push_back(program::kNoRegister);
    if (frame.generator()) state.generator = writer_->value_at_exit({frame.generator()}, exit);
    if (!innermost && running[i + 1]->made()) state.made = writer_->value_at_exit({running[i + 1]->made()}, exit);
    exit->frames.push_back(std::move(state));
  }
}

namespace {

// Tensors and what they are indexed with.
bool is_plain_data(PyObject* object, int depth = 0) {
  if (guard::is_atom(object) || runtime::tensor_plug().is_tensor(object)) return true;
  if (PySlice_Check(object)) {
    auto* slice = (PySliceObject*)object;
    return guard::is_atom(slice->start) && guard::is_atom(slice->stop) && guard::is_atom(slice->step);
  }
  if (!(PyTuple_CheckExact(object) || PyList_CheckExact(object)) || depth > 4) return false;
  PyObject** items = PySequence_Fast_ITEMS(object);
  return std::all_of(items, items + PySequence_Fast_GET_SIZE(object),
                     [depth](PyObject* item) { return is_plain_data(item, depth + 1); });
}

}  // namespace

// Torch answers it alone: no other code can have changed any object meanwhile.
bool Watch::is_question(PyObject* callable, PyObject* const* args, size_t count) const {
  auto* type = (PyTypeObject*)callable;
  bool is_conversion = type == &PyBool_Type || type == &PyLong_Type || type == &PyFloat_Type || type == &PyComplex_Type;
  bool is_operator =
      callable == program::operator_function("getitem") || callable == program::operator_function("not_");
  if (!is_conversion && !is_operator && plug_.classify_call(callable) != runtime::CallKind::Asks) return false;
  return std::all_of(args, args + count, [](PyObject* arg) { return is_plain_data(arg); });
}

bool Watch::can_cut() const {
  return alive() && may_cut && cuts_ < kMaxCuts && !running.empty() && consumer_depth == SIZE_MAX &&
         open_context_.empty() &&
         std::all_of(running.begin(), running.end(), [&](FrameRun* frame) { return can_be_put_back(*frame); });
}

bool Watch::can_cut_at_question(PyObject* const* args, size_t count) const {
  auto is_fixed = [this](PyObject* arg) { return is_tensor(arg) ? recording->is_fixed(arg) : guard::is_atom(arg); };
  bool has_answer = count && is_tensor(args[0]) && std::all_of(args, args + count, is_fixed);
  return cuts_at_questions && can_cut() && !has_answer;
}

bool Watch::cut(PyObject* callable, PyObject* const* args, size_t count, PyObject* keyword_names, How how) {
  std::string reason = around ? around->reason : why_cut(callable, args, count);
  is_cutting_ = true;
  if (!can_cut() || !PyCallable_Check(callable)) give_up(reason);
  if (!alive() || !ends_cleanly()) return false;
  auto cut = std::make_unique<program::Cut>();
  for (const auto& [number, id] : open_numbers_)  // they can still be read
    if (!provenance.is_known(id)) writer_->node_register(id);
  writer_->write_effects();
  writer_->hold_arguments();
  bool is_own = how != How::Called && how != How::Entered;
  Value called{callable, std::exchange(callable_node, kKnown)};
  cut->callable = is_own ? writer_->constant(callable) : writer_->value(called);
  const FrameRun& innermost = *running.back();  // `args` are on its stack
  for (size_t i = 0; i < count; ++i) cut->arguments.push_back(writer_->value(innermost.value_at(args + i)));
  cut->keyword_names = py::Ref::borrow(keyword_names);
  cut->result = program_->new_register();
  for (FrameRun* frame : running) writer_->value({frame->function()});  // which may hold what is built for it
  cut->is_question = is_question(callable, args, count);
  make_opaque(cut->is_question && !again_);
  describe_frames(&cut->before, program::kNoRegister, how);
  describe_frames(&cut->after, cut->result, how);
  writer_->close_exits();
  if (!close_stretch(std::move(cut))) return false;
  forget_dead();
  breaks.push_back(reason + " (" + place() + ")");
  runtime::count("unknown_call", callable_name(callable == call_with_star() ? args[0] : callable));
  ++cuts_;
  is_cutting_ = false;
  return true;
}

void Watch::open_stretch(How how, bool keeps_contents) {
  writer_->close_nodes();
  fitting_.clear();
  if (outcome == Outcome::Joined) fitting_ = last_cut_->next.find_all();
  auto program = std::make_unique<program::Program>(program_);  // before that one goes, if nobody else has it
  stretch_ = guard::Held(new program::Stretch);
  stretch_->program = std::move(program);
  entry_ = stretch_.get();
  program_ = stretch_->program.get();
  writer_->start(program_);
  held_objects_ = writer_->older_objects;
  guards = guard::Reads();
  effects.clear();
  changed_.clear();
  attributes_.clear();
  instances_.clear();
  class_attributes_.clear();
  scanned_dicts_.clear();
  work_in_handler = false;
  global_state_ = plug_.global_state();
  std::vector<std::vector<int>> open;
  for (auto [tensor, number] : writer_->tensors)
    open.push_back(symbolic_ ? symbolic_->open_dimensions(tensor) : std::vector<int>());
  input_checks_ = plug_.tensor_checks();
  start_recording();
  for (size_t i = 0; i < open.size(); ++i) add_input(writer_->tensors[i].first, writer_->tensors[i].second, open[i]);
  if (listing) listing->start();
  for (FrameRun* frame : running)
    for (size_t i = 0; i < slots_kept(*frame, how); ++i) {
      auto [object, node] = frame->value(i);
      bool is_register = !provenance.is_known(node) && provenance[node].kind == Node::Kind::Register;
      if (!object || is_register) continue;
      if (opaque_.contains(object) || (!keeps_contents && contents().containers().contains(object)))
        frame->carry(i, provenance.add_register(*writer_->find(object), object));
    }
  if (keeps_contents) return;
  open_numbers_.clear();
  auto earlier = again_;
  auto is_owned = [this, earlier](PyObject* object, bool is_part) {
    bool was_known = (earlier ? *earlier : arguments_).containers().contains(object);
    return was_known || opaque_.contains(object) || is_left_to_us(object, is_part);
  };
  again_ = looked_into_.emplace_back(std::make_shared<guard::Arguments>(is_owned));
  writer_->allow_nodes();
}

// Whatever unknown code did to the tensor, it must look as it looks now, but for the sizes that are open.
void Watch::add_input(PyObject* tensor, uint32_t number, const std::vector<int>& open) {
  if (std::string why = plug_.why_not_plain(tensor); !why.empty()) return give_up("the call uses " + why);
  if (symbolic_) {
    symbolic_->add_input(tensor, open);
    if (!open.empty()) open_inputs_.push_back(tensor);
  } else {
    recording->add_input(tensor);
  }
  if (!alive()) return;
  input_checks_->add(tensor, open);
  input_registers_.push_back(number);
  checked_registers_.push_back(number);
}

// Whether unknown code, which has got what the call made, holds no weak reference to it.
bool Watch::dies_quietly_if_built() const {
  return std::all_of(writer_->built.begin(), writer_->built.end(),
                     [](PyObject* object) { return guard::dies_quietly(object, Py_REFCNT(object)); });
}

// Whether unknown code has left an older object to this call alone, which would let it die too late.
bool Watch::holds_back_a_death() const {
  auto would_die = [this](PyObject* object) {
    return is_left_to_us(object) && !guard::dies_quietly(object, Py_REFCNT(object));
  };
  return std::ranges::any_of(writer_->older_objects, would_die) ||
         std::ranges::any_of(writer_->held_arguments, would_die);
}

PyObject* Watch::call_unknown(PyObject* callable, PyObject* const* args, size_t positional, PyObject* keyword_names,
                              How how) {
  size_t count = positional + (keyword_names ? static_cast<size_t>(PyTuple_GET_SIZE(keyword_names)) : 0);
  bool was_cut = cut(callable, args, count, keyword_names, how);
  if (!was_cut) let_go();
  PyObject* result;
  no_collection_.reset();
  {
    runtime::PauseWatch pause;
    result = PyObject_Vectorcall(callable, args, positional, keyword_names);
  }
  if (!was_cut) return result;
  if (mg_is_tracing(PyThreadState_Get())) {
    give_up("a debugger or profiler follows the thread", Around::Never);
    return result;
  }
  no_collection_.emplace();
  bool quiet = result && guard::dies_quietly(result, 1) && dies_quietly_if_built();
  if (!quiet || (!last_cut_->is_question && holds_back_a_death())) {
    if (quiet)
      give_up("an unknown function drops an object that the call goes on to use", Around::Never);
    else if (result)
      give_up("an unknown function leaves an object whose end others notice (__del__, a weak reference)");
    else
      give_up("an unknown function raises an exception", Around::Never);
    return result;
  }
  open_stretch(how, last_cut_->is_question && !again_);  // what was looked into, was for one stretch
  handover.returned = provenance.add_register(last_cut_->result, result);
  return result;
}

}  // namespace magneto::trace
