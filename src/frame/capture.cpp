// Capture, phase by phase.
#include "frame/capture.h"

#include <chrono>

#include "cpython/cpython.h"
#include "frame/hook.h"
#include "runtime/config.h"
#include "runtime/errors.h"
#include "runtime/log.h"
#include "trace/result.h"
#include "trace/watch.h"

namespace magneto::frame {

namespace {

double now_ms() {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::string current_exception_name() {
  PyObject* type = PyErr_Occurred();
  return type ? ((PyTypeObject*)type)->tp_name : "an exception";
}

// Everything after the call itself: from what was watched to a variant. Gives up through the watch.
void build(trace::Watch& watch, PyObject* result, std::unique_ptr<runtime::GlobalState> global_state,
           Variant* variant) {
  if (!watch.ended_cleanly()) return;
  if (!global_state->holds()) return watch.give_up("the call leaves torch's state changed: " + global_state->explain());
  if (!watch.recording->op_count() && !runtime::config().without_tensors)
    return watch.give_up("the call does no tensor work");
  std::vector<PyObject*> outputs;
  trace::describe_result(result, watch, variant->arguments, &variant->program, &outputs);
  if (!watch.alive()) return;
  std::unique_ptr<runtime::Segment> segment = watch.recording->finish(outputs);
  if (!segment) return watch.give_up("the recording failed");
  if (!segment->rerunnable() && watch.work_in_handler)
    return watch.give_up("the call changes tensors where it also handles exceptions");
  variant->program.set_segment(std::move(segment));
  variant->guards = std::move(watch.guards);
  variant->guards.freeze(std::move(global_state));
  variant->arguments.freeze();
  if (variant->guards.first_failure())
    watch.give_up("what the call read was changed while it ran: " + variant->guards.explain());
}

}  // namespace

int Variant::traverse(visitproc visit, void* arg) const {
  if (int stop = arguments.traverse(visit, arg)) return stop;
  if (int stop = guards.traverse(visit, arg)) return stop;
  return program.traverse(visit, arg);
}

std::string why_not_now() {
  if (mg_is_tracing(PyThreadState_Get())) return "a debugger or profiler follows the thread";
  return runtime::tensor_plug().why_not_record();
}

Capture capture(PyObject* function, const guard::CallArguments& call) {
  Capture capture;
  auto variant = std::make_shared<Variant>(call);
  auto run = [&] {
    return py::Ref::steal(PyObject_Vectorcall(function, call.values, call.positional, call.keyword_names));
  };
  if (!variant->arguments.refusal().empty()) {
    capture.reason = variant->arguments.refusal();
    capture.result = run();
    return capture;
  }
  double start = now_ms();
  std::unique_ptr<runtime::GlobalState> global_state = runtime::tensor_plug().global_state();
  HookScope hook;
  trace::Watch watch(variant->arguments);
  capture.result = py::Ref::steal(watch.call(function, call.values, call.positional, call.keyword_names));
  double called = now_ms();
  try {
    if (!capture.result)
      watch.give_up("the call raised " + current_exception_name());
    else if (watch.alive())
      build(watch, capture.result.get(), std::move(global_state), variant.get());
  } catch (const InternalError& bug) {
    watch.give_up(std::string("internal error: ") + bug.what());
    runtime::warn_once(std::string("magneto: ") + bug.what() + "; the function runs eagerly. Please report this.");
  }
  capture.reason = watch.reason();
  capture.where = watch.where();
  if (!watch.alive()) return capture;
  variant->watch_ms = called - start;
  variant->build_ms = now_ms() - called;
  capture.variant = std::move(variant);
  return capture;
}

}  // namespace magneto::frame
