// The instructions that find variables by name, and what needs them: class bodies, imports, type parameters.
#include "runtime/state.h"
#include "trace/frame_run.h"

namespace magneto::trace {

namespace {

// A NameError knows which name it is about.
void raise_name_error(const char* words, PyObject* name) {
  PyErr_Format(PyExc_NameError, words, PyUnicode_AsUTF8(name));
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  PyErr_NormalizeException(&type, &value, &traceback);
  if (PyObject_SetAttrString(value, "name", name) < 0) PyErr_Clear();
  PyErr_Restore(type, value, traceback);
}

}  // namespace

// ---- variables

Next FrameRun::undefined(PyObject* name) {
  raise_name_error("name '%.200s' is not defined", name);
  return Next::Error;
}

Next FrameRun::unbound(uint32_t variable) {
  PyObject* name = PyTuple_GET_ITEM(view_.code->co_localsplusnames, variable);
  bool is_free = static_cast<int>(variable) >= view_.code->co_nlocalsplus - view_.code->co_nfreevars;
  if (is_free)
    raise_name_error("cannot access free variable '%s' where it is not associated with a value in enclosing scope",
                     name);
  else
    PyErr_Format(PyExc_UnboundLocalError, "cannot access local variable '%U' where it is not associated with a value",
                 name);
  return Next::Error;
}

// Borrowed; null: error set, or there is none.
PyObject* FrameRun::find_global(PyObject* name, NodeId* node) {
  PyObject* found = nullptr;
  *node = watch_.look_up_global(view_.globals, view_.builtins, name, &found);
  if (found) return found;
  PyObject* value = PyDict_GetItemWithError(view_.globals, name);
  return value || PyErr_Occurred() ? value : PyDict_GetItemWithError(view_.builtins, name);
}

// What a mapping holds under the name, or nothing. False: error set.
bool FrameRun::find_name(PyObject* names, PyObject* name, py::Ref* found) {
  if (watch_.is_dict(names))
    watch_.read_dict_key(names, name);
  else
    watch_.read_operand(names);
  if (PyDict_CheckExact(names)) {
    *found = py::Ref::borrow(PyDict_GetItemWithError(names, name));
    return *found || !PyErr_Occurred();
  }
  if (watch_.alive() && Py_TYPE(names)->tp_flags & Py_TPFLAGS_HEAPTYPE) watch_.guards.read_specials(Py_TYPE(names));
  *found = py::Ref::steal(PyObject_GetItem(names, name));
  if (*found) return true;
  if (!PyErr_ExceptionMatches(PyExc_KeyError)) return false;
  PyErr_Clear();
  return true;
}

Next FrameRun::load_name(PyObject* names, PyObject* name) {
  if (!has_plain_globals()) return leave("unusual globals");
  py::Ref found;
  if (!find_name(names, name, &found)) return Next::Error;
  NodeId node = kKnown;
  if (!found) {
    found = py::Ref::borrow(find_global(name, &node));
    if (!found) return PyErr_Occurred() ? Next::Error : undefined(name);
  }
  push(found.release(), node);
  return Next::Go;
}

Next FrameRun::load_from_names_or_cell(PyObject* names, uint32_t cell) {
  py::Ref found;
  if (!find_name(names, PyTuple_GET_ITEM(view_.code->co_localsplusnames, cell), &found)) return Next::Error;
  if (!found) return step_variables(MG_LOAD_DEREF, cell);
  push(found.release());
  return Next::Go;
}

Next FrameRun::store_name(PyObject* name) {
  size_t before = watch_.effects.size();
  watch_.write_item(view_.names, name, value_at(sp_ - 1));
  set_node(sp_ - 1, kKnown);
  py::Ref value = pop_ref();
  return made(PyObject_SetItem(view_.names, name, value.get()) == 0, before);
}

Next FrameRun::delete_name(PyObject* name) {
  size_t before = watch_.effects.size();
  watch_.write_item(view_.names, name, {nullptr});
  Next next = made(PyObject_DelItem(view_.names, name) == 0, before);
  return next == Next::Error && PyErr_ExceptionMatches(PyExc_KeyError) ? undefined(name) : next;
}

Next FrameRun::delete_global(PyObject* name) {
  if (!has_plain_globals()) return leave("unusual globals");
  watch_.read_dict_key(view_.globals, name);
  int exists = PyDict_Contains(view_.globals, name);
  if (exists <= 0) return exists < 0 ? Next::Error : undefined(name);
  watch_.write_global(view_.globals, name, {nullptr});
  return PyDict_DelItem(view_.globals, name) < 0 ? Next::Error : Next::Go;
}

// ---- class bodies

Next FrameRun::set_up_annotations() {
  static PyObject* name = PyUnicode_InternFromString("__annotations__");
  py::Ref found;
  if (!find_name(view_.names, name, &found)) return Next::Error;
  if (found) return Next::Go;
  PyObject* annotations = PyDict_New();
  if (!annotations) return Next::Error;
  watch_.mark_fresh(annotations);
  push(annotations);
  return store_name(name);
}

// The function that runs a class statement. Nobody watches it: the call is cut there.
Next FrameRun::load_build_class() {
  static PyObject* name = PyUnicode_InternFromString("__build_class__");
  if (!has_plain_globals()) return leave("unusual globals");
  watch_.read_dict_key(view_.builtins, name);
  PyObject* function = PyDict_GetItemWithError(view_.builtins, name);
  if (!function) return leave("a class statement without __build_class__");
  push(Py_NewRef(function));
  return Next::Go;
}

// ---- imports

// The name under which sys.modules has the module that an import names. Null, perhaps with an error: who knows.
py::Ref FrameRun::module_name(PyObject* name, long level) {
  static PyObject* package_name = PyUnicode_InternFromString("__package__");
  static PyObject* spec_name = PyUnicode_InternFromString("__spec__");
  if (level == 0) return py::Ref::borrow(name);
  watch_.read_dict_key(view_.globals, package_name);
  watch_.read_dict_key(view_.globals, spec_name);
  PyObject* package = PyDict_GetItemWithError(view_.globals, package_name);
  if (!package || !PyUnicode_CheckExact(package)) return {};
  Py_ssize_t end = PyUnicode_GET_LENGTH(package);
  for (long i = 1; i < level && end > 0; ++i) end = PyUnicode_FindChar(package, '.', 0, end, -1);
  if (end <= 0) return {};
  py::Ref parent = py::Ref::steal(PyUnicode_Substring(package, 0, end));
  if (!parent || !PyUnicode_GET_LENGTH(name)) return parent;
  return py::Ref::steal(PyUnicode_FromFormat("%U.%U", parent.get(), name));
}

// What sys.modules has is read there. Python's own code then looks for the names that are imported, and is watched.
Next FrameRun::import(PyObject* name) {
  static PyObject* hook_name = PyUnicode_InternFromString("__import__");
  PyObject *from = sp_[-1], *modules = PyImport_GetModuleDict();
  if (!has_plain_globals()) return leave("unusual globals");
  PyObject* hook = PyDict_GetItemWithError(view_.builtins, hook_name);
  watch_.read_dict_key(view_.builtins, hook_name);
  if (!hook || !PyCFunction_Check(hook)) return leave("an import through a replaced __import__");
  long level = PyLong_AsLong(sp_[-2]);
  py::Ref full = module_name(name, level);
  if (!full) PyErr_Clear();
  PyObject* known = full ? PyDict_GetItemWithError(modules, full.get()) : nullptr;
  if (!known) watch_.give_up("the call imports a module for the first time");
  if (known && known != Py_None && !PyModule_Check(known))
    watch_.give_up("the call imports something that is no module");
  if (known) watch_.read_dict_key(modules, full.get());
  if (!watch_.alive()) watch_.let_go();
  py::Ref module = py::Ref::steal(PyImport_ImportModuleLevelObject(name, view_.globals, Py_None, from, (int)level));
  if (module && module.get() != known) {  // `import a.b` gives a
    Py_ssize_t end = PyUnicode_FindChar(name, '.', 0, PyUnicode_GET_LENGTH(name), 1);
    py::Ref top = py::Ref::steal(end > 0 ? PyUnicode_Substring(name, 0, end) : nullptr);
    if (!top) PyErr_Clear();
    if (top) watch_.read_dict_key(modules, top.get());
    if (!top || PyDict_GetItemWithError(modules, top.get()) != module.get())
      watch_.give_up("the call imports a module in an unusual way");
  }
  return replace(2, module.release());
}

Next FrameRun::import_from(PyObject* name) {
  PyObject *module = sp_[-1], *value = nullptr;
  if (!PyModule_Check(module)) return leave("an import from something that is no module");
  watch_.read_attribute(module, name);
  if (!mg_get_attribute(module, name, &value)) return Next::Error;
  if (!value) return import_missing(name);
  watch_.finish_attribute(module, name, value);
  push(value);
  return Next::Go;
}

// A submodule that is still being imported, or an error that tells what the module is.
Next FrameRun::import_missing(PyObject* name) {
  PyObject *module = sp_[-1], *own_name = nullptr;
  for (const char* text : {"__name__", "__file__", "__spec__"}) {
    py::Ref attribute = py::Ref::steal(PyUnicode_InternFromString(text));
    if (!attribute) return Next::Error;
    watch_.read_attribute(module, attribute.get());
  }
  own_name = PyModule_GetNameObject(module);
  py::Ref full = py::Ref::steal(own_name ? PyUnicode_FromFormat("%U.%U", own_name, name) : nullptr);
  Py_XDECREF(own_name);
  if (!full) PyErr_Clear();
  if (full) watch_.read_dict_key(PyImport_GetModuleDict(), full.get());
  py::Ref found = run_alone(1, 2, name);
  return found ? push_result(Py_NewRef(PyTuple_GET_ITEM(found.get(), 1))) : Next::Error;
}

Next FrameRun::step_scopes(uint8_t operation, uint32_t arg) {
  switch (operation) {
    case MG_IMPORT_NAME: return import(names_[arg]);
    case MG_IMPORT_FROM: return import_from(names_[arg]);
    case MG_IMPORT_STAR: {
      watch_.give_up("the interpreter does not watch import *");
      py::Ref nothing = run_alone(1, static_cast<int>(arg));
      if (!nothing || arg) return replace(1, nothing.release());
      Py_DECREF(pop());
      return Next::Go;
    }
    case MG_TYPE_PARAMETERS: {
      py::Ref made = run_alone(static_cast<int>(arg), 1);
      if (made && Py_REFCNT(made.get()) == 1) watch_.mark_fresh(made.get());
      return replace(static_cast<int>(arg), made.release());
    }
    case MG_LOAD_BUILD_CLASS: return load_build_class();
    default: break;
  }
  // The rest is for code that keeps its variables in a namespace.
  if (operation == MG_LOAD_FROM_DICT_OR_GLOBALS || operation == MG_LOAD_FROM_DICT_OR_DEREF) {
    if (!has_plain_globals()) return leave("unusual globals");
    py::Ref names = pop_ref();
    return operation == MG_LOAD_FROM_DICT_OR_GLOBALS ? load_name(names.get(), names_[arg])
                                                     : load_from_names_or_cell(names.get(), arg);
  }
  if (!view_.names) return leave(("bytecode instruction " + std::to_string(code_[at_].opcode)).c_str());
  switch (operation) {
    case MG_LOAD_LOCALS: push(Py_NewRef(view_.names)); return Next::Go;
    case MG_LOAD_NAME: return load_name(view_.names, names_[arg]);
    case MG_LOAD_CLASSDEREF: return load_from_names_or_cell(view_.names, arg);
    case MG_STORE_NAME: return store_name(names_[arg]);
    case MG_DELETE_NAME: return delete_name(names_[arg]);
    case MG_SETUP_ANNOTATIONS: return set_up_annotations();
    default: return leave(("bytecode instruction " + std::to_string(code_[at_].opcode)).c_str());
  }
}

}  // namespace magneto::trace
