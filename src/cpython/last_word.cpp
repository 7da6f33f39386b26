// The callback of a weak reference as a C function that owns the C++ one.
#include "cpython/last_word.h"

#include <memory>

namespace magneto::py {

namespace {

using Act = std::function<void()>;
constexpr const char* kAct = "magneto.when_dead";

Act* act_of(PyObject* capsule) { return static_cast<Act*>(PyCapsule_GetPointer(capsule, kAct)); }

PyMethodDef kDied = {"died",
                     [](PyObject* capsule, PyObject*) -> PyObject* {
                       (*act_of(capsule))();
                       Py_RETURN_NONE;
                     },
                     METH_O, nullptr};

}  // namespace

Ref when_dead(PyObject* object, std::function<void()> act) {
  auto owned = std::make_unique<Act>(std::move(act));
  Ref capsule = Ref::steal(PyCapsule_New(owned.get(), kAct, [](PyObject* capsule) { delete act_of(capsule); }));
  if (!capsule) return {};
  owned.release();
  Ref callback = Ref::steal(PyCFunction_New(&kDied, capsule.get()));
  return Ref::steal(callback ? PyWeakref_NewRef(object, callback.get()) : nullptr);
}

}  // namespace magneto::py
