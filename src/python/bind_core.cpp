// The boundary to Python: thin wrappers, and the one place where C++ errors become Python exceptions.
#include "python/bind_core.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <algorithm>

#include "cpython/cpython.h"
#include "frame/compiled_function.h"
#include "frame/everywhere.h"
#include "frame/forms.h"
#include "frame/hook.h"
#include "frame/scoped_function.h"
#include "python/bind_frame.h"
#include "python/bind_guards.h"
#include "runtime/config.h"
#include "runtime/errors.h"
#include "runtime/state.h"
#include "trace/call_table.h"
#include "trace/known_types.h"
#include "trace/rules.h"
#include "trace/watch.h"

namespace nb = nanobind;

namespace magneto::python {

namespace {

runtime::Counters counters() {
  runtime::Counters all = runtime::counters();
  const auto& process = runtime::process_state();
  all["stats"]["calls"] = process.calls;
  all["stats"]["hits"] = process.hits;
  return all;
}

void reset_counters() {
  runtime::counters().clear();
  runtime::process_state().times.clear();
  runtime::process_state().calls = runtime::process_state().hits = 0;
}

std::vector<std::tuple<std::string, std::string, runtime::SettingValue>> settings() {
  std::vector<std::tuple<std::string, std::string, runtime::SettingValue>> all;
  for (const auto& setting : runtime::settings()) all.emplace_back(setting.name, setting.doc, setting.default_value);
  return all;
}

PyObject* is_compiling(PyObject*, PyObject*) { return PyBool_FromLong(trace::Watch::current() != nullptr); }

// A C function that no model describes: programs are cut where it is called.
PyObject* graph_break(PyObject*, PyObject* args, PyObject* keywords) {
  static const char* kNames[] = {"msg", nullptr};
  PyObject* message = nullptr;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "|U:graph_break", const_cast<char**>(kNames), &message))
    return nullptr;
  Py_RETURN_NONE;
}

// Plain C functions where the tracer must recognise them or speed matters.
PyMethodDef kFunctions[] = {
    {"is_compiling", is_compiling, METH_NOARGS, "is_compiling() -> bool\n\nWhether this thread is watching a call."},
    {"graph_break", (PyCFunction)(void (*)(void))graph_break, METH_VARARGS | METH_KEYWORDS,
     "graph_break(msg=\"\")\n\nCuts a compiled program in two where it is called, and does nothing else. `msg` is "
     "the reason that is told."},
    {nullptr, nullptr, 0, nullptr}};

void everywhere(const std::string& mode) {
  if (mode == "off")
    frame::set_everywhere(frame::Everywhere::Off);
  else if (mode == "watch")
    frame::set_everywhere(frame::Everywhere::Watch);
  else if (mode == "capture")
    frame::set_everywhere(frame::Everywhere::Capture);
  else
    throw UserError("everywhere: expected 'off', 'watch' or 'capture', but got '" + mode + "'");
}

template <class Kind>
Kind choose(const char* what, const std::string& name, const std::vector<const char*>& names) {
  auto found = std::find(names.begin(), names.end(), name);
  if (found != names.end()) return static_cast<Kind>(found - names.begin());
  std::string all;
  for (const char* each : names) all += std::string(all.empty() ? "'" : ", '") + each + "'";
  throw UserError(std::string("unknown ") + what + " '" + name + "'; expected one of " + all);
}

const std::vector<const char*> kStances = {"default", "force_eager", "eager_on_recompile", "fail_on_recompile"};
const std::vector<const char*> kRules = {"none", "allow", "disallow", "aside", "forbid", "constant", "label"};

std::string set_stance(const std::string& name) {
  auto stance = choose<runtime::Stance>("stance", name, kStances);
  return kStances[static_cast<size_t>(std::exchange(runtime::process_state().stance, stance))];
}

void set_rule(nb::handle function, const std::string& rule) {
  if (!trace::set_rule(function.ptr(), choose<trace::Rule>("rule", rule, kRules))) throw nb::python_error();
}

void set_compile_callback(nb::handle callback) {
  PyObject* given = callback.is_none() ? nullptr : callback.inc_ref().ptr();
  Py_XDECREF(std::exchange(runtime::process_state().compile_callback, given));
}

int traverse_scope(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  return nb::inst_ready(self) ? nb::inst_ptr<frame::CaptureScope>(self)->traverse(visit, arg) : 0;
}

int clear_scope(PyObject* self) {
  nb::inst_ptr<frame::CaptureScope>(self)->clear();
  return 0;
}

PyType_Slot kScopeSlots[] = {{Py_tp_traverse, (void*)traverse_scope}, {Py_tp_clear, (void*)clear_scope}, {0, nullptr}};

void bind_scopes(nb::module_& module) {
  using frame::CaptureScope;
  nb::class_<CaptureScope>(module, "CaptureScope", nb::type_slots(kScopeSlots),
                           "Every function that is called inside it is captured.")
      .def(
          "__init__",
          [](CaptureScope* self, bool whole, nb::handle backend, nb::handle guard_export, nb::handle guard_fail,
             std::vector<std::string> skipped, std::vector<std::string> kept, nb::handle dynamic) {
            auto wishes = frame::make_wishes(whole, backend.ptr(), guard_export.ptr(), guard_fail.ptr(), dynamic.ptr());
            new (self) CaptureScope(std::move(wishes), std::move(skipped), std::move(kept));
          },
          nb::arg("whole"), nb::arg("backend").none(), nb::arg("guard_export").none(), nb::arg("guard_fail").none(),
          nb::arg("skipped"), nb::arg("kept"), nb::arg("dynamic") = nb::none())
      .def(
          "enter", [](CaptureScope& self) { return reinterpret_cast<uintptr_t>(self.enter()); },
          "Of this thread, which must keep the scope alive until it leaves it; returns what to leave to.")
      .def_static(
          "leave", [](uintptr_t outer) { CaptureScope::leave(reinterpret_cast<CaptureScope*>(outer)); },
          nb::arg("outer"))
      .def("clear", &CaptureScope::clear, "Forgets everything that was compiled.");
}

std::string supported() {
  const char* why = mg_why_unsupported();
  return why ? why : "";
}

}  // namespace

void bind_core(nb::module_& module) {
  nb::exception<UserError>(module, "UserError", PyExc_ValueError);
  nb::exception<InternalError>(module, "InternalError", PyExc_RuntimeError);
  runtime::read_environment();

  std::string name = nb::cast<std::string>(module.attr("__name__"));
  PyTypeObject* type = frame::make_compiled_function_type(name.c_str());
  if (!type) throw nb::python_error();
  module.attr("CompiledFunction") = nb::steal((PyObject*)type);
  PyTypeObject* scoped = frame::make_scoped_function_type(name.c_str());
  if (!scoped || PyModule_AddFunctions(module.ptr(), kFunctions) < 0) throw nb::python_error();
  module.attr("ScopedFunction") = nb::steal((PyObject*)scoped);
  trace::build_type_tables();
  trace::add_own_function(nb::object(module.attr("is_compiling")).ptr());
  runtime::process_state().user_error = nb::object(module.attr("UserError")).release().ptr();
  runtime::process_state().graph_break = nb::object(module.attr("graph_break")).release().ptr();

  module.def("counters", &counters, "What happened, as group -> name -> count.");
  module.def(
      "count", [](const std::string& group, const std::string& name) { runtime::count(group.c_str(), name); },
      nb::arg("group"), nb::arg("name"));
  module.def("reset_counters", &reset_counters, "Sets the counters to zero and forgets the times.");
  module.def(
      "compile_times", [] { return runtime::process_state().times; },
      "By phase, the seconds that each compilation took.");
  module.def("set_stance", &set_stance, nb::arg("stance"), "Returns the stance before.");
  module.def("set_rule", &set_rule, nb::arg("function"), nb::arg("rule"),
             "What watched calls do when they meet the function: 'allow', 'disallow', 'aside', 'forbid', 'constant' or "
             "'none'.");
  module.def("set_compile_callback", &set_compile_callback, nb::arg("callback").none(),
             "Calls callback(starts, name) before and after each compilation; None: nobody.");
  module.def("settings", &settings, "All settings, as (name, what it does, default).");
  module.def("get_setting", &runtime::get_setting, nb::arg("name"));
  module.def("set_setting", &runtime::set_setting, nb::arg("name"), nb::arg("value"));
  module.def("supported", &supported, "Empty if calls can be captured on this Python; otherwise why not.");
  module.def("hook_installed", &frame::hook_installed, "Whether Python frames pass through Magneto right now.");
  module.def("everywhere", &everywhere, nb::arg("mode"),
             "'watch': all Python code of the process runs in Magneto's interpreter; 'capture': every function is "
             "compiled by its second call; 'off': neither.");
  // The interpreter must not be taken down with it.
  nb::module_::import_("atexit").attr("register")(module.attr("everywhere"), "off");
  bind_scopes(module);
  bind_frame(module);
  bind_guards(module);
}

}  // namespace magneto::python
