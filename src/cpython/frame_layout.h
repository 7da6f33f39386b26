// What differs between the frames of CPython 3.11, 3.12 and 3.13; for the sources of this folder only.
#pragma once
#define Py_BUILD_CORE 1
#include <Python.h>
#include <frameobject.h>
#include <stddef.h>

#include "internal/pycore_code.h"
#include "internal/pycore_frame.h"

#include "cpython/cpython.h"

#if PY_VERSION_HEX >= 0x030d0000
#define FRAME_CODE(frame) ((frame)->f_executable)
#define FRAME_FUNCTION(frame) ((frame)->f_funcobj)
#define CURRENT_FRAME(thread) ((thread)->current_frame)
#define EXECUTING(frame) ((frame)->instr_ptr)
#define BEFORE_FIRST 0  // where EXECUTING stands, counted from the instruction that runs next
#elif PY_VERSION_HEX >= 0x030c0000
#define FRAME_CODE(frame) ((frame)->f_code)
#define FRAME_FUNCTION(frame) ((frame)->f_funcobj)
#define CURRENT_FRAME(thread) ((thread)->cframe->current_frame)
#define EXECUTING(frame) ((frame)->prev_instr)
#define BEFORE_FIRST (-1)
#else
#define FRAME_CODE(frame) ((frame)->f_code)
#define FRAME_FUNCTION(frame) ((frame)->f_func)
#define CURRENT_FRAME(thread) ((thread)->cframe->current_frame)
#define EXECUTING(frame) ((frame)->prev_instr)
#define BEFORE_FIRST (-1)
#endif

// CPython 3.11 leaves the frame that it was given for its caller to clear; later ones clear it themselves.
#define EVALUATOR_CLEARS (PY_VERSION_HEX >= 0x030c0000)

static inline PyCodeObject* code_of(mg_frame* frame) { return (PyCodeObject*)FRAME_CODE(frame); }

static inline PyGenObject* generator_of(mg_frame* frame) {
  return frame->owner == FRAME_OWNED_BY_GENERATOR ? _PyFrame_GetGenerator(frame) : NULL;
}

static inline mg_frame* frame_in(PyGenObject* generator) { return (mg_frame*)generator->gi_iframe; }

static inline void link_frame(PyThreadState* thread, mg_frame* frame) {
  frame->previous = CURRENT_FRAME(thread);
  CURRENT_FRAME(thread) = frame;
}

static inline void unlink_frame(PyThreadState* thread, mg_frame* frame) { CURRENT_FRAME(thread) = frame->previous; }
