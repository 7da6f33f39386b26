// Text of Python objects for messages: never fails, never leaves an error behind.
#pragma once
#include <string>

#include "cpython/ref.h"

namespace magneto::py {

// The characters of a str; "?" for anything else and for what UTF-8 cannot hold.
inline std::string text(PyObject* object) {
  const char* utf8 = object && PyUnicode_Check(object) ? PyUnicode_AsUTF8(object) : nullptr;
  if (!utf8) PyErr_Clear();
  return utf8 ? utf8 : "?";
}

inline std::string type_name(PyObject* object) { return Py_TYPE(object)->tp_name; }

// At most `limit` bytes of repr(object), in whole characters. PyObject_Repr, and the repr of an int, would serve
// signals, whose handlers raise; and CPython writes large numbers by Python code unless they are hexadecimal.
inline std::string repr(PyObject* object, size_t limit = 80) {
  int is_large = 0;
  if (PyLong_CheckExact(object)) {
    long long number = PyLong_AsLongLongAndOverflow(object, &is_large);
    if (!is_large) return std::to_string(number);
  }
  Ref result = Ref::steal(is_large ? PyNumber_ToBase(object, 16) : Py_TYPE(object)->tp_repr(object));
  if (!result) {
    PyErr_Clear();
    return "<" + type_name(object) + ">";
  }
  std::string full = text(result.get());
  if (full.size() <= limit) return full;
  size_t end = limit - 3;
  while (end && (full[end] & 0xc0) == 0x80) --end;
  return full.substr(0, end) + "...";
}

// The error that is set, as "TypeError: what is wrong"; it is cleared.
inline std::string take_error() {
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  PyErr_NormalizeException(&type, &value, &traceback);
  Ref held_type = Ref::steal(type), held_value = Ref::steal(value), held_traceback = Ref::steal(traceback);
  if (!held_value) return "an unknown error";
  Ref message = Ref::steal(PyObject_Str(value));
  if (!message) PyErr_Clear();
  return type_name(value) + (message ? ": " + text(message.get()) : "");
}

}  // namespace magneto::py
