// The boundary to Python of the frame hook.
#include "python/bind_frame.h"

#include <nanobind/stl/bind_vector.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <string>
#include <vector>

#include "cpython/cpython.h"
#include "frame/code_state.h"
#include "frame/eval_frame.h"
#include "frame/frame_view.h"
#include "runtime/state.h"

namespace nb = nanobind;

NB_MAKE_OPAQUE(std::vector<uint8_t>)

namespace magneto::python {

namespace {

PyObject* none_if(bool good) { return good ? Py_NewRef(Py_None) : nullptr; }

// Plain C functions: set_eval_frame stands around every call of a compiled function.
PyObject* set_eval_frame(PyObject*, PyObject* callback) { return frame::set_eval_frame(callback); }
PyObject* set_guard_error_hook(PyObject*, PyObject* hook) { return frame::set_guard_error_hook(hook); }
PyObject* debug_get_cache_entry_list(PyObject*, PyObject* code) { return frame::cache_entry_list(code); }
PyObject* reset_code(PyObject*, PyObject* code) { return none_if(frame::reset_code(code)); }
PyObject* skip_code(PyObject*, PyObject* code) { return none_if(frame::skip_code(code)); }

PyObject* unsupported(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (count == 2) return Py_NewRef(args[1]);
  return PyErr_Format(PyExc_TypeError, "unsupported expects two objects, but got %zd", count);
}

PyMethodDef kFunctions[] = {
    {"set_eval_frame", set_eval_frame, METH_O,
     "set_eval_frame(callback)\n\nAsks callback(frame, cache_entry, frame_state) about the frames of this thread; None "
     "turns that off, False only runs what is cached. Returns what was set before."},
    {"set_guard_error_hook", set_guard_error_hook, METH_O,
     "set_guard_error_hook(hook)\n\nCalls hook(check_fn, code, f_locals, index, is_last) when a check raises."},
    {"debug_get_cache_entry_list", debug_get_cache_entry_list, METH_O,
     "debug_get_cache_entry_list(code)\n\nThe cache entries of a code object, the most recently used first."},
    {"reset_code", reset_code, METH_O,
     "reset_code(code)\n\nForgets everything about a code object: cache entries, frame_state, and that it is skipped."},
    {"skip_code", skip_code, METH_O,
     "skip_code(code)\n\nLets a code object run as it is from now on, and drops its cache entries."},
    {"unsupported", (PyCFunction)(void (*)(void))unsupported, METH_FASTCALL,
     "unsupported(obj1, obj2)\n\nReturns obj2. A C function that no compiler knows, to test graph breaks with."},
    {nullptr, nullptr, 0, nullptr}};

std::string why_no_frame_hook() {
  const char* why = mg_why_no_frame_hook();
  return why ? why : "";
}

}  // namespace

void bind_frame(nb::module_& module) {
  module.def("why_no_frame_hook", &why_no_frame_hook, "Empty if frames can be hooked on this Python; else why not.");
  nb::bind_vector<std::vector<uint8_t>>(module, "VectorUInt8");
  std::vector<uint8_t> caches(256);
  for (int opcode = 0; opcode < 256; ++opcode) caches[opcode] = mg_opcode_caches(static_cast<uint8_t>(opcode));
  module.attr("py_opcode_caches") = std::move(caches);

  std::string name = nb::cast<std::string>(module.attr("__name__"));
  if (!frame::make_code_state_types(name.c_str()) || !frame::make_frame_view_type(name.c_str()) ||
      !frame::make_thread_hook_type(name.c_str()) || PyModule_AddFunctions(module.ptr(), kFunctions) < 0)
    throw nb::python_error();
  const auto& state = runtime::process_state();
  module.attr("CacheEntry") = nb::borrow(reinterpret_cast<PyObject*>(state.cache_entry_type));
  module.attr("ExtraState") = nb::borrow(reinterpret_cast<PyObject*>(state.extra_state_type));
  module.attr("InterpreterFrame") = nb::borrow(reinterpret_cast<PyObject*>(state.frame_view_type));
  // Whoever leaves the hook on must not be called while the interpreter is being taken down.
  nb::module_::import_("atexit").attr("register")(module.attr("set_eval_frame"), nb::none());
}

}  // namespace magneto::python
