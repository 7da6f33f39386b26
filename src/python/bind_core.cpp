// The boundary to Python: thin wrappers, and the one place where C++ errors become Python exceptions.
#include "python/bind_core.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include "cpython/cpython.h"
#include "frame/compiled_function.h"
#include "frame/everywhere.h"
#include "frame/hook.h"
#include "python/bind_frame.h"
#include "python/bind_guards.h"
#include "runtime/config.h"
#include "runtime/errors.h"
#include "runtime/state.h"
#include "trace/call_table.h"
#include "trace/known_types.h"
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
  runtime::process_state().calls = runtime::process_state().hits = 0;
}

std::vector<std::tuple<std::string, std::string, runtime::SettingValue>> settings() {
  std::vector<std::tuple<std::string, std::string, runtime::SettingValue>> all;
  for (const auto& setting : runtime::settings()) all.emplace_back(setting.name, setting.doc, setting.default_value);
  return all;
}

PyObject* is_compiling(PyObject*, PyObject*) { return PyBool_FromLong(trace::Watch::current() != nullptr); }

// Plain C functions where the tracer must recognise them or speed matters.
PyObject* call_disabled(PyObject*, PyObject* const* args, Py_ssize_t count, PyObject* keyword_names) {
  if (count < 1) {
    PyErr_SetString(PyExc_TypeError, "call_disabled needs a function");
    return nullptr;
  }
  if (trace::Watch* watch = trace::Watch::current()) watch->give_up("the call runs a function that is disabled");
  runtime::PauseWatch pause;
  return PyObject_Vectorcall(args[0], args + 1, static_cast<size_t>(count - 1), keyword_names);
}

PyMethodDef kFunctions[] = {
    {"is_compiling", is_compiling, METH_NOARGS, "is_compiling() -> bool\n\nWhether this thread is watching a call."},
    {"call_disabled", (PyCFunction)(void (*)(void))call_disabled, METH_FASTCALL | METH_KEYWORDS,
     "call_disabled(fn, *args, **kwargs)\n\nRuns fn unwatched; a watch that is going on gives up."},
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
  if (PyModule_AddFunctions(module.ptr(), kFunctions) < 0) throw nb::python_error();
  trace::build_type_tables();
  for (const char* own : {"is_compiling", "call_disabled"}) trace::add_own_function(nb::object(module.attr(own)).ptr());

  module.def("counters", &counters, "What happened, as group -> name -> count.");
  module.def("reset_counters", &reset_counters);
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
  bind_frame(module);
  bind_guards(module);
}

}  // namespace magneto::python
