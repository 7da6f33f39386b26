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

mg_frame* mg_frame_push(PyThreadState* thread, PyFunctionObject* function, PyCodeObject* code, PyObject* names) {
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
  _PyFrame_Initialize(frame, function, Py_XNewRef(names), code, 0);
#else
  _PyFrame_InitializeSpecials(frame, function, names, code->co_nlocalsplus);
  Py_SETREF(frame->f_code, (PyCodeObject*)Py_NewRef(code));
  frame->prev_instr = _PyCode_CODE(code) - 1;
  memset(frame->localsplus, 0, sizeof(PyObject*) * (size_t)code->co_nlocalsplus);
#endif
  frame->previous = CURRENT_FRAME(thread);
  return frame;
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
