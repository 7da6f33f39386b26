// The callback of a thread: turning it on and off, and what happens to a frame meanwhile.
#include "frame/eval_frame.h"

#include <string>
#include <utility>

#include "cpython/ref.h"
#include "cpython/text.h"
#include "frame/code_state.h"
#include "frame/frame_view.h"
#include "frame/hook.h"
#include "runtime/c_stack.h"
#include "runtime/daemon_threads.h"
#include "runtime/profiler.h"

namespace magneto::frame {

namespace {

PyObject* as_object(void* object) { return static_cast<PyObject*>(object); }

// ---- the thread's own state

int traverse(PyObject* self, visitproc visit, void* arg) {
  auto* hook = reinterpret_cast<ThreadHook*>(self);
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(hook->callback);
  Py_VISIT(hook->backend);
  return 0;
}

// Replaces what is on; a null callback turns it off.
void change(ThreadHook* hook, py::Ref callback, py::Ref backend) {
  if (callback && !hook->callback) ++hook->uses, hook_acquire();
  if (!callback && hook->callback) --hook->uses, hook_release();
  callback = py::Ref::steal(std::exchange(hook->callback, callback.release()));
  backend = py::Ref::steal(std::exchange(hook->backend, backend.release()));
}

// The thread ends; or it is another thread's and this is the child of a fork, or the interpreter's exit.
void dealloc(PyObject* self) {
  auto* hook = reinterpret_cast<ThreadHook*>(self);
  PyTypeObject* type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  if (runtime::thread_state().frame_hook == hook) runtime::thread_state().frame_hook = nullptr;
  change(hook, {}, {});
  for (; hook->uses > 0; --hook->uses) hook_release();  // in the child of a fork: a callback that never returns
  PyObject_GC_Del(self);
  Py_DECREF(type);
}

PyType_Slot kSlots[] = {{Py_tp_traverse, (void*)traverse}, {Py_tp_dealloc, (void*)dealloc}, {0, nullptr}};

// Null: error set.
ThreadHook* need_thread_hook() {
  auto& mine = runtime::thread_state();
  if (mine.frame_hook) return mine.frame_hook;
  PyObject* thread_dict = PyThreadState_GetDict();
  auto* hook = PyObject_GC_New(ThreadHook, runtime::process_state().thread_hook_type);
  if (!hook) return nullptr;
  hook->callback = hook->backend = nullptr;
  hook->uses = 0;
  PyObject_GC_Track(hook);
  py::Ref owned = py::Ref::steal(as_object(hook));
  if (!thread_dict || PyDict_SetItemString(thread_dict, "magneto.eval_frame", owned.get()) < 0) {
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_RuntimeError, "set_eval_frame: this thread has no Python state");
    return nullptr;
  }
  return mine.frame_hook = hook;
}

// Callbacks and guards run with the hook off. What they turn on meanwhile ends with them.
class HookOff {
 public:
  explicit HookOff(ThreadHook* hook)
      : hook_(hook),
        callback(py::Ref::steal(std::exchange(hook->callback, nullptr))),
        backend(py::Ref::steal(std::exchange(hook->backend, nullptr))) {}
  ~HookOff() {
    if (hook_->callback) --hook_->uses, hook_release();
    // Dropped last: finalisers may turn on something in turn.
    callback = py::Ref::steal(std::exchange(hook_->callback, callback.release()));
    backend = py::Ref::steal(std::exchange(hook_->backend, backend.release()));
  }
  HookOff(const HookOff&) = delete;
  HookOff& operator=(const HookOff&) = delete;

  bool run_only() const { return callback.get() == Py_False; }

 private:
  ThreadHook* hook_;

 public:
  py::Ref callback, backend;
};

// ---- a frame

// What a frame is to be evaluated with.
struct Decision {
  bool failed = false;  // an error is set
  py::Ref entry;        // null: as it is
};

// Empty unless the callback has something to say. Its `failed` and `entry` as above.
Decision ask(const HookOff& off, const mg_fresh_frame& frame) {
  const Decision kFailed = {.failed = true};
  ExtraState* state = need_code_state(frame.code);
  if (!state) return kFailed;
  if (!state->frame_state && !(state->frame_state = PyDict_New())) return kFailed;
  py::Ref view = make_frame_view(frame);
  if (!view) return kFailed;
  py::Ref frame_state = py::Ref::borrow(state->frame_state);
  py::Ref head = py::Ref::borrow(state->entries.empty() ? Py_None : as_object(state->entries[0]));
  PyObject* args[] = {view.get(), head.get(), frame_state.get()};
  py::Ref answer =
      py::Ref::steal(runtime::run_python([&] { return PyObject_Vectorcall(off.callback.get(), args, 3, nullptr); }));
  end_frame_view(view.get());
  if (!answer) return kFailed;
  if (state->skip) return {};  // it says so itself
  if (answer.get() == Py_None) return {.failed = !skip_code(as_object(frame.code))};
  Decision decision;
  decision.entry = add_entry(frame.code, answer.get(), off.backend.get());
  decision.failed = !decision.entry;
  return decision;
}

Decision decide(ThreadHook* hook, const mg_fresh_frame& frame) {
  ExtraState* state = find_code_state(frame.code);
  if (state && state->skip) return {};
  HookOff off(hook);
  Decision decision;
  if (state) {
    runtime::ProfilerEvent event("Magneto Cache Lookup");
    Lookup found = look_up(state, off.backend.get(), frame, &decision.entry);
    decision.failed = found == Lookup::Error;
    if (state->skip && !decision.failed) return {};  // a check has said so
    if (found != Lookup::Miss) return decision;
  }
  return off.run_only() ? Decision() : ask(off, frame);
}

PyObject* run(PyThreadState* thread, mg_frame* frame, const CacheEntry* entry) {
  runtime::ProfilerEvent event("Magneto-Compiled Region", entry->region);
  return mg_eval_with_code(thread, frame, entry->map, evaluate_below);
}

// Follows `_magneto_backend` from a callback to what its cache entries belong to. Null: error set.
py::Ref backend_of(PyObject* callback) {
  static PyObject* const kName = PyUnicode_InternFromString("_magneto_backend");
  py::Ref backend = py::Ref::borrow(callback);
  for (int depth = 0; depth < 100; ++depth) {
    PyObject* inner = nullptr;
    if (!mg_get_attribute(backend.get(), kName, &inner)) return {};
    if (!inner) return backend;
    backend = py::Ref::steal(inner);
  }
  PyErr_SetString(PyExc_ValueError, "set_eval_frame: the callback's _magneto_backend leads in circles");
  return {};
}

}  // namespace

PyObject* evaluate_hooked(PyThreadState* thread, mg_frame* frame) {
  mg_fresh_frame fresh;
  if (runtime::is_c_stack_short()) {  // which CPython 3.11 does not look after
    PyErr_SetString(PyExc_RecursionError,
                    "maximum recursion depth exceeded: under a frame hook each call takes C stack");
    mg_frame_finish(thread, frame);
    return nullptr;
  }
  if (!mg_fresh_frame_read(frame, &fresh)) return evaluate_below(thread, frame, 0);
  Decision decision = decide(runtime::thread_state().frame_hook, fresh);
  if (decision.failed) {
    mg_frame_finish(thread, frame);
    return nullptr;
  }
  if (!decision.entry) return evaluate_below(thread, frame, 0);
  return run(thread, frame, reinterpret_cast<CacheEntry*>(decision.entry.get()));
}

PyObject* set_eval_frame(PyObject* callback) {
  bool off = callback == Py_None, run_only = callback == Py_False;
  if (!off && !run_only && !PyCallable_Check(callback)) {
    PyErr_Format(PyExc_TypeError, "set_eval_frame expects None (off), False (run only) or a callable, but got %s",
                 py::type_name(callback).c_str());
    return nullptr;
  }
  py::Ref backend = off || run_only ? py::Ref() : backend_of(callback);
  if (PyErr_Occurred()) return nullptr;
  ThreadHook* hook = need_thread_hook();
  if (!hook) return nullptr;
  py::Ref previous = py::Ref::borrow(hook->callback ? hook->callback : Py_None);
  change(hook, off ? py::Ref() : py::Ref::borrow(callback), std::move(backend));
  return previous.release();
}

PyObject* set_guard_error_hook(PyObject* function) {
  if (function != Py_None && !PyCallable_Check(function)) {
    PyErr_Format(PyExc_TypeError, "set_guard_error_hook expects a callable or None, but got %s",
                 py::type_name(function).c_str());
    return nullptr;
  }
  auto& place = runtime::process_state().guard_error_hook;
  py::Ref old = py::Ref::steal(std::exchange(place, function == Py_None ? nullptr : Py_NewRef(function)));
  Py_RETURN_NONE;
}

bool make_thread_hook_type(const char* module_name) {
  static std::string name = std::string(module_name) + ".ThreadHook";
  static PyType_Spec spec = {name.c_str(), sizeof(ThreadHook), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION, kSlots};
  runtime::process_state().thread_hook_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
  return runtime::process_state().thread_hook_type != nullptr;
}

}  // namespace magneto::frame
