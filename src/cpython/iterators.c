// Iterators that can be made again in the state they are in, word by word.
//
// The types below hold numbers and references, and their tp_traverse shows all the references: so nothing else has to
// be known about their layout.
#include <Python.h>
#include <string.h>

#include "cpython/cpython.h"

static const char* const kTypes[] = {
    "list_iterator",
    "list_reverseiterator",
    "tuple_iterator",
    "range_iterator",
    "str_iterator",
    "str_ascii_iterator",
    "bytes_iterator",
    "dict_keyiterator",
    "dict_itemiterator",
    "dict_valueiterator",
    "dict_reversekeyiterator",
    "dict_reversevalueiterator",
    "dict_keys",
    "dict_values",
    "dict_items",
    "set_iterator",
    "enumerate",
    "zip",
    "map",
    "filter",
    "reversed",
    "itertools.islice",
    "itertools.repeat",
    "itertools.chain",
};

bool mg_is_plain_iterator(PyTypeObject* type) {
  if (type->tp_flags & Py_TPFLAGS_HEAPTYPE && strncmp(type->tp_name, "itertools.", 10) != 0) return false;
  for (size_t i = 0; i < Py_ARRAY_LENGTH(kTypes); ++i)
    if (strcmp(type->tp_name, kTypes[i]) == 0) return true;
  return false;
}

// These fill a tuple of theirs again for each item, if nobody else holds it.
static bool reuses_a_tuple(PyTypeObject* type) {
  return type == &PyEnum_Type || type == &PyZip_Type || type == &PyDictIterItem_Type;
}

typedef struct {
  uint64_t* words;
  mg_iterator* state;
  PyObject** parts;
  int last_tuple;
  bool lost;
} search;

static int note(PyObject* part, void* data) {
  search* found = data;
  if (PyType_Check(part)) return 0;  // an object of a heap type shows its type
  for (int i = 0; i < found->state->word_count; ++i) {
    if (found->words[i] != (uint64_t)(uintptr_t)part) continue;
    found->words[i] = 0;
    if (PyTuple_CheckExact(part)) found->last_tuple = found->state->part_count;
    found->state->part_words[found->state->part_count] = (uint8_t)i;
    found->parts[found->state->part_count++] = part;
    return 0;
  }
  found->lost = true;
  return 0;
}

bool mg_iterator_read(PyObject* iterator, mg_iterator* state, PyObject** parts) {
  PyTypeObject* type = Py_TYPE(iterator);
  size_t size = (size_t)type->tp_basicsize - sizeof(PyObject);
  if (!mg_is_plain_iterator(type) || size > sizeof state->words || size % sizeof(uint64_t)) return false;
  memset(state, 0, sizeof *state);
  memcpy(state->words, (char*)iterator + sizeof(PyObject), size);
  state->word_count = (int)(size / sizeof(uint64_t));
  state->scratch_word = -1;
  search found = {state->words, state, parts, -1, false};
  if (type->tp_traverse) type->tp_traverse(iterator, note, &found);
  if (found.lost) return false;
  if (reuses_a_tuple(type) && found.last_tuple >= 0) {
    int last = found.last_tuple;
    state->scratch_word = state->part_words[last];
    state->scratch_size = PyTuple_GET_SIZE(parts[last]);
    --state->part_count;
    memmove(parts + last, parts + last + 1, (size_t)(state->part_count - last) * sizeof *parts);
    memmove(state->part_words + last, state->part_words + last + 1, (size_t)(state->part_count - last));
  }
  return true;
}

static PyObject* tuple_of_none(Py_ssize_t size) {
  PyObject* tuple = PyTuple_New(size);
  for (Py_ssize_t i = 0; tuple && i < size; ++i) PyTuple_SET_ITEM(tuple, i, Py_NewRef(Py_None));
  return tuple;
}

PyObject* mg_iterator_new(PyTypeObject* type, const mg_iterator* state, PyObject* const* parts) {
  PyObject* scratch = state->scratch_word < 0 ? NULL : tuple_of_none(state->scratch_size);
  if (state->scratch_word >= 0 && !scratch) return NULL;
  bool collected = PyType_IS_GC(type);
  PyObject* iterator = collected ? PyObject_GC_New(PyObject, type) : PyObject_New(PyObject, type);
  if (!iterator) return Py_XDECREF(scratch), NULL;
  uint64_t words[MG_ITERATOR_WORDS];
  memcpy(words, state->words, sizeof words);
  for (int i = 0; i < state->part_count; ++i) words[state->part_words[i]] = (uint64_t)(uintptr_t)Py_NewRef(parts[i]);
  if (scratch) words[state->scratch_word] = (uint64_t)(uintptr_t)scratch;
  memcpy((char*)iterator + sizeof(PyObject), words, (size_t)state->word_count * sizeof(uint64_t));
  if (collected) PyObject_GC_Track(iterator);
  return iterator;
}
