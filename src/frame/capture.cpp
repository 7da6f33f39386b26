// Capture, phase by phase.
#include "frame/capture.h"

#include <chrono>

#include "cpython/cpython.h"
#include "cpython/text.h"
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
void build(trace::Watch& watch, const guard::Arguments& arguments,
           std::unique_ptr<runtime::GlobalState> global_state, Capture* capture) {
  auto variant = std::make_shared<Variant>();
  if (!watch.ended_cleanly()) return;
  if (!global_state->holds()) return watch.give_up("the call leaves torch's state changed: " + global_state->explain());
  if (!watch.recording->op_count() && !runtime::config().without_tensors)
    return watch.give_up("the call does no tensor work");
  std::vector<PyObject*> outputs;
  trace::describe_result(capture->result.get(), watch, arguments, &variant->program, &outputs);
  if (!watch.alive()) return;
  std::unique_ptr<runtime::Segment> segment = watch.recording->finish(outputs);
  if (!segment) return watch.give_up("the recording failed");
  if (!segment->rerunnable() && watch.work_in_handler)
    return watch.give_up("the call changes tensors where it also handles exceptions");
  variant->program.set_segment(std::move(segment));
  std::vector<PyObject*> roots;
  for (const auto& [object, name] : capture->roots) {
    roots.push_back(object);
    roots.push_back((PyObject*)Py_TYPE(object));
  }
  capture->reads = watch.guards.finish(roots);
  variant->tensors = watch.guards.take_tensors();
  variant->global_state = std::move(global_state);
  capture->variant = std::move(variant);
}

}  // namespace

guard::RootNames name_roots(PyObject* function, const guard::Arguments& arguments) {
  guard::RootNames roots = arguments.objects();
  if (PyMethod_Check(function)) roots.emplace_back(PyMethod_GET_SELF(function), "self");
  roots.emplace_back(function, PyFunction_Check(function) ? py::text(((PyFunctionObject*)function)->func_name) : "self");
  return roots;
}

std::string why_not_now() {
  if (mg_is_tracing(PyThreadState_Get())) return "a debugger or profiler follows the thread";
  return runtime::tensor_plug().why_not_record();
}

Capture capture(PyObject* function, const guard::CallArguments& call) {
  Capture capture;
  auto arguments = std::make_shared<guard::Arguments>(call);
  auto run = [&] {
    return py::Ref::steal(PyObject_Vectorcall(function, call.values, call.positional, call.keyword_names));
  };
  if (!arguments->refusal().empty()) {
    capture.reason = arguments->refusal();
    capture.result = run();
    return capture;
  }
  double start = now_ms();
  std::unique_ptr<runtime::GlobalState> global_state = runtime::tensor_plug().global_state();
  HookScope hook;
  capture.roots = name_roots(function, *arguments);
  trace::Watch watch(*arguments);
  capture.result = py::Ref::steal(watch.call(function, call.values, call.positional, call.keyword_names));
  double called = now_ms();
  try {
    if (!capture.result)
      watch.give_up("the call raised " + current_exception_name());
    else if (watch.alive())
      build(watch, *arguments, std::move(global_state), &capture);
  } catch (const InternalError& bug) {
    watch.give_up(std::string("internal error: ") + bug.what());
    runtime::warn_once(std::string("magneto: ") + bug.what() + "; the function runs eagerly. Please report this.");
  }
  capture.reason = watch.reason();
  capture.where = watch.where();
  if (!watch.alive()) return capture;
  arguments->freeze();
  capture.variant->arguments = std::move(arguments);
  capture.variant->watch_ms = called - start;
  capture.variant->build_ms = now_ms() - called;
  return capture;
}

}  // namespace magneto::frame
