// Frames with other code: reads a frame that has not started, and evaluates it with another code object.
//
// The frame is rewritten in place, so that it keeps its caller, its frame object and whoever clears it. Only when the
// new code needs more room than there is on top of the data stack does a second frame run it.
#include "cpython/cpython.h"

#if PY_VERSION_HEX >= 0x030b0000 && PY_VERSION_HEX < 0x030e0000

#include <string.h>

#include "cpython/frame_layout.h"

const char* mg_why_no_frame_hook(void) { return NULL; }

mg_eval_function mg_default_evaluator(void) { return _PyEval_EvalFrameDefault; }

// ---- frames that have not started

bool mg_fresh_frame_read(mg_frame* frame, mg_fresh_frame* fresh) {
  if (frame->owner != FRAME_OWNED_BY_THREAD || !FRAME_FUNCTION(frame) || !PyFunction_Check(FRAME_FUNCTION(frame)))
    return false;
  fresh->code = code_of(frame);
  if (EXECUTING(frame) != _PyCode_CODE(fresh->code) + BEFORE_FIRST) return false;
  fresh->function = (PyFunctionObject*)FRAME_FUNCTION(frame);
  fresh->globals = frame->f_globals;
  fresh->builtins = frame->f_builtins;
  fresh->scope = frame->f_locals;
  fresh->frame_object = (PyObject*)frame->frame_obj;
  fresh->locals = frame->localsplus;
  return true;
}

static int first_free(PyCodeObject* code) { return code->co_nlocalsplus - code->co_nfreevars; }

// The cell of the free variable in this slot, borrowed.
static PyObject* closure_cell(PyFunctionObject* function, PyCodeObject* code, int slot) {
  return PyTuple_GET_ITEM(function->func_closure, slot - first_free(code));
}

PyObject* mg_fresh_frame_locals(const mg_fresh_frame* fresh) {
  PyCodeObject* code = fresh->code;
  if (fresh->scope && (!code->co_nfreevars || !PyDict_Check(fresh->scope))) return Py_NewRef(fresh->scope);
  PyObject* locals = PyDict_New();
  if (!locals || (fresh->scope && PyDict_Update(locals, fresh->scope) < 0)) goto error;
  for (int i = 0; i < code->co_nlocalsplus; ++i) {
    // No cell has been made yet: an argument that will live in one is still the plain value.
    PyObject* value = i < first_free(code) ? fresh->locals[i] : PyCell_GET(closure_cell(fresh->function, code, i));
    if (value && PyDict_SetItem(locals, PyTuple_GET_ITEM(code->co_localsplusnames, i), value) < 0) goto error;
  }
  return locals;
error:
  Py_XDECREF(locals);
  return NULL;
}

PyObject* mg_frame_object_function(PyObject* frame_object) {
  PyObject* function = (PyObject*)FRAME_FUNCTION(((PyFrameObject*)frame_object)->f_frame);
  return function && PyFunction_Check(function) ? function : NULL;
}

// ---- from the variables of one code object to those of another

struct mg_code_map {
  PyCodeObject* code;  // the new one
  bool makes_function;
  int argument_count;
  int sources[];  // for each variable of the new code, the slot of the same name in the old one, or -1
};

static int argument_count(PyCodeObject* code) {
  return code->co_argcount + code->co_kwonlyargcount + !!(code->co_flags & CO_VARARGS) +
         !!(code->co_flags & CO_VARKEYWORDS);
}

// A class body may have a free variable and a cell of one name, `__class__`: the one of the same kind goes first.
static int find_variable(PyCodeObject* code, PyObject* name, bool is_free) {
  int found = -1;
  for (int i = 0; i < code->co_nlocalsplus; ++i) {
    if (PyUnicode_Compare(PyTuple_GET_ITEM(code->co_localsplusnames, i), name) != 0) continue;
    if (found < 0 || is_free) found = i;
  }
  return found;
}

// The frame's function is good for the new code if both find the same closure in it and it makes no generator, which
// would be laid out after the function's own code.
static bool needs_own_function(const mg_code_map* map, PyCodeObject* old) {
  PyCodeObject* code = map->code;
  if (code->co_flags & (CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR)) return true;
  if (!code->co_nfreevars) return false;
  if (code->co_nfreevars != old->co_nfreevars) return true;
  for (int i = 0; i < code->co_nfreevars; ++i) {
    if (map->sources[first_free(code) + i] != first_free(old) + i) return true;
  }
  return false;
}

mg_code_map* mg_code_map_new(PyCodeObject* old, PyCodeObject* code) {
  int count = code->co_nlocalsplus;
  if (!(code->co_flags & CO_OPTIMIZED) && (old->co_flags & CO_OPTIMIZED)) {
    PyErr_Format(PyExc_ValueError, "the new code of %U is that of a class body or module, which needs a namespace",
                 old->co_qualname);
    return NULL;
  }
  mg_code_map* map = PyMem_Malloc(sizeof(mg_code_map) + sizeof(int) * (size_t)count);
  if (!map) return (mg_code_map*)PyErr_NoMemory();
  map->code = (PyCodeObject*)Py_NewRef(code);
  map->argument_count = argument_count(code);
  for (int i = 0; i < count; ++i) {
    PyObject* name = PyTuple_GET_ITEM(code->co_localsplusnames, i);
    bool is_argument = i < map->argument_count, is_free = i >= first_free(code);
    int source = map->sources[i] = find_variable(old, name, is_free);
    // CPython reads an argument without asking whether it has a value.
    bool has_value = source >= first_free(old) || (source >= 0 && source < argument_count(old));
    if ((is_argument && !has_value) || (is_free && source < 0)) {
      PyErr_Format(PyExc_ValueError, "the new code of %U expects %s %R, which the original code does not have",
                   old->co_qualname, is_free ? "a free variable" : "an argument", name);
      mg_code_map_free(map);
      return NULL;
    }
  }
  map->makes_function = needs_own_function(map, old);
  return map;
}

void mg_code_map_free(mg_code_map* map) {
  if (!map) return;
  Py_DECREF(map->code);
  PyMem_Free(map);
}

// ---- evaluation

// What the frame becomes, prepared so that nothing can fail once the frame is touched.
typedef struct {
  PyCodeObject* code;          // borrowed
  PyFunctionObject* function;  // owned; NULL: stays as it is
  PyObject** values;           // owned; of the new variables
  PyObject** rest;             // owned; what the new code has no use for
  int rest_count;
  PyObject* small[64];
} new_frame;

static PyObject* closure_for(const mg_code_map* map, const mg_fresh_frame* fresh) {
  PyCodeObject* code = map->code;
  PyObject* closure = PyTuple_New(code->co_nfreevars);
  for (int i = 0; closure && i < code->co_nfreevars; ++i) {
    int source = map->sources[first_free(code) + i];
    PyObject* cell = source >= first_free(fresh->code) ? Py_NewRef(closure_cell(fresh->function, fresh->code, source))
                                                       : PyCell_New(fresh->locals[source]);
    if (!cell) Py_CLEAR(closure);
    if (closure) PyTuple_SET_ITEM(closure, i, cell);
  }
  return closure;
}

// The frame's function with the new code and the closure that fits it.
static PyFunctionObject* function_for(const mg_code_map* map, const mg_fresh_frame* fresh) {
  PyFunctionObject* old = fresh->function;
  PyFunctionObject* function =
      (PyFunctionObject*)PyFunction_NewWithQualName((PyObject*)map->code, fresh->globals, old->func_qualname);
  if (!function) return NULL;
  Py_XSETREF(function->func_name, Py_NewRef(old->func_name));
  Py_XSETREF(function->func_builtins, Py_NewRef(old->func_builtins));
  Py_XSETREF(function->func_module, Py_XNewRef(old->func_module));
  Py_XSETREF(function->func_defaults, Py_XNewRef(old->func_defaults));
  Py_XSETREF(function->func_kwdefaults, Py_XNewRef(old->func_kwdefaults));
  if (map->code->co_nfreevars && !(function->func_closure = closure_for(map, fresh))) Py_CLEAR(function);
  return function;
}

static void release(new_frame* next) {
  Py_CLEAR(next->function);
  for (int i = 0; i < next->rest_count; ++i) Py_XDECREF(next->rest[i]);
  if (next->values != next->small) PyMem_Free(next->values);
}

// Moves the frame's values to where the new code expects them; the frame is left without any.
static void take_values(const mg_code_map* map, const mg_fresh_frame* fresh, new_frame* next) {
  int old_free = first_free(fresh->code), new_free = first_free(map->code);
  memcpy(next->rest, fresh->locals, sizeof(PyObject*) * (size_t)next->rest_count);
  memset(fresh->locals, 0, sizeof(PyObject*) * (size_t)next->rest_count);
  for (int i = 0; i < map->code->co_nlocalsplus; ++i) {
    int source = i < new_free ? map->sources[i] : -1;  // COPY_FREE_VARS fetches the free ones from the function
    next->values[i] = NULL;
    if (source >= old_free) {
      next->values[i] = Py_XNewRef(PyCell_GET(closure_cell(fresh->function, fresh->code, source)));
    } else if (source >= 0) {
      next->values[i] = next->rest[source];
      next->rest[source] = NULL;
    }
  }
}

static bool prepare(const mg_code_map* map, const mg_fresh_frame* fresh, new_frame* next) {
  int new_count = map->code->co_nlocalsplus, old_count = fresh->code->co_nlocalsplus;
  for (int i = 0; i < map->argument_count; ++i) {
    int source = map->sources[i];
    if (source >= first_free(fresh->code) && !PyCell_GET(closure_cell(fresh->function, fresh->code, source))) {
      PyErr_Format(PyExc_NameError, "the new code of %U takes the free variable %R as an argument, but it has no value",
                   fresh->code->co_qualname, PyTuple_GET_ITEM(map->code->co_localsplusnames, i));
      return false;
    }
  }
  size_t wanted = (size_t)(new_count + old_count);
  next->code = map->code;
  next->function = NULL;
  next->rest_count = 0;
  next->values = next->small;
  if (wanted > Py_ARRAY_LENGTH(next->small) && !(next->values = PyMem_Malloc(wanted * sizeof(PyObject*)))) {
    PyErr_NoMemory();
    return false;
  }
  next->rest = next->values + new_count;
  if (map->makes_function && !(next->function = function_for(map, fresh))) {
    release(next);
    return false;
  }
  next->rest_count = old_count;
  take_values(map, fresh, next);
  return true;
}

static Py_ssize_t frame_size(PyCodeObject* code) {
#if PY_VERSION_HEX >= 0x030c0000
  return code->co_framesize;
#else
  return code->co_nlocalsplus + code->co_stacksize + (Py_ssize_t)FRAME_SPECIALS_SIZE;
#endif
}

static PyObject** frame_end(mg_frame* frame, PyCodeObject* code) { return (PyObject**)frame + frame_size(code); }

static bool is_on_top(PyThreadState* thread, mg_frame* frame) {
  return thread->datastack_top == frame_end(frame, code_of(frame));
}

static bool has_room(PyThreadState* thread, mg_frame* frame, PyCodeObject* code) {
  return frame_size(code) <= frame_size(code_of(frame)) ||
         (is_on_top(thread, frame) && frame_end(frame, code) < thread->datastack_limit);
}

static void fill(mg_frame* frame, new_frame* next) {
  PyObject* old_code = (PyObject*)FRAME_CODE(frame);
  FRAME_CODE(frame) = (void*)Py_NewRef(next->code);
  EXECUTING(frame) = _PyCode_CODE(next->code) + BEFORE_FIRST;
  frame->stacktop = next->code->co_nlocalsplus;
  memcpy(frame->localsplus, next->values, sizeof(PyObject*) * (size_t)next->code->co_nlocalsplus);
  if (next->function) {
    PyFunctionObject* old_function = (PyFunctionObject*)FRAME_FUNCTION(frame);
    FRAME_FUNCTION(frame) = (void*)next->function;
    next->function = old_function;
  }
  release(next);
  Py_DECREF(old_code);
}

static Py_NO_INLINE bool rewrite(PyThreadState* thread, mg_frame* frame, const mg_code_map* map,
                                 const mg_fresh_frame* fresh) {
  new_frame next;
  if (!prepare(map, fresh, &next)) return false;
  if (is_on_top(thread, frame)) thread->datastack_top = frame_end(frame, map->code);
  fill(frame, &next);
  return true;
}

// Another frame with the contents of this one; NULL: error set.
static Py_NO_INLINE mg_frame* move(PyThreadState* thread, mg_frame* frame, const mg_code_map* map,
                                   const mg_fresh_frame* fresh) {
  new_frame next;
  if (!prepare(map, fresh, &next)) return NULL;
  mg_frame* second = mg_frame_push(thread, next.function ? next.function : fresh->function, map->code, frame->f_locals);
  Py_CLEAR(next.function);
  if (!second) {
    for (int i = 0; i < map->code->co_nlocalsplus; ++i) Py_XDECREF(next.values[i]);
    release(&next);
    return NULL;
  }
  second->frame_obj = frame->frame_obj;
  frame->frame_obj = NULL;
  if (second->frame_obj) second->frame_obj->f_frame = second;
  fill(second, &next);
  return second;
}

PyObject* mg_eval_with_code(PyThreadState* thread, mg_frame* frame, const mg_code_map* map,
                            mg_eval_function evaluator) {
  mg_fresh_frame fresh;
  PyObject* result = NULL;
  if (!mg_fresh_frame_read(frame, &fresh)) {
    PyErr_SetString(PyExc_SystemError, "a frame that has started cannot be given other code");
  } else if (has_room(thread, frame, map->code)) {
    if (rewrite(thread, frame, map, &fresh)) return evaluator(thread, frame, 0);
  } else {
    mg_frame* second = move(thread, frame, map, &fresh);
    if (second) result = evaluator(thread, second, 0);
#if !EVALUATOR_CLEARS
    if (second) mg_frame_clear(thread, second);
#endif
  }
  mg_frame_finish(thread, frame);
  return result;
}

#else  // nothing below the first function is reached

const char* mg_why_no_frame_hook(void) {
  return "the frame hook needs CPython 3.11, 3.12 or 3.13; this is CPython " PY_VERSION;
}
mg_eval_function mg_default_evaluator(void) { return _PyEval_EvalFrameDefault; }
bool mg_fresh_frame_read(mg_frame* frame, mg_fresh_frame* fresh) { return false; }
PyObject* mg_fresh_frame_locals(const mg_fresh_frame* fresh) { return NULL; }
PyObject* mg_frame_object_function(PyObject* frame_object) { return NULL; }
mg_code_map* mg_code_map_new(PyCodeObject* old_code, PyCodeObject* new_code) { return NULL; }
void mg_code_map_free(mg_code_map* map) {}
PyObject* mg_eval_with_code(PyThreadState* thread, mg_frame* frame, const mg_code_map* map,
                            mg_eval_function evaluator) {
  return evaluator(thread, frame, 0);
}

#endif
