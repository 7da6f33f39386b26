// Where a frame lives and how it ends: the thread's data stack, and frame objects that outlive their frame.
#include "cpython/frame_layout.h"

#include <string.h>

#include "internal/pycore_ceval.h"

#define SMALLEST_CHUNK ((size_t)(16 * 1024))

// CPython frees chunks with the arena allocator when the frame at their start is popped, so they are made by it.
static PyObject** push_chunk(PyThreadState* thread, size_t slots) {
  size_t bytes = SMALLEST_CHUNK;
  while (bytes < sizeof(_PyStackChunk) + (slots + 1) * sizeof(PyObject*)) bytes *= 2;
  PyObjectArenaAllocator arenas;
  PyObject_GetArenaAllocator(&arenas);
  _PyStackChunk* chunk = arenas.alloc(arenas.ctx, bytes);
  if (!chunk) return (PyObject**)PyErr_NoMemory();
  _PyStackChunk* previous = thread->datastack_chunk;
  if (previous) previous->top = (size_t)(thread->datastack_top - &previous->data[0]);
  chunk->previous = previous;
  chunk->size = bytes;
  chunk->top = 0;
  thread->datastack_chunk = chunk;
  thread->datastack_limit = (PyObject**)((char*)chunk + bytes);
  // The first slot of a thread's first chunk stays empty: no frame stands there, so that chunk is never freed.
  return &chunk->data[previous ? 0 : 1];
}

// The first `filled` locals are left for the caller to fill.
static mg_frame* push(PyThreadState* thread, PyFunctionObject* function, PyCodeObject* code, PyObject* names,
                      int filled) {
#if PY_VERSION_HEX >= 0x030c0000
  int slots = code->co_framesize;
#else
  size_t slots = (size_t)(code->co_nlocalsplus + code->co_stacksize) + FRAME_SPECIALS_SIZE;
#endif
  PyObject** base =
      _PyThreadState_HasStackSpace(thread, slots) ? thread->datastack_top : push_chunk(thread, (size_t)slots);
  if (!base) return NULL;
  thread->datastack_top = base + slots;
  mg_frame* frame = (mg_frame*)base;
  Py_INCREF(function);
#if PY_VERSION_HEX >= 0x030c0000
  _PyFrame_Initialize(frame, function, Py_XNewRef(names), code, filled);
#else
  _PyFrame_InitializeSpecials(frame, function, names, code->co_nlocalsplus);
  Py_SETREF(frame->f_code, (PyCodeObject*)Py_NewRef(code));
  frame->prev_instr = _PyCode_CODE(code) - 1;
  for (int i = filled; i < code->co_nlocalsplus; ++i) frame->localsplus[i] = NULL;
#endif
  frame->previous = CURRENT_FRAME(thread);
  return frame;
}

mg_frame* mg_frame_push(PyThreadState* thread, PyFunctionObject* function, PyCodeObject* code, PyObject* names) {
  return push(thread, function, code, names, 0);
}

#if PY_VERSION_HEX >= 0x030d0000

void mg_frame_clear(PyThreadState* thread, mg_frame* frame) { _PyEval_FrameClearAndPop(thread, frame); }

#else

// The contents move into the frame object, which then stands alone.
static void move_into(PyFrameObject* object, mg_frame* frame) {
  PyFrameObject* back = PyFrame_GetBack(object);  // found through the frame, so before it goes
  mg_frame* moved = (mg_frame*)object->_f_frame_data;
  memcpy(moved, frame, (size_t)((char*)&frame->localsplus[frame->stacktop] - (char*)frame));
  Py_INCREF(moved->f_code);
  moved->owner = FRAME_OWNED_BY_FRAME_OBJECT;
  moved->frame_obj = NULL;
  moved->previous = NULL;
  // A frame that ends before its first traceable instruction must not look unborn to those who hold the object.
  if (_PyFrame_IsIncomplete(moved)) moved->prev_instr = _PyCode_CODE(moved->f_code) + moved->f_code->_co_firsttraceable;
  object->f_frame = moved;
  Py_XSETREF(object->f_back, back);
  if (!PyObject_GC_IsTracked((PyObject*)object)) PyObject_GC_Track(object);
}

// All but the code.
static void drop_contents(mg_frame* frame) {
  PyFrameObject* object = frame->frame_obj;
  if (object && Py_REFCNT(object) > 1) {
    move_into(object, frame);
    frame->frame_obj = NULL;
    Py_DECREF(object);
    return;
  }
  Py_CLEAR(frame->frame_obj);
  for (int i = 0; i < frame->stacktop; ++i) Py_XDECREF(frame->localsplus[i]);
  Py_XDECREF(frame->f_locals);
  Py_DECREF(FRAME_FUNCTION(frame));
}

static void pop(PyThreadState* thread, mg_frame* frame) {
  PyObject** base = (PyObject**)frame;
  _PyStackChunk* chunk = thread->datastack_chunk;
  if (base != &chunk->data[0]) {
    thread->datastack_top = base;
    return;
  }
  _PyStackChunk* previous = chunk->previous;
  thread->datastack_chunk = previous;
  thread->datastack_top = &previous->data[previous->top];
  thread->datastack_limit = (PyObject**)((char*)previous + previous->size);
  PyObjectArenaAllocator arenas;
  PyObject_GetArenaAllocator(&arenas);
  arenas.free(arenas.ctx, chunk, chunk->size);
}

void mg_frame_clear(PyThreadState* thread, mg_frame* frame) {
  PyGenObject* generator = generator_of(frame);
  if (!generator) {
    PyCodeObject* code = frame->f_code;
    drop_contents(frame);
    Py_DECREF(code);
    pop(thread, frame);
    return;
  }
  thread->exc_info = generator->gi_exc_state.previous_item;
  generator->gi_exc_state.previous_item = NULL;
  Py_CLEAR(generator->gi_exc_state.exc_value);
  generator->gi_frame_state = FRAME_CLEARED;
  drop_contents(frame);
#if PY_VERSION_HEX < 0x030c0000
  Py_DECREF(frame->f_code);  // later ones need it until the generator itself goes
#endif
}

#endif

// ---- frames that only stand there

// Who reads the local variables of a frame expects cells for the free ones.
static void add_closure(mg_frame* frame, PyFunctionObject* function, PyCodeObject* code) {
  PyObject** free_variables = &frame->localsplus[code->co_nlocalsplus - code->co_nfreevars];
  for (int i = 0; i < code->co_nfreevars; ++i)
    if (!free_variables[i]) free_variables[i] = Py_NewRef(PyTuple_GET_ITEM(function->func_closure, i));
}

// CPython 3.13 lets others write to local variables, and takes what it finds in the place of a cell for one.
static void add_cells(mg_frame* frame, PyCodeObject* code) {
  if (PY_VERSION_HEX < 0x030d0000 || !code->co_ncellvars) return;
  for (int i = 0; i < code->co_nlocalsplus; ++i) {
    bool is_cell = PyBytes_AS_STRING(code->co_localspluskinds)[i] & CO_FAST_CELL;
    if (!is_cell || frame->localsplus[i]) continue;
    frame->localsplus[i] = PyCell_New(NULL);
    if (!frame->localsplus[i]) PyErr_Clear();
  }
}

bool mg_frame_put_up(PyThreadState* thread, const mg_standing_frame* standing, PyObject* const* values) {
  PyFunctionObject* function = (PyFunctionObject*)values[standing->function];
  PyCodeObject* code = standing->code;
  mg_frame* frame = push(thread, function, code, NULL, code->co_nlocalsplus);
  if (!frame) return false;
  for (int i = 0; i < code->co_nlocalsplus; ++i)
    frame->localsplus[i] = standing->locals[i] == MG_EMPTY ? NULL : Py_XNewRef(values[standing->locals[i]]);
  add_closure(frame, function, code);
  add_cells(frame, code);
  EXECUTING(frame) = _PyCode_CODE(code) + standing->index;
  link_frame(thread, frame);
  return true;
}

void mg_frames_take_down(PyThreadState* thread, int count) {
  for (; count; --count) {
    mg_frame* frame = CURRENT_FRAME(thread);
    unlink_frame(thread, frame);
    mg_frame_clear(thread, frame);
  }
}
