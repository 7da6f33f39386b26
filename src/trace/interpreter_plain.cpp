// The short way for what most instructions of most loops do: they move values, and compute with plain numbers.
//
// As long as no value on the stack has a node, the watch need not be told of these. Anything that somebody could notice
// is left to the other instructions.
#include "program/operators.h"
#include "trace/frame_run.h"

namespace magneto::trace {

namespace {

// Nothing that somebody would notice comes of dropping it.
bool drops_plainly(PyObject* value) {
  return !value || Py_REFCNT(value) > 1 || PyLong_CheckExact(value) || PyUnicode_CheckExact(value) ||
         PyFloat_CheckExact(value);
}

// Without anybody's code.
bool are_compared_plainly(PyObject* left, PyObject* right) {
  PyTypeObject* type = Py_TYPE(left);
  return Py_IS_TYPE(right, type) && (type == &PyLong_Type || type == &PyUnicode_Type || type == &PyFloat_Type);
}

// The operands by the result.
Next replace_two(PyObject**& sp, PyObject* owned) {
  if (!owned) return Next::Error;
  Py_DECREF(*--sp);
  Py_DECREF(sp[-1]);
  sp[-1] = owned;
  return Next::Go;
}

}  // namespace

// One instruction of those that only move values, or compute with plain numbers. Leave: it is another one, or may do
// something that somebody would notice; then nothing has happened.
[[gnu::always_inline]] inline Next FrameRun::do_plainly(const mg_instruction& instruction, PyObject**& sp, int& next) {
  uint32_t arg = instruction.operand;
  switch (instruction.operation) {
    case MG_NOP: return Next::Go;
    case MG_LOAD_FAST:
      if (!locals_[arg] || nodes_[arg] != kKnown) return Next::Leave;
      *sp++ = Py_NewRef(locals_[arg]);
      return Next::Go;
    case MG_LOAD_CONST: *sp++ = Py_NewRef(constants_[arg]); return Next::Go;
    case MG_PUSH_NULL: *sp++ = nullptr; return Next::Go;
    case MG_STORE_FAST: {
      PyObject* old = locals_[arg];
      if (!drops_plainly(old)) return Next::Leave;
      locals_[arg] = *--sp;
      nodes_[arg] = kKnown;
      Py_XDECREF(old);
      return Next::Go;
    }
    case MG_POP_TOP:
      if (!drops_plainly(sp[-1])) return Next::Leave;
      Py_DECREF(*--sp);
      return Next::Go;
    case MG_JUMP: next = static_cast<int>(arg); return Next::Go;
    case MG_POP_JUMP_IF_FALSE:
    case MG_POP_JUMP_IF_TRUE: {
      PyObject* truth = sp[-1];
      bool jumps = (truth == Py_True) == (instruction.operation == MG_POP_JUMP_IF_TRUE);
      if (!PyBool_Check(truth) || (jumps && static_cast<int>(arg) < next)) return Next::Leave;
      Py_DECREF(*--sp);
      if (jumps) next = static_cast<int>(arg);
      return Next::Go;
    }
    case MG_COMPARE_OP:
      if (!are_compared_plainly(sp[-2], sp[-1])) return Next::Leave;
      return replace_two(sp, Py_TYPE(sp[-2])->tp_richcompare(sp[-2], sp[-1], static_cast<int>(arg & ~MG_AS_BOOL)));
    case MG_BINARY_OP:
      if (!PyLong_CheckExact(sp[-2]) || !PyLong_CheckExact(sp[-1])) return Next::Leave;
      stand_at(instruction, sp);  // signals are served while large numbers are computed with
      return replace_two(sp, program::kOperators[arg].apply(sp[-2], sp[-1]));
    default: return Next::Leave;
  }
}

// Goes on up to the next instruction that is not of these.
Next FrameRun::run_plainly() {
  PyObject** sp = sp_;
  for (int pc = pc_;; ++watch_.steps) {
    int next = code_[pc].next;
    Next done = do_plainly(code_[pc], sp, next);
    if (done == Next::Go) [[likely]] {
      pc = next;
      continue;
    }
    if (done == Next::Error) return stand_at(code_[pc], sp), done;
    pc_ = pc;
    sp_ = sp;
    return Next::Go;
  }
}

}  // namespace magneto::trace
