// Puts frames back from their snapshots and lets CPython go on: in the middle, in a chain of calls, with an exception.
#include "cpython/frame_layout.h"

#include <opcode.h>
#include <string.h>

#include "internal/pycore_genobject.h"
#if PY_VERSION_HEX >= 0x030d0000
#include "internal/pycore_opcode_utils.h"
#endif

#include "cpython/snapshot.h"

typedef struct {
  PyThreadState* thread;
  mg_snapshot** chain;  // outermost first; an entry is NULL once CPython runs its frame
  int count;
} plan;

typedef struct {
  PyObject* value;  // NULL: error set
  bool returned;    // false: a generator has yielded it
} outcome;

static PyObject* move(PyObject** from) {
  PyObject* moved = *from;
  *from = NULL;
  return moved;
}

static void free_all(mg_snapshot** chain, int count) {
  // Freeing may run code, which must not see or lose an error that is set.
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  for (int i = 0; i < count; ++i) {
    mg_snapshot_free(chain[i]);
    chain[i] = NULL;
  }
  PyErr_Restore(type, value, traceback);
}

// ---- checks, so that a mistake is an exception and not a crash

static int find_return_generator(PyCodeObject* code) {
  const mg_instruction* decoded = mg_decoded(code);
  if (!decoded) return -2;
  if (!(code->co_flags & (CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR))) return -1;
  int i = 0;
  while (i < mg_code_units(code) && decoded[i].opcode != RETURN_GENERATOR) i = decoded[i].next;
  return i;
}

static bool stands_in_generator(PyCodeObject* code, int index) {
  int start = find_return_generator(code);
  return start >= 0 && index > start;
}

// From CPython 3.12 on, the variable of an inlined comprehension may be a cell in one of them and plain in another.
#define ALWAYS_CELLS (PY_VERSION_HEX >= 0x030c0000 ? CO_FAST_FREE : CO_FAST_CELL | CO_FAST_FREE)

static bool cells_are_cells(const mg_snapshot* snapshot) {
  PyCodeObject* code = snapshot->code;
  if (snapshot->index < code->_co_firsttraceable) return true;  // not made yet
  for (int i = 0; i < code->co_nlocalsplus; ++i) {
    int kind = PyBytes_AS_STRING(code->co_localspluskinds)[i];
    PyObject* value = snapshot->values[i];
    if (kind & (ALWAYS_CELLS) && !(value && PyCell_Check(value))) return false;
  }
  return true;
}

static bool generator_fits(const mg_snapshot* snapshot) {
  if (!snapshot->generator) return true;
  if (!stands_in_generator(snapshot->code, snapshot->index)) return false;
  PyObject* generator = snapshot->generator;
  if (!PyGen_Check(generator) && !PyCoro_CheckExact(generator) && !PyAsyncGen_CheckExact(generator)) return false;
  return ((PyGenObject*)generator)->gi_frame_state == FRAME_CREATED &&
         code_of(frame_in((PyGenObject*)generator)) == snapshot->code;
}

static bool check(const mg_snapshot* snapshot, int lacking, bool in_chain) {
  PyCodeObject* code = snapshot->code;
  int index = snapshot->index;
  int depth = mg_snapshot_depth(code, index, in_chain);
  if (depth == -2) return false;
  depth -= lacking;
  if (depth < 0)
    PyErr_Format(PyExc_ValueError, "%U cannot stand at instruction %d", code->co_qualname, index);
  else if (snapshot->depth != depth)
    PyErr_Format(PyExc_ValueError, "%U has %d values on its stack at instruction %d, the snapshot has %d",
                 code->co_qualname, depth, index, snapshot->depth);
  else if (!cells_are_cells(snapshot))
    PyErr_Format(PyExc_TypeError, "%U: a cell or free variable of the snapshot is not a cell", code->co_qualname);
  else if (!generator_fits(snapshot))
    PyErr_Format(PyExc_ValueError, "%U: the generator of the snapshot is not a new one of this code",
                 code->co_qualname);
  else if (snapshot->handled && !PyExceptionInstance_Check(snapshot->handled))
    PyErr_Format(PyExc_TypeError, "%U: what is being handled must be an exception", code->co_qualname);
  else if (!snapshot->handled && mg_code_flow(code)[index].saved >= 0)
    PyErr_Format(PyExc_ValueError, "%U stands in a handler, but the snapshot names no exception", code->co_qualname);
  else
    return true;
  return false;
}

// ---- filling a frame

// Moves the values over; the rest of the snapshot stays.
static void fill(mg_frame* frame, mg_snapshot* snapshot) {
  int count = snapshot->code->co_nlocalsplus + snapshot->depth;
  memcpy(frame->localsplus, snapshot->values, sizeof(PyObject*) * (size_t)count);
  memset(snapshot->values, 0, sizeof(PyObject*) * (size_t)count);
  frame->stacktop = count;
}

static void push(mg_frame* frame, PyObject* owned) { frame->localsplus[frame->stacktop++] = owned; }

static PyObject* evaluate(PyThreadState* thread, mg_frame* frame) {
  PyObject* result = mg_eval_default(thread, frame, 0);
#if !EVALUATOR_CLEARS
  if (!generator_of(frame)) mg_frame_clear(thread, frame);
#endif
  return result;
}

// The function's own first instructions make it, so that its name and kind are right in every version.
PyObject* mg_new_generator(PyThreadState* thread, PyFunctionObject* function, PyCodeObject* code) {
  int start = find_return_generator(code);
  if (start == -1) PyErr_Format(PyExc_TypeError, "%U makes no generator", code->co_qualname);
  mg_frame* frame = start < 0 ? NULL : mg_frame_push(thread, function, code, NULL);
  if (!frame) return NULL;
  mg_frame_resume_before(frame, start);
  return evaluate(thread, frame);
}

// The one that the snapshot names, or a new one.
static PyGenObject* take_generator(PyThreadState* thread, mg_snapshot* snapshot) {
  PyObject* named = move(&snapshot->generator);
  return (PyGenObject*)(named ? named : mg_new_generator(thread, snapshot->function, snapshot->code));
}

PyObject* mg_suspended_generator(PyThreadState* thread, mg_snapshot* snapshot) {
  PyGenObject* generator = NULL;
  if (!stands_in_generator(snapshot->code, snapshot->index))
    PyErr_Format(PyExc_ValueError, "%U is no generator at instruction %d", snapshot->code->co_qualname,
                 snapshot->index);
  else if (check(snapshot, 1, false))
    generator = take_generator(thread, snapshot);
  if (generator) {
    fill(frame_in(generator), snapshot);
    mg_frame_resume_before(frame_in(generator), snapshot->index);
    generator->gi_exc_state.exc_value = move(&snapshot->handled);
    const mg_instruction* before = snapshot->index > 0 ? &mg_decoded(snapshot->code)[snapshot->index - 1] : NULL;
    bool started = !before || before->opcode != RETURN_GENERATOR;
    generator->gi_frame_state = started ? FRAME_SUSPENDED : FRAME_CREATED;
#if PY_VERSION_HEX >= 0x030d0000
    // The bytecode says whether it waits for another generator: RESUME 2 and 3 follow `yield from` and `await`.
    const mg_instruction* next = &mg_decoded(snapshot->code)[snapshot->index];
    if (next->opcode == RESUME && (int)(next->arg & 3) >= RESUME_AFTER_YIELD_FROM)
      generator->gi_frame_state = FRAME_SUSPENDED_YIELD_FROM;
#endif
  }
  free_all(&snapshot, 1);
  return (PyObject*)generator;
}

// ---- exceptions

static PyObject* fetch_raised(void) {
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  PyErr_NormalizeException(&type, &value, &traceback);
  if (traceback) PyException_SetTraceback(value, traceback);
  Py_XDECREF(type);
  Py_XDECREF(traceback);
  return value;
}

static void add_to_traceback(PyThreadState* thread, mg_frame* frame, int index) {
  EXECUTING(frame) = _PyCode_CODE(code_of(frame)) + index;
  if (_PyFrame_IsIncomplete(frame)) return;
  link_frame(thread, frame);
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  PyFrameObject* object = PyThreadState_GetFrame(thread);
  PyErr_Restore(type, value, traceback);
  if (object) PyTraceBack_Here(object);
  Py_XDECREF(object);
  unlink_frame(thread, frame);
}

// The instruction at `index` has raised the error that is set. True: the frame is ready to go on in its handler.
static bool handle(PyThreadState* thread, mg_frame* frame, int index) {
  add_to_traceback(thread, frame, index);
  PyCodeObject* code = code_of(frame);
  mg_handler handler;
  if (!mg_find_handler(code, index, &handler)) return false;
  PyObject* raised = fetch_raised();
  while (frame->stacktop > code->co_nlocalsplus + handler.depth) Py_XDECREF(frame->localsplus[--frame->stacktop]);
  if (handler.push_offset) {
    PyObject* offset = PyLong_FromLong(index);
    if (!offset) {
      Py_XDECREF(raised);
      return false;
    }
    push(frame, offset);
  }
  push(frame, raised);
  mg_frame_resume_before(frame, handler.handler);
  return true;
}

// ---- a chain

// Gives the frame what the frame further in has come to.
static void take_result(mg_frame* frame, mg_snapshot* snapshot, outcome inner) {
  const mg_instruction* instruction = &mg_decoded(snapshot->code)[snapshot->index];
  int next = instruction->next;
  PyObject* value = inner.value;
  if (snapshot->instead) Py_SETREF(value, move(&snapshot->instead));
  switch (result_of(instruction)) {
    case kDropped: Py_DECREF(value); break;
    case kPushed: push(frame, value); break;
    case kPushedAsMethod:
#if PY_VERSION_HEX >= 0x030d0000
      push(frame, value);
      push(frame, NULL);
#else
      push(frame, NULL);
      push(frame, value);
#endif
      break;
    case kNextItem:
      if (inner.returned) {
        Py_DECREF(value);
        next = snapshot->index - instruction->lead;  // asked once more, a generator that is over says so
      } else {
        push(frame, value);
      }
      break;
    case kSentOn:
      if (inner.returned) next = mg_jump_target(instruction);
#if PY_VERSION_HEX < 0x030c0000
      if (inner.returned) Py_DECREF(frame->localsplus[--frame->stacktop]);  // SEND drops the generator itself
#endif
      push(frame, value);
      break;
  }
  mg_frame_resume_before(frame, next);
}

// next() and send() say so that a generator has returned.
static void stop_iteration(PyObject* owned) {
  if (owned == Py_None)
    PyErr_SetNone(PyExc_StopIteration);
  else
    _PyGen_SetStopIterationValue(owned);
  Py_DECREF(owned);
}

static outcome run_from(plan* p, int position, bool throwing);

// Brings a filled frame to where CPython can go on. False: an error leaves it.
static bool prepare(plan* p, int position, mg_snapshot* snapshot, mg_frame* frame, bool throwing) {
  if (position + 1 == p->count) {
    if (throwing) return handle(p->thread, frame, snapshot->index);
    mg_frame_resume_before(frame, snapshot->index - mg_decoded(snapshot->code)[snapshot->index].lead);
    return true;
  }
  EXECUTING(frame) = _PyCode_CODE(snapshot->code) + snapshot->index;
  link_frame(p->thread, frame);
  bool is_call = result_of(&mg_decoded(snapshot->code)[snapshot->index]) == kPushed;
  bool is_next = is_call && stands_in_generator(p->chain[position + 1]->code, p->chain[position + 1]->index);
  // A frame that waits counts as one that is called; the evaluator counts those that it runs.
  outcome inner = {NULL, true};
  if (mg_enter_frame(p->thread)) {
    inner = run_from(p, position + 1, throwing);
    mg_leave_frame(p->thread);
  } else {
    PyErr_Clear();
    PyErr_SetString(PyExc_RecursionError, "maximum recursion depth exceeded while putting frames back");
  }
  unlink_frame(p->thread, frame);
  if (inner.value && inner.returned && is_next) stop_iteration(move(&inner.value));
  if (inner.value && snapshot->instead && inner.value != Py_None) {
    PyErr_Format(PyExc_TypeError, "__init__() should return None, not '%.200s'", Py_TYPE(inner.value)->tp_name);
    Py_CLEAR(inner.value);
  }
  if (!inner.value) return handle(p->thread, frame, snapshot->index);
  take_result(frame, snapshot, inner);
  return true;
}

static PyObject* go_on(plan* p, int position, mg_frame* frame, bool throwing) {
  bool ready = prepare(p, position, p->chain[position], frame, throwing);
  free_all(&p->chain[position], 1);  // what the program drops from now on must go at once
  if (ready) return evaluate(p->thread, frame);
#if !EVALUATOR_CLEARS
  if (generator_of(frame)) return NULL;  // its owner clears it
#endif
  frame->previous = CURRENT_FRAME(p->thread);
  mg_frame_clear(p->thread, frame);
  return NULL;
}

static outcome run_function(plan* p, int position, bool throwing) {
  mg_snapshot* snapshot = p->chain[position];
  mg_frame* frame = mg_frame_push(p->thread, snapshot->function, snapshot->code, snapshot->names);
  if (!frame) return (outcome){NULL, true};
  fill(frame, snapshot);
  if (!snapshot->handled) return (outcome){go_on(p, position, frame, throwing), true};
  _PyErr_StackItem* item = p->thread->exc_info;
  PyObject* before = item->exc_value;
  item->exc_value = move(&snapshot->handled);
  outcome result = {go_on(p, position, frame, throwing), true};
  Py_XSETREF(item->exc_value, before);
  return result;
}

#if !EVALUATOR_CLEARS
// Later versions have an instruction for it.
static void forbid_stop_iteration(PyObject* generator) {
  const char* name = PyAsyncGen_CheckExact(generator) ? "async generator"
                     : PyCoro_CheckExact(generator)   ? "coroutine"
                                                      : "generator";
  if (PyErr_ExceptionMatches(PyExc_StopIteration))
    _PyErr_FormatFromCause(PyExc_RuntimeError, "%s raised StopIteration", name);
  else if (PyAsyncGen_CheckExact(generator) && PyErr_ExceptionMatches(PyExc_StopAsyncIteration))
    _PyErr_FormatFromCause(PyExc_RuntimeError, "%s raised StopAsyncIteration", name);
}
#endif

static outcome run_generator(plan* p, int position, bool throwing) {
  PyThreadState* thread = p->thread;
  mg_snapshot* snapshot = p->chain[position];
  PyGenObject* generator = take_generator(thread, snapshot);
  if (!generator) return (outcome){NULL, true};
  mg_frame* frame = frame_in(generator);
  fill(frame, snapshot);
  generator->gi_exc_state.exc_value = move(&snapshot->handled);
  generator->gi_exc_state.previous_item = thread->exc_info;
  thread->exc_info = &generator->gi_exc_state;
  generator->gi_frame_state = FRAME_EXECUTING;
  outcome result = {go_on(p, position, frame, throwing), false};
#if EVALUATOR_CLEARS
  result.returned = generator->gi_frame_state == FRAME_CLEARED;
#else
  result.returned = generator->gi_frame_state != FRAME_SUSPENDED;
  if (result.returned) {
    mg_frame_clear(thread, frame);
    if (!result.value) forbid_stop_iteration((PyObject*)generator);
  } else {
    thread->exc_info = generator->gi_exc_state.previous_item;
    generator->gi_exc_state.previous_item = NULL;
  }
#endif
  Py_DECREF(generator);
  return result;
}

static outcome run_from(plan* p, int position, bool throwing) {
  const mg_snapshot* snapshot = p->chain[position];
  return stands_in_generator(snapshot->code, snapshot->index) ? run_generator(p, position, throwing)
                                                              : run_function(p, position, throwing);
}

static bool check_all(mg_snapshot** chain, int count) {
  if (count < 1) PyErr_SetString(PyExc_ValueError, "there is no snapshot to resume");
  bool good = count > 0;
  for (int i = 0; i < count && good; ++i) good = check(chain[i], 0, i + 1 < count);
  return good;
}

PyObject* mg_resume(PyThreadState* thread, mg_snapshot** chain, int count) {
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  outcome result = {NULL, true};
  if (check_all(chain, count)) {
    bool as_next = stands_in_generator(chain[0]->code, chain[0]->index);
    PyErr_Restore(type, value, traceback);
    plan p = {thread, chain, count};
    result = run_from(&p, 0, type != NULL);
    if (result.value && result.returned && as_next) {
      _PyGen_SetStopIterationValue(result.value);
      Py_CLEAR(result.value);
    }
  } else {
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(traceback);
  }
  free_all(chain, count);
  return result.value;
}
