// Takes the GIL for a while, on a thread that may have it already or not.
#pragma once
#include <Python.h>

namespace magneto::py {

class Gil {
 public:
  Gil() : state_(PyGILState_Ensure()) {}
  ~Gil() { PyGILState_Release(state_); }
  Gil(const Gil&) = delete;
  Gil& operator=(const Gil&) = delete;

 private:
  PyGILState_STATE state_;
};

}  // namespace magneto::py
