// Capture, phase by phase.
#include "frame/capture.h"

#include <algorithm>
#include <chrono>

#include "cpython/cpython.h"
#include "cpython/text.h"
#include "frame/hook.h"
#include "runtime/config.h"
#include "runtime/errors.h"
#include "runtime/log.h"
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

std::string broken_promise(const guard::Arguments& arguments, const std::vector<guard::Opening>& pinned,
                           const std::string& where) {
  for (const guard::Opening& opening : pinned)
    for (int size : opening.promised)
      if (std::ranges::find(opening.sizes, size) != opening.sizes.end())
        return "dimension " + std::to_string(size) + " of " + arguments.name(opening.node) +
               " is marked dynamic (magneto.mark_dynamic), but has to be what it is" +
               (where.empty() ? "" : ": " + where);
  return "";
}

}  // namespace

guard::RootNames name_roots(PyObject* function, const guard::Arguments& arguments) {
  guard::RootNames roots = arguments.objects();
  if (PyMethod_Check(function)) roots.emplace_back(PyMethod_GET_SELF(function), "self");
  roots.emplace_back(function,
                     PyFunction_Check(function) ? py::text(((PyFunctionObject*)function)->func_name) : "self");
  return roots;
}

std::string why_not_now() {
  if (mg_is_tracing(PyThreadState_Get())) return "a debugger or profiler follows the thread";
  return runtime::tensor_plug().why_not_record();
}

PyObject* FunctionCall::run(trace::Watch* watch) {
  const auto& [values, positional, keyword_names] = arguments;
  return watch ? watch->call(function, values, positional, keyword_names)
               : PyObject_Vectorcall(function, values, positional, keyword_names);
}

Capture capture(RealCall& call, bool whole, const Variant* base, std::shared_ptr<guard::Arguments> arguments,
                const trace::Leeway& leeway, const std::vector<trace::Detour>& detours) {
  Capture capture;
  if (!arguments->refusal().empty()) {
    capture.reason = arguments->refusal();
    capture.result = py::Ref::steal(call.run(nullptr));
    return capture;
  }
  capture.was_open = !leeway.empty() || !arguments->open().empty();
  double start = now_ms();
  HookScope hook;
  guard::Held variant(new Variant);
  trace::Watch watch(*arguments, variant.get(), &variant->program, leeway);
  watch.guards.expect_many();
  watch.may_cut = !whole;
  watch.detours = detours;
  watch.base = base ? &base->program : nullptr;
  watch.roots = capture.roots = name_roots(call.function, *arguments);
  watch.handover.expect(call.function);
  watch.open_numbers(call.function, call.arguments);
  capture.result = py::Ref::steal(call.run(&watch));
  double called = now_ms();
  try {
    if (!capture.result)
      watch.give_up("the call raised " + current_exception_name());
    else
      watch.finish({capture.result.get(), watch.handover.returned});
  } catch (const InternalError& bug) {
    watch.give_up(std::string("internal error: ") + bug.what());
    runtime::warn_once(std::string("magneto: ") + bug.what() + "; the function runs eagerly. Please report this.");
  }
  capture.met_forbidden = watch.met_forbidden;
  if (capture.result) capture.stumble = std::move(watch.stumble);
  capture.reason = watch.reason();
  capture.where = watch.where();
  if (!watch.has_program()) return capture;
  capture.breaks = std::move(watch.breaks);
  capture.pins_answers = watch.pins_answers && !watch.opens_answers;
  capture.depth = static_cast<int>(watch.depth);
  capture.pays = watch.pays();
  capture.added = watch.outcome == trace::Watch::Outcome::Added;
  if (watch.outcome != trace::Watch::Outcome::Own) return capture;
  capture.pinned = guard::difference(arguments->open(), watch.left_open);
  capture.broken_promise = broken_promise(*arguments, capture.pinned, watch.pinned_at);
  if (!capture.broken_promise.empty()) return capture;
  if (!capture.pinned.empty()) arguments->close_all_but(std::move(watch.left_open));
  arguments->freeze();
  capture.variant = std::move(variant);
  capture.reads = std::move(watch.first_reads);
  capture.variant->arguments = std::move(arguments);
  capture.variant->detours = detours.size();
  capture.variant->is_open = capture.was_open;
  capture.variant->watch_ms = called - start;
  capture.variant->build_ms = now_ms() - called;
  return capture;
}

}  // namespace magneto::frame
