// The GIL for a while, on a thread that may have it already or not; and objects that any thread may drop.
#pragma once
#include <Python.h>

#include <memory>

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

using SharedObject = std::shared_ptr<PyObject>;
// With the GIL held. Null for null.
inline SharedObject share(PyObject* object) {
  if (!object) return nullptr;
  return SharedObject(Py_NewRef(object), [](PyObject* shared) {
    Gil gil;
    Py_DECREF(shared);
  });
}

}  // namespace magneto::py
