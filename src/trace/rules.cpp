// The table of rules, by function: a rule does not keep a function alive.
#include "trace/rules.h"

#include <unordered_map>

#include "cpython/last_word.h"
#include "cpython/text.h"
#include "guard/reads.h"
#include "runtime/state.h"
#include "trace/call_table.h"

namespace magneto::trace {

namespace {

struct Entry {
  Rule rule;
  py::Ref holder;  // keeps the key from being used again: a weak reference, or the function if it can have none
};

// Owned by the GIL.
std::unordered_map<const void*, Entry>& table() {
  static auto& table = *new std::unordered_map<const void*, Entry>;
  return table;
}

// What a function is, bound or not.
const void* key_of(PyObject* callable) {
  if (PyMethod_Check(callable)) callable = PyMethod_GET_FUNCTION(callable);
  if (PyCFunction_Check(callable)) return ((PyCFunctionObject*)callable)->m_ml;
  if (Py_TYPE(callable) == &PyMethodDescr_Type) return ((PyMethodDescrObject*)callable)->d_method;
  return callable;
}

py::Ref hold(PyObject* callable, const void* key) {
  if (PyMethod_Check(callable)) callable = PyMethod_GET_FUNCTION(callable);
  if (key != callable || !PyType_SUPPORTS_WEAKREFS(Py_TYPE(callable))) return py::Ref::borrow(callable);
  return py::when_dead(callable, [key] { auto node = table().extract(key); });
}

// What torch.compiler.disable has returned, which people use whatever compiles their programs; with all that it calls.
// torch marks functions of its own likewise, but does not say whose wrapper they are.
bool is_disabled_for_torch(PyObject* function) {
  PyObject* marks = PyFunction_Check(function) ? ((PyFunctionObject*)function)->func_dict : nullptr;
  if (!marks || !PyDict_GET_SIZE(marks)) return false;
  static PyObject* mark = PyUnicode_InternFromString("_torchdynamo_disable_recursive");
  static PyObject* wrapped = PyUnicode_InternFromString("__wrapped__");
  return guard::find_key(marks, mark) == Py_True && guard::find_key(marks, wrapped);
}

}  // namespace

bool set_rule(PyObject* callable, Rule rule) {
  const void* key = key_of(callable);
  py::Ref holder = hold(callable, key);
  if (!holder) return false;
  table().insert_or_assign(key, Entry{rule, std::move(holder)});
  return true;
}

Rule rule_of(PyObject* callable) {
  PyObject* function = PyMethod_Check(callable) ? PyMethod_GET_FUNCTION(callable) : callable;
  if (Py_TYPE(function) == runtime::process_state().scoped_type) return Rule::Disallow;
  auto found = table().find(key_of(callable));
  if (found == table().end() && PyFunction_Check(function)) found = table().find(PyFunction_GET_CODE(function));
  if (found != table().end()) return found->second.rule;
  return is_disabled_for_torch(function) ? Rule::Aside : Rule::None;
}

std::string why_cut(PyObject* callable, PyObject* const* args, size_t count) {
  if (callable == call_with_star()) return why_cut(args[0], args, 0);
  PyObject* function = PyMethod_Check(callable) ? PyMethod_GET_FUNCTION(callable) : callable;
  std::string what = "the call runs " + callable_name(callable);
  if (Py_TYPE(function) == runtime::process_state().scoped_type) return what + ", which is disabled";
  if (rule_of(callable) == Rule::Disallow) return what + ", which is disallowed";
  if (rule_of(callable) == Rule::Aside) return what + ", which is left to Python as a whole";
  if (function != runtime::process_state().graph_break) return what + ", which is not understood";
  std::string message = count ? py::text(args[0]) : "";
  return "the call asks for a cut (magneto.graph_break)" + (message.empty() ? "" : ": " + message);
}

}  // namespace magneto::trace
