// The frame hook.
#include "frame/hook.h"

#include "runtime/state.h"
#include "trace/watch.h"

namespace magneto::frame {

namespace {

PyObject* evaluate(PyThreadState* thread, mg_frame* frame, int throwing);

void uninstall() {
  auto& state = runtime::process_state();
  if (!state.hook_installed || mg_get_eval_function() != evaluate) return;
  mg_set_eval_function(state.previous_evaluator);
  state.previous_evaluator = nullptr;
  state.hook_installed = false;
}

PyObject* evaluate(PyThreadState* thread, mg_frame* frame, int throwing) {
  trace::Watch* watch = trace::Watch::current();
  if (watch && watch->alive()) return trace::watch_frame(thread, frame, throwing);
  auto& state = runtime::process_state();
  mg_eval_function previous = state.previous_evaluator ? state.previous_evaluator : mg_eval_default;
  // Under a hook CPython spends C stack on every call. Once the only watch has given up, the hook is in the way.
  if (watch && state.hook_users == 1) uninstall();
  return previous(thread, frame, throwing);
}

}  // namespace

HookScope::HookScope() {
  auto& state = runtime::process_state();
  ++state.hook_users;
  // Somebody may have put an evaluator on top of ours and left it there: that one still calls ours.
  if (state.hook_installed) return;
  state.previous_evaluator = mg_get_eval_function();
  mg_set_eval_function(evaluate);
  state.hook_installed = true;
}

HookScope::~HookScope() {
  if (--runtime::process_state().hook_users == 0) uninstall();
}

bool hook_installed() { return mg_get_eval_function() == evaluate; }

}  // namespace magneto::frame
