// The quarantine: everything that depends on the private layout of a CPython version, behind one C header.
#pragma once
#include <Python.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// ---- which CPython this is

// NULL if frames can be watched on this version, else the reason, for people.
const char* mg_why_unsupported(void);

// ---- code objects

typedef struct {
  uint8_t opcode;   // never a specialised one
  uint32_t arg;     // EXTENDED_ARG folded in
  int32_t next;     // index of the following instruction; inline caches are skipped
  int32_t restart;  // where to resume so that this instruction runs whole: its first EXTENDED_ARG
} mg_instruction;

// Fills one entry per code unit (`mg_code_units` of them); entries of caches are left zero. False: error set.
int mg_code_units(PyCodeObject* code);
bool mg_decode(PyCodeObject* code, mg_instruction* instructions);
// The same, kept with the code object for as long as it lives. NULL: error set.
const mg_instruction* mg_decoded(PyCodeObject* code);

typedef struct {
  int handler;       // where to go on
  int depth;         // how many stack entries survive
  bool push_offset;  // the faulting offset goes onto the stack before the exception
} mg_handler;

// The innermost handler that covers the instruction at `index`.
bool mg_find_handler(PyCodeObject* code, int index, mg_handler* found);

// ---- objects

uint64_t mg_dict_version(PyObject* dict);
// Whether every key is a str: a look-up then runs no code of the keys. May say no for a dict that once had others.
bool mg_has_only_text_keys(PyObject* dict);
// Where the object's __dict__ pointer lives, made if it was only implicit; NULL if the type has none.
PyObject** mg_dict_slot(PyObject* object);
// Whether the object's __dict__ holds anything; does not make the dict.
bool mg_has_attributes(PyObject* object);
// 0 if the type has no valid version now.
unsigned int mg_type_version(PyTypeObject* type);
// The parts of a bound slot wrapper such as super().__getattribute__; false if `object` is not one.
bool mg_method_wrapper(PyObject* object, PyWrapperDescrObject** descriptor, PyObject** self);
// The dict behind a functools.lru_cache wrapper; NULL if it is not where it is expected.
PyObject* mg_lru_cache_dict(PyObject* wrapper);

// ---- frames; only where mg_why_unsupported() is NULL

typedef struct _PyInterpreterFrame mg_frame;

typedef struct {
  PyFunctionObject* function;
  PyCodeObject* code;
  PyObject* globals;
  PyObject* builtins;
  PyObject** locals;                // locals, cells and free variables, then the value stack
  PyObject** stack_pointer;         // valid until the frame is taken
  const uint16_t* first_code_unit;  // index 0
  const uint16_t** executing;       // the frame's own note of the instruction being executed
  PyObject* generator;              // the owner, or NULL
} mg_frame_view;

void mg_frame_read(mg_frame* frame, mg_frame_view* view);
int mg_frame_next_instruction(mg_frame* frame);
// Makes the frame the current one while somebody else than CPython runs it.
mg_frame* mg_frame_take(PyThreadState* thread, mg_frame* frame);
// Gives it back; `stack_pointer` and the last executed code unit are what CPython will find.
void mg_frame_give_back(PyThreadState* thread, mg_frame* frame, mg_frame* previous, PyObject** stack_pointer);
void mg_frame_resume_before(mg_frame* frame, int index);
void mg_generator_suspended(PyObject* generator);
int mg_set_update(PyObject* set, PyObject* iterable);
PyCodeObject* mg_frame_code(mg_frame* frame);

// True when the evaluator must look up: signals, pending calls, a request to drop the GIL, an asynchronous exception
// (which is left to CPython: only it can clear the flag).
bool mg_must_break(PyThreadState* thread);
// Serves them; -1 with an error set if one raised.
int mg_serve_break(PyThreadState* thread);

// ---- the evaluator

PyObject* mg_eval_default(PyThreadState* thread, mg_frame* frame, int throwing);
// A debugger, profiler or coverage tool follows this thread.
bool mg_is_tracing(PyThreadState* thread);

typedef PyObject* (*mg_eval_function)(PyThreadState*, mg_frame*, int);
mg_eval_function mg_get_eval_function(void);
void mg_set_eval_function(mg_eval_function function);

// ---- frames with other code; on every CPython where mg_why_no_frame_hook() is NULL

// NULL, or why frames cannot be looked at and evaluated with other code on this version, for people.
const char* mg_why_no_frame_hook(void);
// What mg_get_eval_function gives when nobody has installed an evaluator.
mg_eval_function mg_default_evaluator(void);

// A frame before its first instruction. Borrowed, and good as long as nobody runs the frame.
typedef struct {
  PyFunctionObject* function;
  PyCodeObject* code;
  PyObject* globals;
  PyObject* builtins;
  PyObject* scope;         // the namespace of a class body or module, or NULL
  PyObject* frame_object;  // NULL if none was made
  PyObject** locals;
} mg_fresh_frame;

// False if the frame has started, which every generator has that can be resumed.
bool mg_fresh_frame_read(mg_frame* frame, mg_fresh_frame* fresh);
// What its variables hold, by name: arguments and free variables, or the namespace. A new reference; NULL: error set.
PyObject* mg_fresh_frame_locals(const mg_fresh_frame* fresh);
// The function of a frame that is being executed; borrowed, may be NULL.
PyObject* mg_frame_object_function(PyObject* frame_object);

// Which variable of one code object goes to which of another: those of the same name.
typedef struct mg_code_map mg_code_map;
// NULL with a ValueError if the new code needs an argument or a free variable that the old one does not have.
mg_code_map* mg_code_map_new(PyCodeObject* old_code, PyCodeObject* new_code);
void mg_code_map_free(mg_code_map* map);
// Evaluates a fresh frame of the map's old code with the new one, through `evaluator`.
PyObject* mg_eval_with_code(PyThreadState* thread, mg_frame* frame, const mg_code_map* map, mg_eval_function evaluator);
// For whoever was asked to evaluate a fresh frame and does not: leaves it as the caller expects, keeps the error.
void mg_frame_abandon(PyThreadState* thread, mg_frame* frame);

// Data kept with a code object: set once, freed with it. A slot below 0 or false: error set.
Py_ssize_t mg_code_data_slot(void (*free_data)(void*));
void* mg_code_data(PyCodeObject* code, Py_ssize_t slot);
bool mg_set_code_data(PyCodeObject* code, Py_ssize_t slot, void* data);
// A new reference, or NULL if there is no such attribute. False: error set.
bool mg_get_attribute(PyObject* object, PyObject* name, PyObject** value);
// How many inline cache entries follow an instruction.
uint8_t mg_opcode_caches(uint8_t opcode);

#ifdef __cplusplus
}
#endif
