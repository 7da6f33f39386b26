// Detours: the next watch lets unknown code do what this one did not understand, or leaves the call to CPython there.
#include "trace/detours.h"

#include <algorithm>
#include <ranges>

#include "program/operators.h"
#include "trace/call_table.h"
#include "trace/frame_run.h"
#include "trace/writer.h"

namespace magneto::trace {

namespace {

// Whether a function can do the work of the instruction.
bool has_substitute(const mg_instruction& instruction) {
  switch (instruction.operation) {
    case MG_CALL:
    case MG_CALL_KW:
    case MG_LOAD_ATTR:
    case MG_LOAD_METHOD:
    case MG_STORE_ATTR:
    case MG_BINARY_OP:
    case MG_BINARY_SUBSCR: return true;
    case MG_CALL_FUNCTION_EX: return !MG_HOLE;
    case MG_COMPARE_OP: return !(instruction.operand & MG_AS_BOOL);
    default: return false;
  }
}

const char* comparison(uint32_t how) {
  constexpr const char* kNames[] = {"lt", "le", "eq", "ne", "gt", "ge"};
  return kNames[how];
}

}  // namespace

const Detour* Watch::detour_at(const FrameRun& frame) const {
  auto found = std::ranges::find_if(detours, [&](const Detour& detour) {
    return detour.code.get() == (PyObject*)frame.code() && detour.instruction == frame.executing();
  });
  return found == detours.end() ? nullptr : &*found;
}

// The innermost place that a program can be cut at and where that was not tried; in the end, where CPython can take
// over.
void Watch::note_stumble(const std::string& reason, Around around) {
  if (around == Around::Never || !may_cut || running.empty()) return;
  auto can_be_cut = [this](size_t depth) {
    auto is_fine = [this](FrameRun* frame) { return can_be_put_back(*frame); };
    return depth < consumer_depth && std::ranges::all_of(running | std::views::take(depth + 1), is_fine);
  };
  auto at = [&](size_t depth, bool leaves) {
    return Detour{py::Ref::borrow((PyObject*)running[depth]->code()), running[depth]->executing(), leaves, reason};
  };
  size_t innermost = running.size() - 1;
  for (size_t depth = running.size(); around == Around::Place && depth-- > 0;) {
    bool is_tried = (depth == innermost && is_cutting_) || detour_at(*running[depth]);
    if (is_tried || !can_be_cut(depth)) continue;
    if (!has_substitute(mg_decoded(running[depth]->code())[running[depth]->executing()])) continue;
    stumble = at(depth, false);
    return;
  }
  size_t depth = around == Around::Frames ? innermost : 0;
  const Detour* tried = detour_at(*running[depth]);
  if (can_be_cut(depth) && !(tried && tried->leaves)) stumble = at(depth, true);
}

void Watch::leave_here(const std::string& reason) {
  is_cutting_ = true;
  if (!can_cut()) give_up(reason);
  if (!alive() || !ends_cleanly()) return;
  auto cut = std::make_unique<program::Cut>();
  writer_->write_effects();
  writer_->hold_arguments();
  describe_frames(&cut->before, program::kNoRegister, How::Called);
  writer_->close_exits();
  if (!close_stretch(std::move(cut))) return;
  breaks.push_back(reason + " (" + place() + ")");
  ++cuts_;
  give_up(reason, Around::Never);
}

Next FrameRun::go_around(const Detour& detour, uint8_t operation, uint32_t arg) {
  bool is_call = operation == MG_CALL || operation == MG_CALL_KW;
  PyObject* callable = is_call ? *callable_at(arg, operation == MG_CALL_KW) : nullptr;
  if (detour.leaves || (callable && looks_at_frames(callable))) {
    watch_.leave_here(detour.reason);
    return Next::Leave;
  }
  watch_.around = &detour;
  Next next = run_unknown(operation, arg);
  watch_.around = nullptr;
  return next;
}

Next FrameRun::run_unknown(uint8_t operation, uint32_t arg) {
  switch (operation) {
    case MG_LOAD_ATTR: {
      PyObject* getter = attribute_getter(names_[arg]);
      return getter ? run_instead(getter, 1) : Next::Error;
    }
    case MG_LOAD_METHOD: return fetch_method(names_[arg]);
    case MG_STORE_ATTR: return store_by_unknown(names_[arg]);
    case MG_BINARY_OP: return run_instead(program::operator_function(arg), 2);
    case MG_BINARY_SUBSCR: return run_instead(program::operator_function("getitem"), 2);
    case MG_COMPARE_OP: return run_instead(program::operator_function(comparison(arg)), 2);
    default: return step_flow(operation, arg);
  }
}

// Other nodes the program can hand to unknown code.
void FrameRun::settle_holders(PyObject** slots, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    if (!holder_at(slots + i)) continue;
    watch_.settle(node_at(slots + i));
    set_node(slots + i, kKnown);
  }
}

// What is called without a `self`, whatever it is.
Next FrameRun::fetch_method(PyObject* name) {
  PyObject* getter = attribute_getter(name);
  settle_holders(sp_ - 1, 1);
  py::Ref method = py::Ref::steal(getter ? watch_.call_instead(getter, sp_ - 1, 1, Watch::How::Fetched) : nullptr);
  NodeId node = watch_.handover.take_returned();
  if (!method) return Next::Error;
  set_node(sp_ - 1, kKnown);
  Py_DECREF(pop());
  push_callable(method.release(), node);
  return Next::Go;
}

}  // namespace magneto::trace
