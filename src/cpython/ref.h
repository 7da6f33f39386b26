// Owning references to Python objects: `py::Ref` owns, a raw `PyObject*` is always borrowed.
#pragma once
#include <Python.h>

#include <utility>

namespace magneto::py {

class Ref {
 public:
  Ref() = default;
  Ref(Ref&& other) noexcept : ptr_(other.release()) {}
  Ref(const Ref& other) : ptr_(Py_XNewRef(other.ptr_)) {}
  Ref& operator=(Ref other) noexcept {
    std::swap(ptr_, other.ptr_);
    return *this;
  }
  ~Ref() { Py_XDECREF(ptr_); }

  // Takes over a reference that the caller owns, such as the result of a C-API call.
  static Ref steal(PyObject* owned) {
    Ref ref;
    ref.ptr_ = owned;
    return ref;
  }
  // Adds a reference of its own.
  static Ref borrow(PyObject* borrowed) { return steal(Py_XNewRef(borrowed)); }

  PyObject* get() const { return ptr_; }
  PyObject* release() { return std::exchange(ptr_, nullptr); }
  explicit operator bool() const { return ptr_ != nullptr; }
  bool operator==(const Ref& other) const { return ptr_ == other.ptr_; }  // the very same object

 private:
  PyObject* ptr_ = nullptr;
};

}  // namespace magneto::py
