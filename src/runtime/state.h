// The only mutable global state; each field says who owns it.
#pragma once
#include <Python.h>
#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cpython/cpython.h"
#include "cpython/ref.h"
#include "runtime/class_cache.h"

namespace magneto::guard {
struct Contents;
}
namespace magneto::graph {
struct Graph;
}
namespace magneto::trace {
class Watch;
enum class Kind : uint8_t;
}  // namespace magneto::trace

namespace magneto::autograd {
class Cache;
enum class Compiler : uint8_t;
}  // namespace magneto::autograd

namespace magneto::lazy {
class Device;
}

namespace magneto::frame {
struct ThreadHook;
class CaptureScope;
}  // namespace magneto::frame

namespace magneto::runtime {

// What happens to Python functions that nobody has compiled; see frame/everywhere.h.
enum class Everywhere : uint8_t { Off, Watch, Capture };

// What compiled functions do, as magneto.set_stance says.
enum class Stance : uint8_t { Default, ForceEager, EagerOnRecompile, FailOnRecompile };

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
  // While non-zero, all code runs as Python would run it: a disabled function, or what a backend does.
  int left_alone = 0;
  // How many watches that are paused further out are out of sight: see Apart.
  int apart = 0;
  // While non-zero, nothing is captured: magneto.run.
  int run_only = 0;
  // Where all frames are captured: magneto.optimize as a context manager, which keeps it alive. Null: nowhere.
  frame::CaptureScope* capture_scope = nullptr;
  // Who compiles the backwards of this thread, with the factory of Python compilers, which magneto.compiled_autograd
  // keeps alive; and how many of them stand on each other.
  autograd::Compiler autograd_compiler{};
  PyObject* autograd_factory = nullptr;
  std::optional<bool> autograd_dynamic;  // sizes; none: those that have changed
  int backwards = 0;
};
inline ThreadState& thread_state() {
  static constinit thread_local ThreadState state;
  return state;
}

// Owned by the GIL.
struct ProcessState {
  // Written once, at import: the type of magneto.compile's results, and the way to the function inside one.
  PyTypeObject* compiled_type = nullptr;
  PyObject* (*compiled_inner)(PyObject*) = nullptr;

  PyTypeObject* scoped_type = nullptr;  // of what magneto.disable and magneto.run return
  PyObject* graph_break = nullptr;      // the function magneto.graph_break
  PyObject* user_error = nullptr;       // magneto.UserError
  // Filled in by the bindings of torch's side: the magneto.Graph of a graph and its state. Null: error set.
  PyObject* (*wrap_graph)(graph::Graph graph, std::vector<py::Ref> states) = nullptr;

  int64_t calls = 0, hits = 0;  // of compiled functions
  Stance stance = Stance::Default;
  PyObject* compile_callback = nullptr;              // owned; (starts: bool, name: str) -> None, or null
  std::map<std::string, std::vector<double>> times;  // by phase: the seconds that each compilation took

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

  // Backwards that were captured, and who is told why one was not found; owned, null: nobody.
  std::shared_ptr<autograd::Cache> backward_cache;
  PyObject* autograd_logger = nullptr;
  // Filled in at import by torch's side: told of each segment that is made, or run, in which autograd takes part.
  void (*on_derivation)() = nullptr;
  // Told when a generator of torch's was seeded, and how, once somebody wants to know. False: error set.
  bool (*on_seed)(PyObject* generator, PyObject* seed) = nullptr;
  // The lazy device, once magneto.lazy.init() has made it; never destroyed. It has locks of its own.
  lazy::Device* lazy_device = nullptr;
  // How many threads wish that their backwards are compiled, and are in one. Owned by nobody: threads count here
  // without the GIL.
  std::atomic<int> backward_compilers{0}, threads_in_backwards{0};

  // How much work is under way beside the program, and which process has begun it: threads count here without the GIL.
  std::atomic<int> jobs{0};
  pid_t jobs_process = 0;
  // Filled in at import by torch's side: the graph with kernels for this GPU in place of operators. Any thread. Null:
  // there is nothing to win, or `reason` says what is in the way.
  std::unique_ptr<graph::Graph> (*make_kernels)(const graph::Graph& graph, int gpu, std::string& reason) = nullptr;

  // Torch's profiler, filled in at import by torch's side; see profiler.h.
  void* (*begin_event)(const char* name, const char* detail) = nullptr;
  void (*end_event)(void* event) = nullptr;
};
inline ProcessState& process_state() {
  static ProcessState& state = *new ProcessState;  // never destroyed: it holds Python objects
  return state;
}

// Adds one to a count of this thread, for a while.
template <int ThreadState::*... kCounts>
struct Counted {
  Counted() { (++(thread_state().*kCounts), ...); }
  ~Counted() { (--(thread_state().*kCounts), ...); }
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;
};
using PauseWatch = Counted<&ThreadState::watch_paused>;
using LeaveAlone = Counted<&ThreadState::watch_paused, &ThreadState::left_alone>;
using RunOnly = Counted<&ThreadState::run_only>;

// Frames are watched again, although whoever is watched further out is paused.
class Unpaused {
 public:
  Unpaused() : paused_(std::exchange(thread_state().watch_paused, 0)) {}
  ~Unpaused() { thread_state().watch_paused = paused_; }
  Unpaused(const Unpaused&) = delete;
  Unpaused& operator=(const Unpaused&) = delete;

 private:
  int paused_;
};

// Whoever is watched further out has nothing to do with what runs here.
class Apart : Unpaused, Counted<&ThreadState::apart> {
 public:
  Apart() : watch_(std::exchange(thread_state().watch, nullptr)) {}
  ~Apart() { thread_state().watch = watch_; }

 private:
  trace::Watch* watch_;
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
inline void note_time(const char* phase, double seconds) { process_state().times[phase].push_back(seconds); }

}  // namespace magneto::runtime
