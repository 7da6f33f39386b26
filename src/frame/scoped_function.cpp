// ScopedFunction: a C type, so that a call of it runs no bytecode of ours and a watched call can be cut at it.
#include "frame/scoped_function.h"

#include <string>
#include <string_view>

#include "frame/function_wrapper.h"
#include "runtime/state.h"
#include "trace/rules.h"
#include "trace/watch.h"

namespace magneto::frame {

namespace {

enum class Scope : uint8_t {
  Eager,  // all that it calls runs as Python
  Skip,   // it is not watched; compiled functions that it calls are themselves
  Run,    // compiled functions run what they have, and capture nothing
};
constexpr const char* kScopeNames[] = {"eager", "skip", "run"};

struct ScopedFunction : FunctionWrapper {
  Scope scope;
};

ScopedFunction* as_scoped(PyObject* object) { return reinterpret_cast<ScopedFunction*>(object); }

PyObject* call(PyObject* object, PyObject* const* args, size_t flagged_count, PyObject* keyword_names) {
  ScopedFunction* self = as_scoped(object);
  // Called by C code: there is no instruction at which the program could be cut.
  if (trace::Watch* watch = trace::Watch::current(); watch && watch->alive())
    watch->give_up(trace::why_cut(object, args, 0));
  auto run = [&] { return PyObject_Vectorcall(self->function, args, flagged_count, keyword_names); };
  if (self->scope == Scope::Eager) {
    runtime::LeaveAlone alone;
    return run();
  }
  runtime::Apart apart;
  if (self->scope == Scope::Skip) return run();
  runtime::RunOnly run_only;
  return run();
}

PyObject* create(PyTypeObject* type, PyObject* args, PyObject* keywords) {
  static const char* kNames[] = {"fn", "scope", nullptr};
  PyObject* function;
  const char* name;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "Os", const_cast<char**>(kNames), &function, &name)) return nullptr;
  size_t scope = 0;
  while (scope < std::size(kScopeNames) && std::string_view(name) != kScopeNames[scope]) ++scope;
  if (scope == std::size(kScopeNames) || !PyCallable_Check(function))
    return PyErr_Format(PyExc_TypeError, "ScopedFunction expects a callable and 'eager', 'skip' or 'run', but got %R",
                        args);
  auto* self = as_scoped(type->tp_alloc(type, 0));
  if (!self) return nullptr;
  self->vectorcall = call;
  self->function = Py_NewRef(function);
  self->scope = static_cast<Scope>(scope);
  return (PyObject*)self;
}

PyObject* repr(PyObject* object) {
  const char* words = as_scoped(object)->scope == Scope::Run ? "run-only" : "disabled";
  return PyUnicode_FromFormat("<magneto %s %R>", words, as_scoped(object)->function);
}

// The same for another function.
PyObject* again(PyObject* object, PyObject* function) {
  return PyObject_CallFunction((PyObject*)Py_TYPE(object), "Os", function,
                               kScopeNames[static_cast<size_t>(as_scoped(object)->scope)]);
}

PyObject* get_scope(PyObject* object, void*) {
  return PyUnicode_FromString(kScopeNames[static_cast<size_t>(as_scoped(object)->scope)]);
}

PyMethodDef kMethods[] = {{"again", again, METH_O, "again(fn): scopes another function in the same way."},
                          {"__reduce__", reduce_wrapper, METH_NOARGS, nullptr},
                          {nullptr, nullptr, 0, nullptr}};

PyGetSetDef kGetSets[] = {{"scope", get_scope, nullptr, "'eager', 'skip' or 'run'.", nullptr},
                          {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, nullptr, nullptr},
                          {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyType_Slot kSlots[] = {{Py_tp_new, (void*)create},
                        {Py_tp_dealloc, (void*)destroy_wrapper},
                        {Py_tp_traverse, (void*)traverse_wrapper},
                        {Py_tp_clear, (void*)clear_wrapper},
                        {Py_tp_call, (void*)PyVectorcall_Call},
                        {Py_tp_descr_get, (void*)bind_wrapper},
                        {Py_tp_repr, (void*)repr},
                        {Py_tp_methods, kMethods},
                        {Py_tp_members, kWrapperMembers},
                        {Py_tp_getset, kGetSets},
                        {Py_tp_doc, (void*)"A function that runs eagerly ('eager'), unwatched ('skip') or without "
                                           "capturing anything new ('run')."},
                        {0, nullptr}};

}  // namespace

PyTypeObject* make_scoped_function_type(const char* module_name) {
  static std::string name = std::string(module_name) + ".ScopedFunction";
  static PyType_Spec spec = {
      name.c_str(), sizeof(ScopedFunction), 0,
      Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR, kSlots};
  auto* type = (PyTypeObject*)PyType_FromSpec(&spec);
  if (type) runtime::process_state().scoped_type = (PyTypeObject*)Py_NewRef((PyObject*)type);
  return type;
}

}  // namespace magneto::frame
