// Private facts about objects: dict and type versions, where __dict__ lives, bound slot wrappers.
#define Py_BUILD_CORE 1
#include <Python.h>

#include "internal/pycore_dict.h"
#include "internal/pycore_long.h"
#include "internal/pycore_moduleobject.h"
#include "internal/pycore_object.h"
#if PY_VERSION_HEX >= 0x030d0000
#include "internal/pycore_setobject.h"
#endif

#include "cpython/cpython.h"

bool mg_has_only_text_keys(PyObject* dict) { return ((PyDictObject*)dict)->ma_keys->dk_kind != DICT_KEYS_GENERAL; }

bool mg_dict_next_of_hash(PyObject* dict, Py_hash_t hash, Py_ssize_t* position, PyObject** key, PyObject** value) {
  PyDictKeysObject* keys = ((PyDictObject*)dict)->ma_keys;
  const PyDictKeyEntry* entries = DK_ENTRIES(keys);
  while (*position < keys->dk_nentries) {
    const PyDictKeyEntry* entry = &entries[(*position)++];
    if (!entry->me_value || entry->me_hash != hash) continue;
    *key = entry->me_key;
    *value = entry->me_value;
    return true;
  }
  return false;
}

// The low bits say who watches the dict, and on 3.13 how often a watched one changed.
#if PY_VERSION_HEX >= 0x030d0000
#define NO_VERSION_BITS (DICT_MAX_WATCHERS + DICT_WATCHED_MUTATION_BITS)
#elif PY_VERSION_HEX >= 0x030c0000
#define NO_VERSION_BITS DICT_MAX_WATCHERS
#else
#define NO_VERSION_BITS 0
#endif

uint64_t mg_dict_version(PyObject* dict) { return ((PyDictObject*)dict)->ma_version_tag >> NO_VERSION_BITS; }

#if PY_VERSION_HEX >= 0x030c0000
// Where the dict pointer of an object lives that keeps it in front of itself.
static PyObject** managed_slot(PyObject* object) {
#if PY_VERSION_HEX >= 0x030d0000
  return (PyObject**)&_PyObject_ManagedDictPointer(object)->dict;
#else
  return (PyObject**)&_PyObject_DictOrValuesPointer(object)->dict;
#endif
}
#endif

// Whether the object keeps its attributes to itself, without a dict.
static bool has_no_dict_yet(PyObject* object) {
  if (!(Py_TYPE(object)->tp_flags & Py_TPFLAGS_MANAGED_DICT)) return false;
#if PY_VERSION_HEX >= 0x030d0000
  return false;  // a dict that is made for it leaves them where they are
#elif PY_VERSION_HEX >= 0x030c0000
  return _PyDictOrValues_IsValues(*_PyObject_DictOrValuesPointer(object));
#else
  return *_PyObject_ValuesPointer(object) != NULL;
#endif
}

// A dict that was made for an object shares its keys with others of the class, and from then on CPython looks up the
// attributes of the object the slow way. In a dict with keys of its own it finds them as fast as before.
static void unshare_keys(PyObject** slot) {
  PyObject* own = PyDict_New();
  if (own && PyDict_Update(own, *slot) == 0) {
    PyObject* shared = *slot;
    *slot = own;
    own = shared;
  }
  PyErr_Clear();
  Py_XDECREF(own);
}

PyObject** mg_dict_slot(PyObject* object) {
  bool is_new = has_no_dict_yet(object);
#if PY_VERSION_HEX >= 0x030c0000
  // An object that keeps its values inline has no dict to speak of until somebody asks for it.
  PyTypeObject* type = Py_TYPE(object);
  if (type->tp_flags & Py_TPFLAGS_MANAGED_DICT) {
    PyObject* dict = PyObject_GenericGetDict(object, NULL);
    if (!dict) {
      PyErr_Clear();
      return NULL;
    }
    Py_DECREF(dict);
    if (is_new) unshare_keys(managed_slot(object));
    return managed_slot(object);
  }
  Py_ssize_t offset = type->tp_dictoffset;
  if (offset == 0) return NULL;
  if (offset < 0) {
    Py_ssize_t items = Py_SIZE(object) < 0 ? -Py_SIZE(object) : Py_SIZE(object);
    offset += (Py_ssize_t)_PyObject_VAR_SIZE(type, items);
  }
  return (PyObject**)((char*)object + offset);
#else
  PyObject** slot = _PyObject_GetDictPtr(object);
  if (!slot) PyErr_Clear();
  if (slot && is_new) unshare_keys(slot);
  return slot;
#endif
}

bool mg_has_settled_dict(PyObject* object) {
  PyTypeObject* type = Py_TYPE(object);
  if (!(type->tp_flags & Py_TPFLAGS_MANAGED_DICT)) return type->tp_dictoffset != 0;
#if PY_VERSION_HEX >= 0x030d0000
  if (type->tp_flags & Py_TPFLAGS_INLINE_VALUES && _PyObject_InlineValues(object)->valid) return false;
  return *managed_slot(object) != NULL;
#elif PY_VERSION_HEX >= 0x030c0000
  return !_PyDictOrValues_IsValues(*_PyObject_DictOrValuesPointer(object)) && *managed_slot(object);
#else
  return !*_PyObject_ValuesPointer(object) && *_PyObject_ManagedDictPointer(object);
#endif
}

PyObject* mg_settle_dict(PyObject* object) {
  PyObject** slot = mg_dict_slot(object);
  if (!slot) return NULL;
  PyObject* dict = PyObject_GenericGetDict(object, NULL);  // makes an empty one where there was none yet
#if PY_VERSION_HEX >= 0x030d0000
  // A dict that the object lets go of takes the values along; given back, it keeps them.
  if (dict && !mg_has_settled_dict(object)) {
    PyObject* other = PyDict_New();
    if (other && _PyObject_SetManagedDict(object, other) == 0) _PyObject_SetManagedDict(object, dict);
    Py_XDECREF(other);
  }
#endif
  PyErr_Clear();
  Py_XDECREF(dict);
  return mg_has_settled_dict(object) ? *slot : NULL;
}

bool mg_has_attributes(PyObject* object) {
#if PY_VERSION_HEX < 0x030c0000
  if (Py_TYPE(object)->tp_flags & Py_TPFLAGS_MANAGED_DICT) {
    const uint8_t* values = (const uint8_t*)*_PyObject_ValuesPointer(object);
    if (values) return values[-2] != 0;  // how many were ever set
    PyObject* dict = *_PyObject_ManagedDictPointer(object);
    return dict && PyDict_GET_SIZE(dict) != 0;
  }
#endif
  PyObject** slot = mg_dict_slot(object);
  return slot && *slot && PyDict_GET_SIZE(*slot) != 0;
}

bool mg_is_python_class(PyTypeObject* type) {
  static destructor dealloc = NULL;
  if (!dealloc) {
    PyObject* plain = PyObject_CallFunction((PyObject*)&PyType_Type, "s(){}", "Plain");
    if (!plain) {
      PyErr_Clear();
      return false;
    }
    dealloc = ((PyTypeObject*)plain)->tp_dealloc;
    Py_DECREF(plain);
  }
  return (type->tp_flags & Py_TPFLAGS_HEAPTYPE) && type->tp_dealloc == dealloc;
}

bool mg_has_slots(PyTypeObject* type) {
  Py_ssize_t position = 0;
  PyObject *name, *member;
  while (PyDict_Next(mg_type_dict(type), &position, &name, &member))
    if (Py_TYPE(member) == &PyMemberDescr_Type) return true;
  return false;
}

static bool begins_with_one(const char* text, const char* const* prefixes) {
  for (; *prefixes; ++prefixes)
    if (strncmp(text, *prefixes, strlen(*prefixes)) == 0) return true;
  return false;
}

bool mg_has_other_attributes(PyObject* object, const char* const* prefixes) {
  if (!mg_has_attributes(object)) return false;
  PyObject** slot = mg_dict_slot(object);
  Py_ssize_t position = 0;
  PyObject *name, *value;
  while (slot && *slot && PyDict_Next(*slot, &position, &name, &value)) {
    const char* text = PyUnicode_CheckExact(name) ? PyUnicode_AsUTF8(name) : NULL;
    if (!text) PyErr_Clear();
    if (!text || !begins_with_one(text, prefixes)) return true;
  }
  return false;
}

PyObject* mg_type_dict(PyTypeObject* type) {
#if PY_VERSION_HEX >= 0x030c0000
  // Each interpreter has dicts of its own for the types that all of them share, and keeps them.
  PyObject* dict = PyType_GetDict(type);
  Py_XDECREF(dict);
  return dict;
#else
  return type->tp_dict;
#endif
}

unsigned int mg_type_version(PyTypeObject* type) {
#if PY_VERSION_HEX < 0x030d0000
  if (!(type->tp_flags & Py_TPFLAGS_VALID_VERSION_TAG)) return 0;
#endif
  return type->tp_version_tag;
}

bool mg_set_next(PyObject* set, Py_ssize_t* position, PyObject** item) {
  Py_hash_t hash;
  return _PySet_NextEntry(set, position, item, &hash);
}

const uint64_t* mg_dict_version_word(PyObject* dict) {
#if PY_VERSION_HEX >= 0x030d0000
  (void)dict;  // attributes that live inside their object change without a new version
  return NULL;
#else
  return &((PyDictObject*)dict)->ma_version_tag;
#endif
}

#if PY_VERSION_HEX < 0x030c0000
// On CPython 3.11 all dicts draw their versions from one counter, by one: each that is made, and each at every change.
// So a dict of our own tells how many were drawn between two of its changes. Belongs to the GIL.
static struct {
  PyDictObject* dict;
  PyObject* key;
  uint64_t version, epoch;
  bool flag;
} own;

uint64_t mg_dict_epoch(void) {
  if (!own.dict) {
    PyObject *dict = PyDict_New(), *key = PyUnicode_InternFromString("epoch");
    if (!dict || !key || PyDict_SetItem(dict, key, Py_False) < 0) {
      PyErr_Clear();
      Py_XDECREF(dict);
      Py_XDECREF(key);
      return 0;
    }
    own.dict = (PyDictObject*)dict;
    own.key = key;
  }
  // Storing what is there already would be no change.
  own.flag = !own.flag;
  if (PyDict_SetItem((PyObject*)own.dict, own.key, own.flag ? Py_True : Py_False) < 0) return PyErr_Clear(), 0;
  if (own.dict->ma_version_tag != own.version + 1) ++own.epoch;
  own.version = own.dict->ma_version_tag;
  return own.epoch;
}
#else
uint64_t mg_dict_epoch(void) { return 0; }
#endif

// The version is half of these bytes; the rest is padding, which nobody writes.
const uint64_t* mg_type_version_word(PyTypeObject* type) { return (const uint64_t*)(const void*)&type->tp_version_tag; }

ptrdiff_t mg_module_dict_offset(void) { return offsetof(PyModuleObject, md_dict); }

unsigned int mg_assign_type_version(PyTypeObject* type) {
#if PY_VERSION_HEX >= 0x030c0000
  PyUnstable_Type_AssignVersionTag(type);
#else
  // Any look-up assigns one, if there is one to be had.
  static PyObject* name = NULL;
  if (!name) name = PyUnicode_InternFromString("__doc__");
  if (!name) PyErr_Clear();
  if (name) _PyType_Lookup(type, name);
#endif
  return mg_type_version(type);
}

bool mg_method_wrapper(PyObject* object, PyWrapperDescrObject** descriptor, PyObject** self) {
  struct wrapper {
    PyObject_HEAD
    PyWrapperDescrObject* descriptor;
    PyObject* self;
  };
  // CPython 3.13 does not export the type; this object is of it.
  static PyTypeObject* type = NULL;
  if (!type) {
    PyObject* bound = PyObject_GetAttrString(Py_None, "__str__");
    if (!bound) return PyErr_Clear(), false;
    type = Py_TYPE(bound);
    Py_DECREF(bound);
  }
  if (Py_TYPE(object) != type) return false;
  *descriptor = ((struct wrapper*)object)->descriptor;
  *self = ((struct wrapper*)object)->self;
  return true;
}

bool mg_is_shared_int(PyObject* value) {
  int overflow;
  if (!PyLong_CheckExact(value)) return false;
  long number = PyLong_AsLongAndOverflow(value, &overflow);
  return !overflow && number >= -_PY_NSMALLNEGINTS && number < _PY_NSMALLPOSINTS;
}

bool mg_lru_cache_read(PyObject* wrapper, mg_lru_cache* cache) {
  struct lru_cache {
    PyObject_HEAD
    void *previous, *next;
    Py_hash_t hash;
    PyObject *key, *result;
    void* call;
    int typed;
    PyObject* dict;
    Py_ssize_t hits;
    PyObject* function;
    Py_ssize_t limit, misses;
    PyObject* mark;
  };
  struct lru_cache* lru = (struct lru_cache*)wrapper;
  if (Py_TYPE(wrapper)->tp_basicsize < (Py_ssize_t)sizeof *lru) return false;
  // The layout is private: believe it only if the function is where it says.
  PyObject* function = PyObject_GetAttrString(wrapper, "__wrapped__");
  if (!function) PyErr_Clear();
  bool as_expected = function && lru->function == function && lru->dict && PyDict_CheckExact(lru->dict);
  Py_XDECREF(function);
  if (as_expected) *cache = (mg_lru_cache){lru->dict, lru->mark, lru->misses, lru->typed != 0, lru->limit != 0};
  return as_expected;
}

ptrdiff_t mg_lru_cache_result(PyObject* value) {
  struct link {
    PyObject_HEAD
    void *previous, *next;
    Py_hash_t hash;
    PyObject *key, *result;
  };
  bool is_link = strcmp(Py_TYPE(value)->tp_name, "functools._lru_list_elem") == 0;
  return is_link ? (ptrdiff_t)offsetof(struct link, result) : 0;
}

bool mg_has_type_parameters(PyFunctionObject* function) {
#if PY_VERSION_HEX >= 0x030c0000
  return function->func_typeparams != NULL;
#else
  (void)function;
  return false;
#endif
}
