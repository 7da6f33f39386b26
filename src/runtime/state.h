// The only mutable global state; each field says who owns it.
#pragma once
#include <Python.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "cpython/cpython.h"
#include "runtime/class_cache.h"

namespace magneto::guard {
struct Contents;
}
namespace magneto::trace {
class Watch;
enum class Kind : uint8_t;
}  // namespace magneto::trace

namespace magneto::frame {
struct ThreadHook;
}

namespace magneto::runtime {

// What happens to Python functions that nobody has compiled; see frame/everywhere.h.
enum class Everywhere : uint8_t { Off, Watch, Capture };

// Owned by its thread.
struct ThreadState {
  // The watch that is going on, if any; lives on the C stack of the call that it watches.
  trace::Watch* watch = nullptr;
  // While non-zero, frames are not watched: an operator's own kernel, a signal handler, a guard or a disabled
  // function is running. What runs there is not part of the captured function.
  int watch_paused = 0;
  // What magneto.eval_frame does on this thread; belongs to the thread's Python state and dies with it.
  frame::ThreadHook* frame_hook = nullptr;
  // The frame that was handed to an evaluator of somebody else: if that one hands it back, we do not go in circles.
  mg_frame* frame_handed_on = nullptr;
  // How many frames that stand on each other were met while every function is watched or compiled.
  int everywhere_nested = 0;
};
ThreadState& thread_state();

// Owned by the GIL.
struct ProcessState {
  // Written once, at import: the type of magneto.compile's results, and the way to the function inside one.
  PyTypeObject* compiled_type = nullptr;
  PyObject* (*compiled_inner)(PyObject*) = nullptr;

  int64_t calls = 0, hits = 0;  // of compiled functions

  // The special methods of classes, and what kind of class each is for the tracer.
  ClassCache<std::shared_ptr<guard::Contents>> specials;
  ClassCache<trace::Kind> kinds;

  // The frame hook: how many watches and threads use it, and somebody else's evaluator that was there before.
  int hook_users = 0;
  bool hook_installed = false;
  mg_eval_function previous_evaluator = nullptr;
  Everywhere everywhere = Everywhere::Off;

  // How many watches hold off the garbage collector, and whether it was on before the first.
  int collector_holds = 0;
  bool collector_was_on = false;

  // Written once, at import: the types of magneto.eval_frame and the place of its state on code objects.
  PyTypeObject* cache_entry_type = nullptr;
  PyTypeObject* extra_state_type = nullptr;
  PyTypeObject* frame_view_type = nullptr;
  PyTypeObject* thread_hook_type = nullptr;
  Py_ssize_t code_state_slot = -1;
  PyObject* guard_error_hook = nullptr;  // owned; null: none

  // Torch's profiler, filled in at import by torch's side; see profiler.h.
  void* (*begin_event)(const char* name, const char* detail) = nullptr;
  void (*end_event)(void* event) = nullptr;
};
inline ProcessState& process_state() {
  static ProcessState& state = *new ProcessState;  // never destroyed: it holds Python objects
  return state;
}

struct PauseWatch {
  PauseWatch() { ++thread_state().watch_paused; }
  ~PauseWatch() { --thread_state().watch_paused; }
  PauseWatch(const PauseWatch&) = delete;
  PauseWatch& operator=(const PauseWatch&) = delete;
};

// Keeps the garbage collector from starting by itself: the finalisers of unrelated garbage are no part of a watched
// call. (From 3.12 on it starts only where signals are served, which is outside the watch.)
struct NoCollection {
  NoCollection() {
    ProcessState& state = process_state();
    if (state.collector_holds++ == 0) state.collector_was_on = PyGC_Disable();
  }
  ~NoCollection() {
    ProcessState& state = process_state();
    if (--state.collector_holds == 0 && state.collector_was_on) PyGC_Enable();
  }
  NoCollection(const NoCollection&) = delete;
  NoCollection& operator=(const NoCollection&) = delete;
};

// Owned by the GIL: magneto.counters, as group -> name -> count.
using Counters = std::map<std::string, std::map<std::string, int64_t>>;
Counters& counters();
inline void count(const char* group, const std::string& name) { ++counters()[group][name]; }

}  // namespace magneto::runtime
