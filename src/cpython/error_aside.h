// Keeps an error that is set out of the way of other code.
#pragma once
#include <Python.h>

namespace magneto::py {

// An error that is set is out of the way of what runs meanwhile, and comes before the errors of that.
class ErrorAside {
 public:
  ErrorAside() { PyErr_Fetch(&type_, &value_, &traceback_); }
  ~ErrorAside() {
    if (type_) PyErr_Restore(type_, value_, traceback_);
  }
  ErrorAside(const ErrorAside&) = delete;
  ErrorAside& operator=(const ErrorAside&) = delete;

 private:
  PyObject *type_, *value_, *traceback_;
};

}  // namespace magneto::py
