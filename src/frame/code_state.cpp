// Cache entries and the state of code objects.
#include "frame/code_state.h"

#include <algorithm>
#include <new>
#include <string>
#include <utility>

#include "cpython/error_aside.h"
#include "cpython/text.h"
#include "runtime/daemon_threads.h"
#include "runtime/state.h"

namespace magneto::frame {

namespace {

CacheEntry* as_entry(PyObject* object) { return reinterpret_cast<CacheEntry*>(object); }
ExtraState* as_state(PyObject* object) { return reinterpret_cast<ExtraState*>(object); }
PyObject* as_object(void* object) { return static_cast<PyObject*>(object); }

bool is_entry(PyObject* object) { return Py_TYPE(object) == runtime::process_state().cache_entry_type; }

// ---- the check function knows its entry, so that it can invalidate it

// Sets an attribute if the check function takes any: bound methods and C functions do not.
bool tell(PyObject* check_fn, const char* name, PyObject* value) {
  if (PyObject_SetAttrString(check_fn, name, value) == 0) return true;
  if (!PyErr_ExceptionMatches(PyExc_AttributeError) && !PyErr_ExceptionMatches(PyExc_TypeError)) return false;
  PyErr_Clear();
  return true;
}

void untell(CacheEntry* entry) {
  if (!entry->check_fn) return;
  py::ErrorAside aside;
  py::Ref check_fn = py::Ref::borrow(entry->check_fn);
  py::Ref told = py::Ref::steal(PyObject_GetAttrString(check_fn.get(), "cache_entry"));
  if (told.get() == as_object(entry)) {
    tell(check_fn.get(), "cache_entry", Py_None);
    tell(check_fn.get(), "extra_state", Py_None);
  }
  PyErr_Clear();
}

// ---- lists

// The entry is in no list any more; takes the list's reference.
void detach(CacheEntry* entry) {
  entry->state = nullptr;
  untell(entry);
  Py_DECREF(as_object(entry));
}

void drop_entries(ExtraState* state) {
  std::vector<CacheEntry*> dropped = std::exchange(state->entries, {});
  for (CacheEntry* entry : dropped) entry->state = nullptr;
  for (CacheEntry* entry : dropped) detach(entry);
}

void move_to_front(ExtraState* state, CacheEntry* entry) {
  auto found = std::find(state->entries.begin(), state->entries.end(), entry);
  if (found != state->entries.end()) std::rotate(state->entries.begin(), found, found + 1);
}

PyObject* invalidate(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  if (count < 1 || count > 2 || !is_entry(args[0])) {
    PyErr_SetString(PyExc_TypeError, "invalidate expects a _CacheEntry and, if wanted, what its check_fn becomes");
    return nullptr;
  }
  auto* entry = as_entry(args[0]);
  auto* state = as_state(self);
  auto found = std::find(state->entries.begin(), state->entries.end(), entry);
  if (found == state->entries.end()) {
    PyErr_SetString(PyExc_ValueError, "invalidate: the cache entry is not one of this code object");
    return nullptr;
  }
  state->entries.erase(found);
  py::Ref keep = py::Ref::borrow(args[0]);
  detach(entry);
  Py_CLEAR(entry->code);
  Py_XSETREF(entry->check_fn, Py_NewRef(count == 2 ? args[1] : Py_None));
  Py_RETURN_NONE;
}

// ---- the type _CacheEntry

PyObject* new_or_none(PyObject* borrowed) { return Py_NewRef(borrowed ? borrowed : Py_None); }

PyObject* get_check_fn(PyObject* self, void*) { return new_or_none(as_entry(self)->check_fn); }
PyObject* get_code(PyObject* self, void*) { return new_or_none(as_entry(self)->code); }
PyObject* get_compile_id(PyObject* self, void*) { return new_or_none(as_entry(self)->compile_id); }
PyObject* get_original(PyObject* self, void*) {
  PyObject* reference = as_entry(self)->original;
  return reference ? PyObject_CallNoArgs(reference) : Py_NewRef(Py_None);
}
PyObject* get_trace_annotation(PyObject* self, void*) { return new_or_none(as_entry(self)->trace_annotation); }
PyObject* get_backend(PyObject* self, void*) { return new_or_none(as_entry(self)->backend); }
PyObject* get_extra_state(PyObject* self, void*) { return new_or_none(as_object(as_entry(self)->state)); }

PyObject* get_next(PyObject* self, void*) {
  CacheEntry* entry = as_entry(self);
  if (!entry->state) Py_RETURN_NONE;
  const auto& entries = entry->state->entries;
  auto next = std::find(entries.begin(), entries.end(), entry) + 1;
  return new_or_none(next < entries.end() ? as_object(*next) : nullptr);
}

int traverse_entry(PyObject* self, visitproc visit, void* arg) {
  CacheEntry* entry = as_entry(self);
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(entry->check_fn);
  Py_VISIT(entry->code);
  Py_VISIT(entry->compile_id);
  Py_VISIT(entry->backend);
  return 0;
}

int clear_entry(PyObject* self) {
  CacheEntry* entry = as_entry(self);
  Py_CLEAR(entry->check_fn);
  Py_CLEAR(entry->code);
  Py_CLEAR(entry->compile_id);
  Py_CLEAR(entry->original);
  Py_CLEAR(entry->backend);
  return 0;
}

void dealloc_entry(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  clear_entry(self);
  Py_DECREF(as_entry(self)->trace_annotation);
  mg_code_map_free(as_entry(self)->map);
  PyObject_GC_Del(self);
  Py_DECREF(type);
}

PyGetSetDef kEntryGetSets[] = {
    {"check_fn", get_check_fn, nullptr, "Called with the variables of a frame: whether it may run `code`.", nullptr},
    {"code", get_code, nullptr, "The new code, or None once the entry is invalid.", nullptr},
    {"next", get_next, nullptr, "The next entry of the same code object, or None.", nullptr},
    {"compile_id", get_compile_id, nullptr, "What the guarded code said, or None.", nullptr},
    {"original", get_original, nullptr, "The code that `code` stands in for, or None once that is gone.", nullptr},
    {"trace_annotation", get_trace_annotation, nullptr, "The name of its region in profiles.", nullptr},
    {"backend", get_backend, nullptr, "Whose callback made it.", nullptr},
    {"extra_state", get_extra_state, nullptr, "The _ExtraState that it belongs to, or None.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyType_Slot kEntrySlots[] = {{Py_tp_traverse, (void*)traverse_entry},
                             {Py_tp_clear, (void*)clear_entry},
                             {Py_tp_dealloc, (void*)dealloc_entry},
                             {Py_tp_getset, kEntryGetSets},
                             {Py_tp_doc, (void*)"New code for a code object, and its check."},
                             {0, nullptr}};

// ---- the type _ExtraState

int traverse_state(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(as_state(self)->frame_state);
  for (CacheEntry* entry : as_state(self)->entries) Py_VISIT(entry);
  return 0;
}

int clear_state(PyObject* self) {
  drop_entries(as_state(self));
  Py_CLEAR(as_state(self)->frame_state);
  return 0;
}

void dealloc_state(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  clear_state(self);
  as_state(self)->entries.~vector();
  PyObject_GC_Del(self);
  Py_DECREF(type);
}

PyMethodDef kStateMethods[] = {
    {"invalidate", (PyCFunction)(void (*)(void))invalidate, METH_FASTCALL,
     "invalidate(cache_entry, check_fn=None)\n\nTakes the entry out of the cache; a frame that runs its code goes on."},
    {nullptr, nullptr, 0, nullptr}};

PyType_Slot kStateSlots[] = {{Py_tp_traverse, (void*)traverse_state},
                             {Py_tp_clear, (void*)clear_state},
                             {Py_tp_dealloc, (void*)dealloc_state},
                             {Py_tp_methods, kStateMethods},
                             {Py_tp_doc, (void*)"The cache of a code object."},
                             {0, nullptr}};

// The code object dies. Somebody may still hold the state, but nothing will ever look into it. CPython also calls this
// for code objects that have other data only.
void free_state(void* data) {
  auto* state = static_cast<ExtraState*>(data);
  if (!state) return;
  py::ErrorAside aside;
  clear_state(as_object(state));
  Py_DECREF(as_object(state));
}

PyCodeObject* as_code(PyObject* object) {
  if (PyCode_Check(object)) return reinterpret_cast<PyCodeObject*>(object);
  PyErr_Format(PyExc_TypeError, "expected a code object, such as fn.__code__, but got %s",
               py::type_name(object).c_str());
  return nullptr;
}

// ---- entries from what a callback returned

struct GuardedCode {
  py::Ref code, check_fn, compile_id, trace_annotation;
  const char* region = nullptr;
};

bool refuse(const char* what, PyObject* found) {
  PyErr_Format(PyExc_TypeError,
               "the callback must return None or a guarded code, which has a code object `code` and a callable "
               "`check_fn`; %s is of type %s",
               what, py::type_name(found).c_str());
  return false;
}

bool read_guarded_code(PyObject* given, GuardedCode* guarded) {
  auto read = [given](const char* name, py::Ref* value) {
    PyObject* found = nullptr;
    py::Ref text = py::Ref::steal(PyUnicode_FromString(name));
    bool good = text && mg_get_attribute(given, text.get(), &found);
    *value = py::Ref::steal(found);
    return good;
  };
  if (!read("code", &guarded->code) || !read("check_fn", &guarded->check_fn) ||
      !read("compile_id", &guarded->compile_id) || !read("trace_annotation", &guarded->trace_annotation))
    return false;
  if (!guarded->code || !guarded->check_fn) return refuse("what it returned", given);
  if (!PyCode_Check(guarded->code.get())) return refuse("its `code`", guarded->code.get());
  if (!PyCallable_Check(guarded->check_fn.get())) return refuse("its `check_fn`", guarded->check_fn.get());
  if (!guarded->compile_id) guarded->compile_id = py::Ref::borrow(Py_None);
  PyObject* annotation = guarded->trace_annotation.get();
  if (!annotation || annotation == Py_None) guarded->trace_annotation = py::Ref::steal(PyUnicode_FromString("Unknown"));
  if (!guarded->trace_annotation) return false;
  if (!PyUnicode_Check(guarded->trace_annotation.get())) return refuse("its `trace_annotation`", annotation);
  guarded->region = PyUnicode_AsUTF8(guarded->trace_annotation.get());
  return guarded->region != nullptr;
}

}  // namespace

ExtraState* find_code_state(PyCodeObject* code) {
  return static_cast<ExtraState*>(mg_code_data(code, runtime::process_state().code_state_slot));
}

ExtraState* need_code_state(PyCodeObject* code) {
  if (ExtraState* state = find_code_state(code)) return state;
  auto* state = PyObject_GC_New(ExtraState, runtime::process_state().extra_state_type);
  if (!state) return nullptr;
  state->skip = false;
  state->frame_state = nullptr;
  new (&state->entries) std::vector<CacheEntry*>();
  PyObject_GC_Track(state);
  if (mg_set_code_data(code, runtime::process_state().code_state_slot, state)) return state;
  Py_DECREF(as_object(state));
  return nullptr;
}

py::Ref add_entry(PyCodeObject* original, PyObject* guarded_code, PyObject* backend) {
  GuardedCode guarded;
  if (!read_guarded_code(guarded_code, &guarded)) return {};
  mg_code_map* map = mg_code_map_new(original, reinterpret_cast<PyCodeObject*>(guarded.code.get()));
  if (!map) return {};
  ExtraState* state = need_code_state(original);
  py::Ref original_reference = py::Ref::steal(PyWeakref_NewRef(as_object(original), nullptr));
  auto* entry =
      state && original_reference ? PyObject_GC_New(CacheEntry, runtime::process_state().cache_entry_type) : nullptr;
  if (!entry) {
    mg_code_map_free(map);
    return {};
  }
  entry->check_fn = guarded.check_fn.release();
  entry->code = guarded.code.release();
  entry->compile_id = guarded.compile_id.release();
  entry->original = original_reference.release();
  entry->trace_annotation = guarded.trace_annotation.release();
  entry->region = guarded.region;
  entry->backend = Py_XNewRef(backend);
  entry->map = map;
  entry->state = nullptr;
  PyObject_GC_Track(entry);
  py::Ref result = py::Ref::steal(as_object(entry));
  if (!tell(entry->check_fn, "cache_entry", result.get()) || !tell(entry->check_fn, "extra_state", as_object(state)))
    return {};
  entry->state = state;
  state->entries.insert(state->entries.begin(), as_entry(Py_NewRef(result.get())));
  return result;
}

// ---- look-up

PyObject* FrameLocals::get() {
  if (!locals_) locals_ = py::Ref::steal(mg_fresh_frame_locals(&frame_));
  return locals_.get();
}

namespace {

// 1: the check holds, 0: it does not, -1: error set. The one place where checks are run: a check that needs no Python
// is to be recognised here.
int check(PyObject* check_fn, FrameLocals& locals) {
  PyObject* variables = locals.get();
  if (!variables) return -1;
  py::Ref answer = py::Ref::steal(runtime::run_python([&] { return PyObject_CallOneArg(check_fn, variables); }));
  return answer ? PyObject_IsTrue(answer.get()) : -1;
}

// A check has raised: tells the error hook, and leaves an error set.
void report(PyObject* check_fn, PyObject* code, FrameLocals& locals, size_t index, bool is_last) {
  py::Ref hook = py::Ref::borrow(runtime::process_state().guard_error_hook);
  if (!hook) return;
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  PyObject* variables = locals.get();
  py::Ref position = py::Ref::steal(PyLong_FromSize_t(index));
  py::Ref answer;
  if (variables && position) {
    PyObject* args[] = {check_fn, code, variables, position.get(), is_last ? Py_True : Py_False};
    answer = py::Ref::steal(runtime::run_python([&] { return PyObject_Vectorcall(hook.get(), args, 5, nullptr); }));
  }
  if (answer) return PyErr_Restore(type, value, traceback);
  // The hook's own error is the news, and the check's is where it comes from.
  PyObject *late_type, *late, *late_traceback;
  PyErr_Fetch(&late_type, &late, &late_traceback);
  PyErr_NormalizeException(&type, &value, &traceback);
  PyErr_NormalizeException(&late_type, &late, &late_traceback);
  if (traceback) PyException_SetTraceback(value, traceback);
  if (late && value && late != value) PyException_SetContext(late, Py_NewRef(value));
  Py_XDECREF(type);
  Py_XDECREF(value);
  Py_XDECREF(traceback);
  PyErr_Restore(late_type, late, late_traceback);
}

// Bound methods are made anew each time that one is taken from its object: equality counts, not identity.
int same_backend(PyObject* left, PyObject* right) {
  if (left == right) return 1;
  return Py_TYPE(left) == Py_TYPE(right) ? PyObject_RichCompareBool(left, right, Py_EQ) : 0;
}

Lookup try_entry(CacheEntry* entry, PyObject* backend, FrameLocals& locals, size_t index, bool is_last) {
  int matches = backend && entry->backend ? same_backend(entry->backend, backend) : 1;
  if (matches < 0) return Lookup::Error;
  // A check may end its own entry, or another's, or let another thread do so.
  if (!matches || !entry->state) return Lookup::Miss;
  py::Ref check_fn = py::Ref::borrow(entry->check_fn), code = py::Ref::borrow(entry->code);
  int holds = check(check_fn.get(), locals);
  if (holds < 0) {
    report(check_fn.get(), code.get(), locals, index, is_last);
    return Lookup::Error;
  }
  return holds && entry->state ? Lookup::Hit : Lookup::Miss;
}

}  // namespace

Lookup look_up(ExtraState* state, PyObject* backend, const mg_fresh_frame& frame, py::Ref* entry) {
  if (state->entries.empty()) return Lookup::Miss;
  py::Ref keep_state = py::Ref::borrow(as_object(state));
  FrameLocals locals(frame);
  auto attempt = [&](size_t index, size_t count) {
    Lookup found = try_entry(as_entry(entry->get()), backend, locals, index, index + 1 == count);
    if (found != Lookup::Hit) *entry = py::Ref();
    return found;
  };
  *entry = py::Ref::borrow(as_object(state->entries[0]));
  py::Ref first = *entry;
  size_t count = state->entries.size();
  Lookup found = attempt(0, count);
  if (found != Lookup::Miss || count == 1) return found;
  // Checks run Python code, so the list may change meanwhile: go through a copy.
  std::vector<py::Ref> others;
  for (CacheEntry* other : state->entries) {
    if (as_object(other) != first.get()) others.push_back(py::Ref::borrow(as_object(other)));
  }
  for (size_t i = 0; i < others.size(); ++i) {
    *entry = std::move(others[i]);
    found = attempt(i + 1, others.size() + 1);
    if (found == Lookup::Hit) move_to_front(state, as_entry(entry->get()));
    if (found != Lookup::Miss) return found;
  }
  return Lookup::Miss;
}

// ---- the functions of magneto.eval_frame

PyObject* cache_entry_list(PyObject* object) {
  PyCodeObject* code = as_code(object);
  PyObject* list = code ? PyList_New(0) : nullptr;
  ExtraState* state = list ? find_code_state(code) : nullptr;
  if (!state) return list;
  for (CacheEntry* entry : state->entries) {
    if (PyList_Append(list, as_object(entry)) == 0) continue;
    Py_DECREF(list);
    return nullptr;
  }
  return list;
}

bool reset_code(PyObject* object) {
  PyCodeObject* code = as_code(object);
  if (!code) return false;
  ExtraState* state = find_code_state(code);
  if (!state) return true;
  state->skip = false;
  clear_state(as_object(state));
  return true;
}

bool skip_code(PyObject* object) {
  PyCodeObject* code = as_code(object);
  ExtraState* state = code ? need_code_state(code) : nullptr;
  if (!state) return false;
  state->skip = true;
  drop_entries(state);
  return true;
}

bool make_code_state_types(const char* module_name) {
  constexpr auto kFlags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION;
  static std::string entry_name = std::string(module_name) + ".CacheEntry";
  static std::string state_name = std::string(module_name) + ".ExtraState";
  static PyType_Spec entry_spec = {entry_name.c_str(), sizeof(CacheEntry), 0, kFlags, kEntrySlots};
  static PyType_Spec state_spec = {state_name.c_str(), sizeof(ExtraState), 0, kFlags, kStateSlots};
  auto& process = runtime::process_state();
  process.cache_entry_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&entry_spec));
  process.extra_state_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&state_spec));
  process.code_state_slot = mg_code_data_slot(free_state);
  return process.cache_entry_type && process.extra_state_type && process.code_state_slot >= 0;
}

}  // namespace magneto::frame
