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

// At most `limit` bytes of repr(object), in whole characters.
inline std::string repr(PyObject* object, size_t limit = 80) {
  Ref result = Ref::steal(PyObject_Repr(object));
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

}  // namespace magneto::py
