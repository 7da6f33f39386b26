// The Python module `_units`: lists the C++ test cases and runs one of them inside the interpreter.
#include "check.h"
#include "runtime/errors.h"

namespace magneto::check {

std::vector<Case>& cases() {
  static std::vector<Case> cases;
  return cases;
}

void fail(const char* file, int line, const std::string& what) {
  throw Failure(std::string(file) + ":" + std::to_string(line) + ": " + what);
}

// tests/cpp/test_config.cpp -> config
static std::string file_stem(std::string_view path) {
  path.remove_prefix(path.rfind('/') + 1);
  if (path.starts_with("test_")) path.remove_prefix(5);
  return std::string(path.substr(0, path.rfind('.')));
}

Register::Register(const char* file, const char* name, void (*run)()) {
  cases().push_back({file_stem(file) + "." + name, run});
}

static PyObject* list_cases(PyObject*, PyObject*) {
  PyObject* names = PyList_New(0);
  for (const Case& unit : cases()) {
    PyObject* name = PyUnicode_FromString(unit.name.c_str());
    if (!name || PyList_Append(names, name) < 0) return nullptr;
    Py_DECREF(name);
  }
  return names;
}

static PyObject* run_case(PyObject*, PyObject* name) {
  const char* wanted = PyUnicode_AsUTF8(name);
  if (!wanted) return nullptr;
  for (const Case& unit : cases()) {
    if (unit.name != wanted) continue;
    try {
      unit.run();
    } catch (const PythonError&) {
      if (!PyErr_Occurred()) PyErr_SetString(PyExc_SystemError, "PythonError was thrown with no error set");
      return nullptr;
    } catch (const std::exception& error) {
      PyErr_SetString(PyExc_AssertionError, error.what());
      return nullptr;
    }
    if (PyErr_Occurred()) return nullptr;
    Py_RETURN_NONE;
  }
  return PyErr_Format(PyExc_LookupError, "there is no case %R", name);
}

static PyMethodDef methods[] = {
    {"cases", list_cases, METH_NOARGS, "The names of all cases."},
    {"run", run_case, METH_O, "Runs one case; raises when it fails."},
    {nullptr, nullptr, 0, nullptr},
};
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "_units", "C++ unit tests.", -1, methods, 0, 0, 0, 0};

}  // namespace magneto::check

PyMODINIT_FUNC PyInit__units() { return PyModule_Create(&magneto::check::module); }
