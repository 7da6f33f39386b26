// A namespace for unit tests in which Python text is run: `world.run("x = 1")`, `world["x"]`.
#pragma once
#include <string>

#include "check.h"
#include "cpython/ref.h"

namespace magneto::check {

class PythonWorld {
 public:
  explicit PythonWorld(const std::string& text = "") : space_(py::Ref::steal(PyDict_New())) {
    PyDict_SetItemString(space_.get(), "__builtins__", PyEval_GetBuiltins());
    if (!text.empty()) run(text);
  }

  void run(const std::string& text) { need(PyRun_String(text.c_str(), Py_file_input, space_.get(), space_.get())); }
  py::Ref value(const std::string& text) const {
    return need(PyRun_String(text.c_str(), Py_eval_input, space_.get(), space_.get()));
  }
  bool holds(const std::string& text) const { return value(text).get() == Py_True; }
  long number(const std::string& text) const { return PyLong_AsLong(value(text).get()); }

  // Borrowed.
  PyObject* operator[](const char* name) const {
    PyObject* found = PyDict_GetItemString(space_.get(), name);
    if (!found) fail(__FILE__, __LINE__, std::string("there is no ") + name);
    return found;
  }
  void set(const char* name, PyObject* object) { PyDict_SetItemString(space_.get(), name, object); }
  PyObject* space() const { return space_.get(); }

 private:
  static py::Ref need(PyObject* owned) {
    if (!owned) {
      PyErr_Print();
      fail(__FILE__, __LINE__, "the Python text of this test raised an exception");
    }
    return py::Ref::steal(owned);
  }

  py::Ref space_;
};

}  // namespace magneto::check
