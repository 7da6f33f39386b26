// The quarantine: everything that depends on the private layout of a CPython version, behind one C header.
#pragma once
#include <Python.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// ---- which CPython this is

// NULL if frames can be watched on this version, else the reason, for people. Reading, rebuilding and resuming frames
// works on every version.
const char* mg_why_unsupported(void);

// ---- code objects

typedef struct {
  uint8_t opcode;     // never a specialised one
  uint8_t operation;  // what it does, by a name that is the same in all versions: an mg_operation
  uint16_t lead;      // so far before it must be resumed to run whole: at its first EXTENDED_ARG, KW_NAMES or TO_BOOL
  uint32_t arg;       // EXTENDED_ARG folded in
  uint32_t operand;   // of the operation
  int32_t next;       // index of the following instruction; inline caches are skipped
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
// The innermost handler of the program itself for what the instruction at `index` raises; from its place one gets to
// the handler around it. Those do not count that the compiler adds to put things back: around a generator, a
// comprehension, or the body of another handler. `ends_block`: it calls the __exit__ of a `with` block, which is the
// last of the stack entries that survive.
bool mg_find_own_handler(PyCodeObject* code, int index, mg_handler* found, bool* ends_block);
bool mg_is_handled(PyCodeObject* code, int index);
// The innermost handler for every code unit at once; `handler` is -1 where there is none.
void mg_handlers(PyCodeObject* code, mg_handler* handlers);

// -1 if the instruction has no line.
int mg_line(PyCodeObject* code, int index);
// Where the instruction jumps if it does; -1 if it never jumps.
int mg_jump_target(const mg_instruction* instruction);

typedef struct {
  int32_t depth;  // of the value stack before the instruction; -1: it is never reached
  int32_t
      saved;  // where on the stack the outermost handler of the frame saved its caller's exception; -1: no handler runs
} mg_flow;

// One entry per code unit, kept with the code object. NULL: error set.
const mg_flow* mg_code_flow(PyCodeObject* code);

// ---- objects

// Changes whenever the dict does, and no two states of dicts share one. For the __dict__ of an object that holds only
// while mg_has_settled_dict: an object may keep the values to itself, and stores to its attributes then pass the dict
// by.
uint64_t mg_dict_version(PyObject* dict);
bool mg_has_settled_dict(PyObject* object);
// Makes the object's __dict__ hold the values, for as long as somebody else holds that dict too; its identity, contents
// and order stay. Borrowed; NULL if the object has none.
PyObject* mg_settle_dict(PyObject* object);
// Whether every key is a str: a look-up then runs no code of the keys. May say no for a dict that once had others.
bool mg_has_only_text_keys(PyObject* dict);
// Of a dict that has other keys, too: the next entry whose key has this hash; start with position 0. Borrowed.
bool mg_dict_next_of_hash(PyObject* dict, Py_hash_t hash, Py_ssize_t* position, PyObject** key, PyObject** value);
// Where the object's __dict__ pointer lives, made if it was only implicit; NULL if the type has none.
PyObject** mg_dict_slot(PyObject* object);
// Whether the object's __dict__ holds anything; does not make the dict.
bool mg_has_attributes(PyObject* object);
// Whether it holds anything under a name that does not begin with one of these; the last is NULL.
bool mg_has_other_attributes(PyObject* object, const char* const* prefixes);
// A class made by a class statement, whose instances are freed by CPython's own code for such classes.
bool mg_is_python_class(PyTypeObject* type);
// Whether the class itself, without its bases, gives its instances slots.
bool mg_has_slots(PyTypeObject* type);
// The next member of a set, in the order of iteration; start with position 0.
bool mg_set_next(PyObject* set, Py_ssize_t* position, PyObject** item);
// What the class itself defines. Borrowed.
PyObject* mg_type_dict(PyTypeObject* type);
// 0 if the type has no valid version now.
unsigned int mg_type_version(PyTypeObject* type);
// Eight bytes that differ whenever the version does. Looks at no object: the address may be that of a dead one. NULL
// if versions cannot be trusted on this CPython.
const uint64_t* mg_dict_version_word(PyObject* dict);
const uint64_t* mg_type_version_word(PyTypeObject* type);
// The same number as last time if meanwhile no dict of the process was made or changed; 0 if this CPython cannot tell.
uint64_t mg_dict_epoch(void);
// Where a module keeps its dict, in bytes.
ptrdiff_t mg_module_dict_offset(void);
// Gives it one if it has none; 0 if there are no more.
unsigned int mg_assign_type_version(PyTypeObject* type);
// The parts of a bound slot wrapper such as super().__getattribute__; false if `object` is not one.
bool mg_method_wrapper(PyObject* object, PyWrapperDescrObject** descriptor, PyObject** self);
// Whether the function is generic.
bool mg_has_type_parameters(PyFunctionObject* function);
// Whether CPython has one object for all that are equal to it: a small int.
bool mg_is_shared_int(PyObject* value);
// What is behind a functools.lru_cache wrapper.
typedef struct {
  PyObject* dict;      // from keys to results, or to links to them
  PyObject* mark;      // between positional and named arguments in keys
  Py_ssize_t misses;   // so far
  bool typed;          // keys end with the types of the arguments
  bool keeps_results;  // else each call is made
} mg_lru_cache;
// False, without an error, if it is not where it is expected.
bool mg_lru_cache_read(PyObject* wrapper, mg_lru_cache* cache);
// Where a value of that dict has the result, if it is a link to one: an offset in bytes; else 0.
ptrdiff_t mg_lru_cache_result(PyObject* value);

// ---- iterators that can be made again

enum { MG_ITERATOR_WORDS = 8 };

// What an iterator, or a view of a dict, is about to give, apart from the objects that it refers to.
typedef struct {
  uint64_t words[MG_ITERATOR_WORDS];  // what follows the object's head
  uint8_t part_words[MG_ITERATOR_WORDS];
  int word_count, part_count;
  int scratch_word;         // a tuple that it only keeps to fill it again; -1: none
  Py_ssize_t scratch_size;  // of that tuple
} mg_iterator;

// Whether it is of a type that these functions know.
bool mg_is_plain_iterator(PyTypeObject* type);
// Fills `parts` (MG_ITERATOR_WORDS of them, borrowed) with the objects that it refers to. False, without an error: not
// understood.
bool mg_iterator_read(PyObject* iterator, mg_iterator* state, PyObject** parts);
// In the same state, over other parts. Positions are copied as they are. NULL: error set.
PyObject* mg_iterator_new(PyTypeObject* type, const mg_iterator* state, PyObject* const* parts);

// ---- watchers: told of a change instead of looking for it; from CPython 3.12 on

// Called before the change, or before the dict goes away. Must neither run Python code, nor raise, nor unwatch.
typedef void (*mg_on_dict_change)(PyObject* dict);
// Called once: a type that has changed is watched on only after mg_assign_type_version.
typedef void (*mg_on_type_change)(PyTypeObject* type);

// False, without an error, if this version has no watchers or others use all of them.
bool mg_watchers_start(mg_on_dict_change on_dict, mg_on_type_change on_type);
void mg_watchers_stop(void);
// While started. False: error set.
bool mg_watch_dict(PyObject* dict);
bool mg_unwatch_dict(PyObject* dict);
bool mg_watch_type(PyTypeObject* type);
bool mg_unwatch_type(PyTypeObject* type);

// ---- frames

typedef struct _PyInterpreterFrame mg_frame;

typedef struct {
  PyFunctionObject* function;
  PyCodeObject* code;
  PyObject* globals;
  PyObject* builtins;
  PyObject* names;                  // the mapping that a class body or a module fills, or NULL
  PyObject** locals;                // locals, cells and free variables, then the value stack
  PyObject** stack_pointer;         // valid until the frame is taken
  const uint16_t* first_code_unit;  // index 0
  const uint16_t** executing;       // the frame's own note of the instruction being executed
  PyObject* generator;              // the owner, or NULL
} mg_frame_view;

mg_frame* mg_frame_of(PyFrameObject* object);
PyCodeObject* mg_frame_code(mg_frame* frame);
void mg_frame_read(mg_frame* frame, mg_frame_view* view);
// Of a frame that runs: the instruction that is under way. Of one at rest: the one that comes next.
int mg_frame_executing(mg_frame* frame);
int mg_frame_next_instruction(mg_frame* frame);
// The innermost frame of a thread that runs Python code, and the next one outwards; NULL: none. For the thread itself
// also without the GIL: nobody else changes its frames.
mg_frame* mg_frame_innermost(PyThreadState* thread);
mg_frame* mg_frame_outward(mg_frame* frame);
void mg_frame_resume_before(mg_frame* frame, int index);

// A new frame on the thread's data stack, every local unbound. `mg_frame_clear` ends it, and so does the evaluator
// from CPython 3.12 on. NULL: error set.
mg_frame* mg_frame_push(PyThreadState* thread, PyFunctionObject* function, PyCodeObject* code, PyObject* names);
// Drops what an unlinked frame holds (its frame object keeps it if somebody keeps that) and gives its memory back.
void mg_frame_clear(PyThreadState* thread, mg_frame* frame);

// A frame that does not run, but stands at an instruction for others to see, who cannot see its stack. Values have
// numbers.
#define MG_EMPTY UINT32_MAX
typedef struct {
  uint32_t function;
  PyCodeObject* code;
  int32_t index;           // of the instruction
  const uint32_t* locals;  // with cells and free variables; MG_EMPTY: unbound
} mg_standing_frame;

// Makes it the innermost frame. A value may be NULL: not all have to be known. False: error set.
bool mg_frame_put_up(PyThreadState* thread, const mg_standing_frame* standing, PyObject* const* values);
// Ends so many of these, from the innermost on. No error may be set.
void mg_frames_take_down(PyThreadState* thread, int count);

// Makes the frame the current one while somebody else than CPython runs it.
mg_frame* mg_frame_take(PyThreadState* thread, mg_frame* frame);
// Gives it back; `stack_pointer` and the last executed code unit are what CPython will find.
void mg_frame_give_back(PyThreadState* thread, mg_frame* frame, mg_frame* previous, PyObject** stack_pointer);
// After that, for a frame that an evaluator hook has run to its end, or was given and does not run at all: does what
// is left to do in this version.
void mg_frame_finish(PyThreadState* thread, mg_frame* frame);
// The frame of a generator that is suspended or has not started; NULL otherwise.
mg_frame* mg_generator_frame(PyObject* generator);
// For a generator's frame that has yielded instead, what another generator gave it if it `delegates`.
void mg_generator_suspended(PyObject* generator, bool delegates);

// Counts a frame that CPython does not run towards the recursion limit. False: it would be too many; the evaluator
// raises the error if it is given the frame.
bool mg_enter_frame(PyThreadState* thread);
void mg_leave_frame(PyThreadState* thread);

// True when the evaluator must look up: signals, pending calls, a request to drop the GIL, an asynchronous exception
// (which is left to CPython: only it can clear the flag).
bool mg_must_break(PyThreadState* thread);
// Serves them; -1 with an error set if one raised.
int mg_serve_break(PyThreadState* thread);

// ---- snapshots: frames that can be put back

typedef struct {
  PyFunctionObject* function;
  PyCodeObject* code;   // the function's, unless somebody gave it another one meanwhile
  PyObject* names;      // as in mg_frame_view
  PyObject* generator;  // whose frame this becomes: from mg_new_generator, or NULL for one that nobody else knows
  PyObject* handled;    // the exception that the frame is handling, or NULL
  PyObject* instead;  // pushed in place of what the frame further in returns (the object, if that is __init__), or NULL
  int32_t index;      // of the instruction that comes next; in a chain, of the one that led to the frame further in
  int32_t depth;      // of the stack; in a chain, without the operands of that instruction
  PyObject* values[];  // owned, NULL is unbound: co_nlocalsplus of them, then `depth` of the stack
} mg_snapshot;

// Nothing but function, code, index and depth is filled in. NULL: error set.
mg_snapshot* mg_snapshot_new(PyFunctionObject* function, PyCodeObject* code, int index, int depth);
void mg_snapshot_free(mg_snapshot* snapshot);
// The depth that a snapshot at `index` must have; `in_chain`: another frame stands further in. -1: no frame can stand
// there. -2: error set.
int mg_snapshot_depth(PyCodeObject* code, int index, bool in_chain);

// The frame that called this one; NULL if it was called from C code, so that no chain leads there.
mg_frame* mg_frame_caller(mg_frame* frame);
// Takes `count` snapshots, outermost first, of a frame that is about to execute an instruction and of its callers.
// False: error set, nothing taken.
bool mg_snapshot_take(PyThreadState* thread, mg_frame* innermost, int count, mg_snapshot** chain);

// Puts the frames back, outermost first, and lets CPython go on in the innermost. Gives what the outermost returns;
// NULL: the error that leaves it. If an error is set when it is called, the innermost frame's instruction raised it.
// An outermost frame of a generator behaves as in next(). The snapshots are used up, even on errors.
PyObject* mg_resume(PyThreadState* thread, mg_snapshot** chain, int count);
// A generator or coroutine that has not started and holds nothing, for snapshots to name. NULL: error set.
PyObject* mg_new_generator(PyThreadState* thread, PyFunctionObject* function, PyCodeObject* code);
// A generator or coroutine that is suspended at the snapshot, whose stack lacks the value that will be sent. The
// snapshot is used up. NULL: error set.
PyObject* mg_suspended_generator(PyThreadState* thread, mg_snapshot* snapshot);

// Lets CPython execute one instruction, of which no function of its API does the work: `operands` are on the stack,
// `results` of them are left. Gives the result, a tuple of several, or None.
typedef struct {
  int opcode, arg;
  int operands, results;
  PyObject* globals;
  PyObject* names;  // as in mg_frame_view, or NULL
  PyObject* name;   // that the argument 0 stands for, or NULL
} mg_lone_instruction;
// NULL: error set, and its traceback begins with the frames further in.
PyObject* mg_run_instruction(PyThreadState* thread, const mg_lone_instruction* instruction, PyObject* const* operands);

// ---- the evaluator

PyObject* mg_eval_default(PyThreadState* thread, mg_frame* frame, int throwing);
// How many more Python frames the recursion limit allows, and frames that count towards it although nobody made them.
static inline int mg_recursion_left(PyThreadState* thread) {
#if PY_VERSION_HEX >= 0x030c0000
  return thread->py_recursion_remaining;
#else
  return thread->recursion_remaining;
#endif
}
// How deeply C code may still nest, where CPython counts that by itself (3.12 and later).
int mg_c_recursion_left(PyThreadState* thread);
void mg_recursion_use(PyThreadState* thread, int frames);
// A debugger, profiler or coverage tool follows this thread.
bool mg_is_tracing(PyThreadState* thread);
// One that must see every line: a debugger or coverage tool.
bool mg_is_tracing_lines(PyThreadState* thread);
// One follows this code alone (sys.monitoring).
bool mg_is_monitored(PyCodeObject* code);

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

// Data kept with a code object: set once, freed with it. A slot below 0 or false: error set.
Py_ssize_t mg_code_data_slot(void (*free_data)(void*));
void* mg_code_data(PyCodeObject* code, Py_ssize_t slot);
bool mg_set_code_data(PyCodeObject* code, Py_ssize_t slot, void* data);
// A new reference, or NULL if there is no such attribute. False: error set.
bool mg_get_attribute(PyObject* object, PyObject* name, PyObject** value);
// A new reference in `method`, NULL: error set. True if it is a function of the class that takes `object` as `self`.
bool mg_get_method(PyObject* object, PyObject* name, PyObject** method);
// As in [*list, *iterable] and {*set, *iterable}. False: error set.
bool mg_list_extend(PyObject* list, PyObject* iterable);
bool mg_set_update(PyObject* set, PyObject* iterable);
// A new reference; NULL: error set.
PyObject* mg_join_texts(PyObject* const* texts, Py_ssize_t count);
// How many inline cache entries follow an instruction.
uint8_t mg_opcode_caches(uint8_t opcode);

#ifdef __cplusplus
}
#endif
