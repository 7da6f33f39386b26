// CompiledFunction: the Python type, its call, and what it tells about itself.
#include "frame/compiled_function.h"

#include <ctime>
#include <map>
#include <memory>
#include <vector>

#include "cpython/error_aside.h"
#include "frame/forms.h"
#include "frame/function_wrapper.h"
#include "runtime/config.h"
#include "runtime/state.h"
#include "trace/watch.h"

namespace magneto::frame {

namespace {

using guard::CallArguments;
using runtime::config;

struct CompiledFunction : FunctionWrapper {
  Forms* forms;
};

CompiledFunction* as_compiled(PyObject* object) { return reinterpret_cast<CompiledFunction*>(object); }

constexpr int kMaxNesting = 8;  // of captures: each takes C stack

// The call is part of one that is being watched, or of what is kept away from it.
bool must_stay_eager() {
  const runtime::ThreadState& mine = runtime::thread_state();
  bool watched = mine.watch && (mine.watch->alive() || mine.watch->nesting() == kMaxNesting);
  return watched || mine.watch_paused || mine.left_alone || mine.apart > kMaxNesting || !config().enabled ||
         runtime::process_state().stance == runtime::Stance::ForceEager;
}

PyObject* call_through(PyObject* object, PyObject* const* args, size_t flagged_count, PyObject* keyword_names);

PyObject* call(PyObject* object, PyObject* const* args, size_t flagged_count, PyObject* keyword_names) {
  CompiledFunction* self = as_compiled(object);
  FunctionCall call(self->function, {args, static_cast<size_t>(PyVectorcall_NARGS(flagged_count)), keyword_names});
  ++runtime::process_state().calls;
  if (must_stay_eager()) return call.run(nullptr);
  if (self->forms->stays_eager() && !self->forms->wishes->whole) self->vectorcall = call_through;
  py::Ref keep = py::Ref::borrow(object);  // the call may drop the last reference to it
  return call_form(*self->forms, call);
}

// Of a function that stays eager.
PyObject* call_through(PyObject* object, PyObject* const* args, size_t flagged_count, PyObject* keyword_names) {
  CompiledFunction* self = as_compiled(object);
  if (!self->forms->stays_eager()) [[unlikely]]
    return (self->vectorcall = call)(object, args, flagged_count, keyword_names);
  ++runtime::process_state().calls;
  PyObject* function = self->function;
  if (!PyFunction_Check(function)) return PyObject_Vectorcall(function, args, flagged_count, keyword_names);
  return ((PyFunctionObject*)function)->vectorcall(function, args, flagged_count, keyword_names);
}

// ---- the Python type

PyObject* create(PyTypeObject* type, PyObject* args, PyObject* keywords) {
  static const char* kNames[] = {"fn", "name", "whole", "backend", "guard_export", "guard_fail", "dynamic", nullptr};
  PyObject* function;
  PyObject *backend = Py_None, *guard_export = Py_None, *guard_fail = Py_None;
  const char* name = "";
  int whole = 0;
  PyObject* dynamic = Py_None;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "O|spOOOO", const_cast<char**>(kNames), &function, &name, &whole,
                                   &backend, &guard_export, &guard_fail, &dynamic))
    return nullptr;
  if (!PyCallable_Check(function)) {
    PyErr_Format(PyExc_TypeError, "CompiledFunction needs a callable, not a %.200s", Py_TYPE(function)->tp_name);
    return nullptr;
  }
  auto* self = as_compiled(type->tp_alloc(type, 0));
  if (!self) return nullptr;
  self->vectorcall = call;
  self->function = Py_NewRef(function);
  self->forms = new Forms;
  self->forms->name = name;
  self->forms->wishes = make_wishes(whole, backend, guard_export, guard_fail, dynamic);
  return (PyObject*)self;
}

int traverse(PyObject* object, visitproc visit, void* arg) {
  if (int stop = traverse_wrapper(object, visit, arg)) return stop;
  Forms* forms = as_compiled(object)->forms;
  if (!forms) return 0;
  if (int stop = forms->wishes->traverse(visit, arg)) return stop;
  return forms->traverse(visit, arg);
}

// Where garbage is collected, an error may be set that is not ours.
int clear(PyObject* object) {
  py::ErrorAside aside;
  if (Forms* forms = as_compiled(object)->forms) forms->drop_variants();
  return clear_wrapper(object);
}

void destroy(PyObject* object) {
  py::ErrorAside aside;
  std::unique_ptr<Forms> forms(as_compiled(object)->forms);
  destroy_wrapper(object);
}

PyObject* repr(PyObject* object) {
  return PyUnicode_FromFormat("<magneto compiled %R>", as_compiled(object)->function);
}

// The same wishes for another function.
PyObject* again(PyObject* object, PyObject* function) {
  if (!PyCallable_Check(function))
    return PyErr_Format(PyExc_TypeError, "again expects a callable, not a %.200s", Py_TYPE(function)->tp_name);
  auto* copy = as_compiled(Py_TYPE(object)->tp_alloc(Py_TYPE(object), 0));
  if (!copy) return nullptr;
  copy->vectorcall = call;
  copy->function = Py_NewRef(function);
  copy->forms = new Forms;
  copy->forms->name = as_compiled(object)->forms->name;
  copy->forms->wishes = as_compiled(object)->forms->wishes;
  return (PyObject*)copy;
}

// ---- what happened, as data

PyObject* to_dict(const std::map<std::string, int64_t>& counts) {
  py::Ref dict = py::Ref::steal(PyDict_New());
  for (const auto& [name, count] : counts) {
    py::Ref value = py::Ref::steal(PyLong_FromLongLong(count));
    if (!dict || !value || PyDict_SetItemString(dict.get(), name.c_str(), value.get()) < 0) return nullptr;
  }
  return dict.release();
}

PyObject* failures(PyObject* object, PyObject*) { return to_dict(as_compiled(object)->forms->failures); }
PyObject* misses(PyObject* object, PyObject*) { return to_dict(as_compiled(object)->forms->misses); }
PyObject* breaks(PyObject* object, PyObject*) { return to_dict(as_compiled(object)->forms->breaks); }

PyObject* describe_variant(Forms& forms, const Variant& variant) {
  const guard::Trie& trie = group_of(forms, *variant.arguments).trie;
  py::Ref guards = describe_guards(forms, variant);
  if (!guards) return nullptr;
  std::vector<runtime::Segment*> segments = variant.program.segments();
  py::Ref graphs = py::Ref::steal(PyList_New(0));
  for (const runtime::Segment* segment : segments) {
    py::Ref text = py::Ref::steal(PyUnicode_FromString(segment->text().c_str()));
    if (!graphs || !text || PyList_Append(graphs.get(), text.get()) < 0) return nullptr;
  }
  std::string text = variant.program.text();  // with lines of files in any encoding
  py::Ref program = py::Ref::steal(PyUnicode_DecodeUTF8(text.data(), std::ssize(text), "replace"));
  if (!program) return nullptr;
  return Py_BuildValue("{s:n, s:O, s:O, s:O, s:L, s:d, s:d, s:n}", "ops", static_cast<Py_ssize_t>(op_count(segments)),
                       "graphs", graphs.get(), "program", program.get(), "guards", guards.get(), "hits",
                       static_cast<long long>(variant.hits), "watch_ms", variant.watch_ms, "build_ms", variant.build_ms,
                       "guard_count", static_cast<Py_ssize_t>(trie.size(variant) + variant.arguments->node_count()));
}

PyObject* variants(PyObject* object, PyObject*) {
  py::Ref list = py::Ref::steal(PyList_New(0));
  Forms& forms = *as_compiled(object)->forms;
  for (const auto& variant : forms.variants) {
    py::Ref dict = py::Ref::steal(describe_variant(forms, *variant));
    if (!list || !dict || PyList_Append(list.get(), dict.get()) < 0) return nullptr;
  }
  return list.release();
}

PyObject* state_name(PyObject* object, PyObject*) {
  const Forms& forms = *as_compiled(object)->forms;
  return PyUnicode_FromString(!forms.variants.empty() ? "compiled" : forms.stays_eager() ? "eager" : "new");
}

PyObject* reset(PyObject* object, PyObject*) {
  Forms& forms = *as_compiled(object)->forms;
  Forms old;
  old.name = forms.name;
  old.wishes = forms.wishes;
  std::swap(old, forms);  // destroyed last: it may run arbitrary finalisers
  Py_RETURN_NONE;
}

double processor_ns() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e9 + static_cast<double>(now.tv_nsec);
}

// The time of a look-up; with `change`, a dict that nobody else knows changes before each.
PyObject* time_guards(PyObject* object, PyObject* const* args, Py_ssize_t count, PyObject* keyword_names, bool change) {
  if (count < 1) {
    PyErr_SetString(PyExc_TypeError, "expected the number of repeats, then the arguments of the call");
    return nullptr;
  }
  long repeats = PyLong_AsLong(args[0]);
  if (repeats < 1) {
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "repeats must be at least 1");
    return nullptr;
  }
  CallArguments call{args + 1, static_cast<size_t>(count - 1), keyword_names};
  Matched matched;
  Forms& forms = *as_compiled(object)->forms;
  py::Ref dict = py::Ref::steal(PyDict_New());
  if (!dict) return nullptr;
  if (find_variant(forms, call, matched)) {
    double start = processor_ns();
    for (long i = 0; i < repeats; ++i) {
      if (change && PyDict_SetItem(dict.get(), Py_None, i % 2 ? Py_True : Py_False) < 0) return nullptr;
      find_variant(forms, call, matched);
    }
    return PyFloat_FromDouble((processor_ns() - start) / static_cast<double>(repeats));
  }
  PyErr_SetString(PyExc_ValueError, "no compiled variant fits these arguments");
  return nullptr;
}

PyObject* guard_ns(PyObject* object, PyObject* const* args, Py_ssize_t count, PyObject* keyword_names) {
  return time_guards(object, args, count, keyword_names, false);
}

PyObject* guard_ns_after_change(PyObject* object, PyObject* const* args, Py_ssize_t count, PyObject* keyword_names) {
  return time_guards(object, args, count, keyword_names, true);
}

PyObject* get_whole(PyObject* object, void*) { return PyBool_FromLong(as_compiled(object)->forms->wishes->whole); }
PyObject* get_name(PyObject* object, void*) { return PyUnicode_FromString(as_compiled(object)->forms->name.c_str()); }

PyMethodDef kMethods[] = {
    {"variants", variants, METH_NOARGS, "What was compiled, newest first."},
    {"failures", failures, METH_NOARGS, "Why captures failed: reason -> count."},
    {"misses", misses, METH_NOARGS, "Why calls were captured again: reason -> count."},
    {"breaks", breaks, METH_NOARGS, "Why programs are in several parts: reason -> count."},
    {"state", state_name, METH_NOARGS, "'new', 'compiled' or 'eager'."},
    {"reset", reset, METH_NOARGS, "Forget everything that was compiled or counted."},
    {"again", again, METH_O, "again(fn): compiles another function in the same way."},
    {"__reduce__", reduce_wrapper, METH_NOARGS, nullptr},
    {"guard_ns", (PyCFunction)(void (*)(void))guard_ns, METH_FASTCALL | METH_KEYWORDS,
     "guard_ns(repeats, *args, **kwargs): nanoseconds of processor time per check of the guards "
     "of the variant that fits."},
    {"guard_ns_after_change", (PyCFunction)(void (*)(void))guard_ns_after_change, METH_FASTCALL | METH_KEYWORDS,
     "As guard_ns, if a dict that has nothing to do with the call is changed before each check; "
     "that is counted, too."},
    {nullptr, nullptr, 0, nullptr}};

PyGetSetDef kGetSets[] = {{"name", get_name, nullptr, "Its name in logs and reports.", nullptr},
                          {"whole", get_whole, nullptr, "Whether a call that is not one graph is an error.", nullptr},
                          {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, nullptr, nullptr},
                          {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyType_Slot kSlots[] = {{Py_tp_new, (void*)create},
                        {Py_tp_dealloc, (void*)destroy},
                        {Py_tp_traverse, (void*)traverse},
                        {Py_tp_clear, (void*)clear},
                        {Py_tp_call, (void*)PyVectorcall_Call},
                        {Py_tp_descr_get, (void*)bind_wrapper},
                        {Py_tp_repr, (void*)repr},
                        {Py_tp_methods, kMethods},
                        {Py_tp_members, kWrapperMembers},
                        {Py_tp_getset, kGetSets},
                        {Py_tp_doc, (void*)"A function that is compiled by its second call."},
                        {0, nullptr}};

}  // namespace

PyTypeObject* make_compiled_function_type(const char* module_name) {
  static std::string name = std::string(module_name) + ".CompiledFunction";
  static PyType_Spec spec = {name.c_str(), sizeof(CompiledFunction), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL, kSlots};
  auto* type = (PyTypeObject*)PyType_FromSpec(&spec);
  if (!type) return nullptr;
  runtime::process_state().compiled_type = type;
  runtime::process_state().compiled_inner = [](PyObject* object) { return as_compiled(object)->function; };
  return type;
}

}  // namespace magneto::frame
