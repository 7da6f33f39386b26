// Watches dicts and types for changes, with one watcher of each kind for the whole of Magneto.
#include "cpython/cpython.h"

#if PY_VERSION_HEX >= 0x030c0000

// Owned by whoever holds the GIL; set by mg_watchers_start only.
static int dict_watcher = -1, type_watcher = -1;
static mg_on_dict_change tell_dict;
static mg_on_type_change tell_type;

static int on_dict(PyDict_WatchEvent event, PyObject* dict, PyObject* key, PyObject* value) {
  (void)event, (void)key, (void)value;
  tell_dict(dict);
  return 0;
}

static int on_type(PyTypeObject* type) {
  tell_type(type);
  return 0;
}

bool mg_watchers_start(mg_on_dict_change dict, mg_on_type_change type) {
  if (dict_watcher < 0) dict_watcher = PyDict_AddWatcher(on_dict);
  if (type_watcher < 0) type_watcher = PyType_AddWatcher(on_type);
  tell_dict = dict;
  tell_type = type;
  if (dict_watcher >= 0 && type_watcher >= 0) return true;
  PyErr_Clear();
  mg_watchers_stop();
  return false;
}

void mg_watchers_stop(void) {
  if (dict_watcher >= 0) PyDict_ClearWatcher(dict_watcher);
  if (type_watcher >= 0) PyType_ClearWatcher(type_watcher);
  dict_watcher = type_watcher = -1;
}

bool mg_watch_dict(PyObject* dict) { return PyDict_Watch(dict_watcher, dict) == 0; }
bool mg_unwatch_dict(PyObject* dict) { return PyDict_Unwatch(dict_watcher, dict) == 0; }
bool mg_watch_type(PyTypeObject* type) { return PyType_Watch(type_watcher, (PyObject*)type) == 0; }
bool mg_unwatch_type(PyTypeObject* type) { return PyType_Unwatch(type_watcher, (PyObject*)type) == 0; }

#else

static bool refuse(void) {
  PyErr_SetString(PyExc_RuntimeError, "CPython 3.11 cannot watch dicts and types");
  return false;
}

bool mg_watchers_start(mg_on_dict_change dict, mg_on_type_change type) {
  (void)dict, (void)type;
  return false;
}

void mg_watchers_stop(void) {}

bool mg_watch_dict(PyObject* dict) { return (void)dict, refuse(); }
bool mg_unwatch_dict(PyObject* dict) { return (void)dict, refuse(); }
bool mg_watch_type(PyTypeObject* type) { return (void)type, refuse(); }
bool mg_unwatch_type(PyTypeObject* type) { return (void)type, refuse(); }

#endif
