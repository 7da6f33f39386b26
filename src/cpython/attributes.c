// Attributes that may be missing, without the price of an exception.
#include "cpython/cpython.h"

bool mg_get_attribute(PyObject* object, PyObject* name, PyObject** value) {
#if PY_VERSION_HEX >= 0x030d0000
  return PyObject_GetOptionalAttr(object, name, value) >= 0;
#else
  return _PyObject_LookupAttr(object, name, value) >= 0;
#endif
}
