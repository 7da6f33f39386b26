// The frame hook.
#include "frame/hook.h"

#include <utility>

#include "frame/eval_frame.h"
#include "frame/everywhere.h"
#include "runtime/daemon_threads.h"
#include "runtime/state.h"
#include "trace/watch.h"

namespace magneto::frame {

namespace {

PyObject* evaluate(PyThreadState* thread, mg_frame* frame, int throwing);

void uninstall() {
  auto& state = runtime::process_state();
  if (!state.hook_installed || mg_get_eval_function() != evaluate) return;
  mg_set_eval_function(state.previous_evaluator ? state.previous_evaluator : mg_default_evaluator());
  state.previous_evaluator = nullptr;
  state.hook_installed = false;
}

void install() {
  auto& state = runtime::process_state();
  mg_eval_function current = mg_get_eval_function();
  if (current == evaluate) return;
  mg_eval_function below = current == mg_default_evaluator() ? nullptr : current;
  // Ours is not on top although it was installed. If what is there now was below it, somebody took ours out;
  // otherwise somebody put an evaluator on top of ours, and that one calls ours.
  if (state.hook_installed && below && below != state.previous_evaluator) return;
  state.previous_evaluator = below;
  mg_set_eval_function(evaluate);
  state.hook_installed = true;
}

PyObject* hand_on(mg_eval_function previous, PyThreadState* thread, mg_frame* frame, int throwing) {
  auto& mine = runtime::thread_state();
  // An evaluator below ours may have been installed once more, on top of ours: then it hands the frame back.
  if (!previous || mine.frame_handed_on == frame)
    return runtime::run_python([&] { return mg_eval_default(thread, frame, throwing); });
  mg_frame* outer = std::exchange(mine.frame_handed_on, frame);
  PyObject* result = runtime::run_python([&] { return previous(thread, frame, throwing); });
  mine.frame_handed_on = outer;
  return result;
}

PyObject* evaluate(PyThreadState* thread, mg_frame* frame, int throwing) {
  trace::Watch* watch = trace::Watch::current();
  if (watch && watch->alive()) return trace::watch_frame(thread, frame, throwing);
  // A frame that is thrown into is a generator that unwinds: it goes on as it is.
  if (!throwing && is_hooked()) return evaluate_hooked(thread, frame);
  auto& state = runtime::process_state();
  if (state.everywhere != Everywhere::Off || runtime::thread_state().capture_scope)
    return evaluate_everywhere(thread, frame, throwing);
  mg_eval_function previous = state.previous_evaluator;
  // Under a hook CPython spends C stack on every call. Once all watches have given up, the hook is in the way; so it
  // is when somebody who stood on top of it has put it back.
  if (state.hook_users <= (watch ? watch->nesting() : 0)) uninstall();
  return hand_on(previous, thread, frame, throwing);
}

}  // namespace

void hook_acquire() {
  ++runtime::process_state().hook_users;
  install();
}

void hook_release() {
  if (--runtime::process_state().hook_users == 0) uninstall();
}

bool hook_installed() { return mg_get_eval_function() == evaluate; }

PyObject* evaluate_below(PyThreadState* thread, mg_frame* frame, int throwing) {
  return hand_on(runtime::process_state().previous_evaluator, thread, frame, throwing);
}

}  // namespace magneto::frame
