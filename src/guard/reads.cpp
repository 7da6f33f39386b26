// How reads are noted, and how each is checked again.
#include "guard/reads.h"

#include <structmember.h>

#include <algorithm>
#include <array>

#include "cpython/cpython.h"
#include "guard/atoms.h"
#include "runtime/state.h"

namespace magneto::guard {

namespace {

PyObject* interned(const char* text) { return PyUnicode_InternFromString(text); }

PyObject*& field(PyObject* owner, ptrdiff_t offset) {
  return *reinterpret_cast<PyObject**>(reinterpret_cast<char*>(owner) + offset);
}

// The C slots that special methods fill; comparing them notices a method that was added or removed.
void collect_slots(PyTypeObject* type, std::vector<const void*>* slots) {
  auto add = [&](auto pointer) { slots->push_back(reinterpret_cast<const void*>(pointer)); };
  auto add_table = [&](const void* table, size_t size) {
    auto* entries = static_cast<const void* const*>(table);
    for (size_t i = 0; table && i < size / sizeof(void*); ++i) slots->push_back(entries[i]);
  };
  add(type->tp_repr), add(type->tp_hash), add(type->tp_call), add(type->tp_str);
  add(type->tp_setattro), add(type->tp_richcompare), add(type->tp_iter), add(type->tp_iternext);
  add(type->tp_descr_get), add(type->tp_descr_set), add(type->tp_init), add(type->tp_new), add(type->tp_finalize);
  add_table(type->tp_as_number, sizeof(PyNumberMethods));
  add_table(type->tp_as_sequence, sizeof(PySequenceMethods));
  add_table(type->tp_as_mapping, sizeof(PyMappingMethods));
  add_table(type->tp_as_async, sizeof(PyAsyncMethods));
}

// Special methods that CPython looks up by name, or whose slot does not show that they were replaced.
const std::vector<PyObject*>& slotless_names() {
  static const auto& names = *[] {
    auto* all = new std::vector<PyObject*>;
    for (const char* name : {"__reversed__",      "__format__",        "__missing__",
                             "__class_getitem__", "__instancecheck__", "__subclasscheck__",
                             "__length_hint__",   "__round__",         "__trunc__",
                             "__floor__",         "__ceil__",          "__bytes__",
                             "__complex__",       "__getitem__",       "__setitem__",
                             "__contains__",      "__get__",           "__set__",
                             "__getattr__",       "__getattribute__",  "keys"})
      all->push_back(interned(name));
    return all;
  }();
  return names;
}

// Methods that may come between a look-up and what it would find.
const std::array<PyObject*, 2>& attribute_hooks() {
  static const std::array<PyObject*, 2> names{interned("__getattribute__"), interned("__getattr__")};
  return names;
}

bool is_special_name(PyObject* name) {
  return PyUnicode_Check(name) && PyUnicode_GET_LENGTH(name) > 4 && PyUnicode_READ_CHAR(name, 0) == '_' &&
         PyUnicode_READ_CHAR(name, 1) == '_';
}

// The bases of a class, then names and values of its special methods.
std::shared_ptr<Contents> special_contents(PyTypeObject* type) {
  auto contents = std::make_shared<Contents>();
  collect_slots(type, &contents->slots);
  PyObject* mro = type->tp_mro;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(mro); ++i) contents->items.push_back(PyTuple_GET_ITEM(mro, i));
  auto add = [&](PyObject* name) {
    contents->held.push_back(py::Ref::borrow(name));
    contents->items.push_back(name);
    contents->items.push_back(_PyType_Lookup(type, name));
  };
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(mro); ++i) {
    auto* base = (PyTypeObject*)PyTuple_GET_ITEM(mro, i);
    if (!(base->tp_flags & Py_TPFLAGS_HEAPTYPE)) continue;
    Py_ssize_t position = 0;
    PyObject *name, *value;
    while (PyDict_Next(mg_type_dict(base), &position, &name, &value))
      if (is_special_name(name) && value != Py_None && !PyUnicode_Check(value)) add(name);
  }
  for (PyObject* name : slotless_names()) add(name);
  for (PyObject* item : contents->items)
    if (item && (PyFunction_Check(item) || PyType_Check(item))) contents->owners.push_back(item);
  return contents;
}

bool verify_specials(PyTypeObject* type, const Contents& was, size_t base_count) {
  PyObject* mro = type->tp_mro;
  if (static_cast<size_t>(PyTuple_GET_SIZE(mro)) != base_count) return false;
  for (size_t i = 0; i < base_count; ++i)
    if (PyTuple_GET_ITEM(mro, i) != was.items[i]) return false;
  for (size_t i = base_count; i < was.items.size(); i += 2)
    if (_PyType_Lookup(type, was.items[i]) != was.items[i + 1]) return false;
  std::vector<const void*> now;
  collect_slots(type, &now);
  return now == was.slots;
}

// The keys of an OrderedDict in its own order; never runs Python code. Null: no error is set.
py::Ref keys_in_order(PyObject* dict) {
  py::Ref iterator = py::Ref::steal(PyODict_Type.tp_iter(dict));
  py::Ref list = iterator ? py::Ref::steal(PySequence_List(iterator.get())) : py::Ref();
  if (!list) PyErr_Clear();
  return list;
}

void place_list_items(PyObject* list, Contents& contents) {
  contents.buffer = ((PyListObject*)list)->ob_item;
  contents.places.clear();
  for (size_t i = 0; i < contents.items.size(); ++i) contents.places.push_back(((PyListObject*)list)->ob_item + i);
}

void place_set_items(PyObject* set, Contents& contents) {
  auto* table = ((PySetObject*)set)->table;
  contents.buffer = table;
  contents.places.clear();
  Py_ssize_t position = 0;
  PyObject* item;
  while (mg_set_next(set, &position, &item)) contents.places.push_back(&table[position - 1].key);
}

std::shared_ptr<Contents> list_contents(PyObject* list) {
  auto contents = std::make_shared<Contents>();
  auto* items = ((PyListObject*)list)->ob_item;
  contents->items.assign(items, items + PyList_GET_SIZE(list));
  return contents;
}

std::shared_ptr<Contents> dict_contents(PyObject* dict) {
  auto contents = std::make_shared<Contents>();
  Py_ssize_t position = 0;
  PyObject *key, *value;
  while (PyDict_Next(dict, &position, &key, &value)) {
    contents->items.push_back(key);
    contents->items.push_back(value);
  }
  return contents;
}

bool same_items(PyObject* const* now, size_t count, const Contents& was) {
  return count == was.items.size() && std::equal(now, now + count, was.items.begin());
}

bool verify_list(PyObject* list, Contents& was) {
  auto* items = ((PyListObject*)list)->ob_item;
  if (!same_items(items, static_cast<size_t>(PyList_GET_SIZE(list)), was)) return false;
  place_list_items(list, was);
  return true;
}

bool verify_items(PyObject* dict, const Contents& was) {
  Py_ssize_t position = 0;
  PyObject *key, *value;
  size_t i = 0;
  for (; PyDict_Next(dict, &position, &key, &value); i += 2)
    if (i == was.items.size() || was.items[i] != key || was.items[i + 1] != value) return false;
  return i == was.items.size();
}

bool verify_set(PyObject* set, Contents& was) {
  Py_ssize_t position = 0;
  PyObject* item;
  size_t i = 0;
  for (; mg_set_next(set, &position, &item); ++i)
    if (i == was.items.size() || was.items[i] != item) return false;
  if (i != was.items.size()) return false;
  place_set_items(set, was);
  return true;
}

bool verify_order(PyObject* dict, const Contents& was) {
  py::Ref now = keys_in_order(dict);
  return now && same_items(((PyListObject*)now.get())->ob_item, static_cast<size_t>(PyList_GET_SIZE(now.get())), was);
}

py::Ref context_value(PyObject* variable) {
  PyObject* value = nullptr;
  if (PyContextVar_Get(variable, nullptr, &value) < 0) PyErr_Clear();
  return py::Ref::steal(value);
}

py::Ref abc_token() {
  static PyObject* get_token = [] {
    py::Ref abc = py::Ref::steal(PyImport_ImportModule("_abc"));
    PyObject* function = abc ? PyObject_GetAttrString(abc.get(), "get_cache_token") : nullptr;
    if (!function) PyErr_Clear();
    return function;
  }();
  py::Ref token = get_token ? py::Ref::steal(PyObject_CallNoArgs(get_token)) : py::Ref();
  if (!token) PyErr_Clear();
  return token;
}

py::Ref computed(PyObject* descriptor, PyObject* owner) {
  py::Ref now = py::Ref::steal(Py_TYPE(descriptor)->tp_descr_get(descriptor, owner, (PyObject*)Py_TYPE(owner)));
  if (!now) PyErr_Clear();
  return now;
}

constexpr int kMaxNesting = 100;

bool is_called_from_c(PyTypeObject* type) {
  static PyObject* name = interned("__call__");
  PyObject* call = type->tp_call ? _PyType_Lookup(type, name) : nullptr;
  return call && Py_TYPE(call) == &PyWrapperDescr_Type;
}

bool has_object_members(PyTypeObject* type) {
  for (const PyMemberDef* member = type->tp_members; member && member->name; ++member)
    if (member->type == T_OBJECT || member->type == T_OBJECT_EX) return true;
  return false;
}

// Whether CPython alone compares objects of this class with atoms.
bool compares_plainly(PyTypeObject* type) {
  richcmpfunc compare = type->tp_richcompare;
  if (!compare || compare == PyBaseObject_Type.tp_richcompare) return true;
  for (PyTypeObject* known : {&PyUnicode_Type, &PyLong_Type, &PyFloat_Type, &PyComplex_Type, &PyBytes_Type,
                              &PyTuple_Type, &PyFrozenSet_Type, &PyType_Type})
    if (compare == known->tp_richcompare) return true;
  return false;
}

}  // namespace

PyObject* find_key(PyObject* dict, PyObject* key, bool* is_unclear) {
  if (mg_has_only_text_keys(dict)) {
    PyObject* value = PyUnicode_CheckExact(key) ? PyDict_GetItemWithError(dict, key) : nullptr;
    if (!value) PyErr_Clear();
    return value;
  }
  Py_hash_t hash = PyObject_Hash(key);
  if (hash == -1) PyErr_Clear();
  Py_ssize_t position = 0;
  PyObject *candidate, *value;
  while (mg_dict_next_of_hash(dict, hash, &position, &candidate, &value)) {
    if (same_value(candidate, key)) return value;
    if (!compares_plainly(Py_TYPE(candidate))) {
      if (is_unclear) *is_unclear = true;
      continue;
    }
    if (are_one_key(candidate, key)) return value;
  }
  return nullptr;
}

namespace {

// Compares no keys: a look-up might call their __eq__.
PyObject* find_entry(PyObject* dict, PyObject* key) {
  Py_ssize_t position = 0;
  PyObject *candidate, *value;
  while (PyDict_Next(dict, &position, &candidate, &value))
    if (candidate == key) return value;
  return nullptr;
}

}  // namespace

// ---- checking

bool Read::verify() {
  auto accept = [&](PyObject* now) {
    if (now == value) return true;
    if (!now || !held || exact || !same_atom(now, value)) return false;  // a value that is not held may be gone
    held = py::Ref::borrow(now);
    value = now;
    return true;
  };
  switch (access) {
    case Access::Field: return accept(field(owner, offset));
    case Access::Number: return field(owner, offset) == value;
    case Access::Key: {
      bool is_unclear = false;
      return PyDict_Check(owner) && accept(find_key(owner, key.get(), &is_unclear)) && !is_unclear;
    }
    case Access::Items: return PyDict_Check(owner) && verify_items(owner, *contents);
    case Access::Entry: return PyDict_Check(owner) && find_entry(owner, key.get()) == value;
    case Access::List: return PyList_Check(owner) && verify_list(owner, *contents);
    case Access::Name: return PyType_Check(owner) && _PyType_Lookup((PyTypeObject*)owner, key.get()) == value;
    case Access::Specials:
      return PyType_Check(owner) && verify_specials((PyTypeObject*)owner, *contents, static_cast<size_t>(offset));
    case Access::Set: return PySet_Check(owner) && verify_set(owner, *contents);
    case Access::Order: return PyODict_Check(owner) && verify_order(owner, *contents);
    case Access::Getter: return accept(computed(key.get(), owner).get());
    case Access::Context: return PyContextVar_CheckExact(owner) && context_value(owner).get() == value;
    case Access::AbcRegistry: {
      py::Ref now = abc_token();
      return now && same_value(now.get(), value);
    }
    case Access::RecursionLimit: return Py_GetRecursionLimit() == offset;
  }
  return false;
}

bool Read::same_as(const Read& other) const {
  if (access != other.access || owner != other.owner || offset != other.offset || exact != other.exact) return false;
  if (!same_value(key.get(), other.key.get()) || !contents != !other.contents) return false;
  if (contents) return contents->items == other.contents->items && contents->slots == other.contents->slots;
  return value == other.value || (!exact && held && other.held && same_atom(value, other.value));
}

int Read::traverse(visitproc visit, void* arg) const {
  Py_VISIT(key.get());
  Py_VISIT(held.get());
  Py_VISIT(root.get());
  if (!contents) return 0;
  for (const py::Ref& item : contents->held) Py_VISIT(item.get());
  return 0;
}

// ---- noting

Reads::Reads() { tensors_.checks = runtime::tensor_plug().tensor_checks(); }

void Reads::expect_many() { reads_.reserve(kExpectedReads); }

namespace {

uint64_t version_of(Access access, PyObject* owner) {
  switch (access) {
    case Access::Key:
    case Access::Items:
    case Access::Entry: {
      const uint64_t* word = mg_dict_version_word(owner);
      return word ? *word : 0;
    }
    case Access::Name:
    case Access::Specials:
      return mg_type_version((PyTypeObject*)owner) ? *mg_type_version_word((PyTypeObject*)owner) : 0;
    default: return 0;
  }
}

}  // namespace

void Reads::add(Access access, PyObject* owner, PyObject* value, PyObject* key) {
  if (owner) keep(owner);
  Read& read = note(access, owner, value);
  read.version = version_of(access, owner);
  read.key = py::Ref::borrow(key);
  hold_if_needed();
}

Read& Reads::note(Access access, PyObject* owner, PyObject* value) {
  Read& read = reads_.emplace_back();
  read.access = access;
  read.owner = owner;
  read.value = value;
  return read;
}

void Reads::add_contents(Access access, PyObject* owner, std::shared_ptr<Contents> contents, int32_t offset) {
  keep(owner);
  reads_.push_back({access, false, offset, version_of(access, owner), owner, nullptr, nullptr, {}, {}, {}, contents});
  if (access == Access::Specials) return;
  for (PyObject* item : contents->items)
    if (must_hold(item)) contents->held.push_back(py::Ref::borrow(item));
}

void Reads::add_type(PyObject* owner) {
  if (!typed_.insert(owner)) return;
  keep(owner);
  Read& read = note(Access::Field, owner, (PyObject*)Py_TYPE(owner));
  read.fixed = !(Py_TYPE(owner)->tp_flags & Py_TPFLAGS_HEAPTYPE) && !PyModule_Check(owner);
  read.offset = offsetof(PyObject, ob_type);
  read.label = "__class__";
}

void Reads::add_field(PyObject* owner, ptrdiff_t offset, const char* label, bool fixed) {
  add_type(owner);
  Read& read = note(Access::Field, owner, field(owner, offset));
  read.fixed = fixed;
  read.offset = static_cast<int32_t>(offset);
  read.label = label;
  hold_if_needed();
}

void Reads::add_dict_field(PyObject* owner, ptrdiff_t offset) {
  add_field(owner, offset, "__dict__");
  reads_.back().only_dicts = true;
}

void Reads::add_number(PyObject* owner, ptrdiff_t offset, bool fixed) {
  add_type(owner);
  Read& read = note(Access::Number, owner, field(owner, offset));
  read.fixed = fixed;
  read.offset = static_cast<int32_t>(offset);
}

// The objects that a property, partial, bound method or the like is made of.
void Reads::add_members(PyObject* object) {
  bool fixed = !(Py_TYPE(object)->tp_flags & Py_TPFLAGS_HEAPTYPE);  // partial has __setstate__
  for (const PyMemberDef* member = Py_TYPE(object)->tp_members; member && member->name; ++member)
    if (member->type == T_OBJECT || member->type == T_OBJECT_EX) add_field(object, member->offset, member->name, fixed);
}

Reads::Holding Reads::holding_of(PyObject* value) {
  PyTypeObject* type = Py_TYPE(value);
  auto [holding, is_new] = holdings_.insert(type);
  if (!is_new) return *holding;
  Holding answer = Holding::Nothing;
  if (PyTuple_Check(value))
    answer = Holding::Tuple;
  else if (PyCode_Check(value) || PySlice_Check(value) || PyFrozenSet_CheckExact(value) || PyLong_Check(value) ||
           PyFloat_Check(value) || PyComplex_Check(value) || PyUnicode_Check(value) || PyBytes_Check(value))
    answer = Holding::Value;  // also of a class built on these, whose contents have no guards of their own
  else if (PyFunction_Check(value) || PyType_Check(value) || PyModule_Check(value))
    answer = Holding::Nothing;
  else if (PyCFunction_Check(value))
    answer = Holding::CFunction;
  else if (type == &PyProperty_Type || type == &PyStaticMethod_Type || type == &PyClassMethod_Type)
    answer = Holding::Members;
  else if (is_called_from_c(type))
    answer = has_object_members(type) ? Holding::Members : Holding::Value;
  *holdings_.insert(type).first = answer;
  return answer;
}

// Whether the guards must own this value. Values that are only compared they need not: if such an object dies, its
// owner shows another one, or a new object at the same address, which is as good. Those that the call may have looked
// into are owned if they cannot lead to the user's objects; otherwise what they are made of is read, too.
bool Reads::must_hold(PyObject* value) {
  if (is_atom(value) || PyFloat_CheckExact(value)) return true;
  Holding holding = holding_of(value);
  if (holding == Holding::Nothing) return false;
  if (holding == Holding::Value || holds_only_atoms(value)) return true;
  PyObject* self = holding == Holding::CFunction ? PyCFunction_GET_SELF(value) : nullptr;
  if (holding == Holding::CFunction && (!self || PyModule_Check(self) || PyType_Check(self))) return true;
  if (typed_.contains(value)) return false;  // was opened before
  if (nesting_ == kMaxNesting) return true;
  ++nesting_;
  if (holding == Holding::Members) {
    add_members(value);
  } else if (holding == Holding::Tuple) {
    add_number(value, offsetof(PyVarObject, ob_size), true);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(value); ++i)
      add_field(value, offsetof(PyTupleObject, ob_item) + static_cast<size_t>(i) * sizeof(PyObject*), nullptr, true);
  } else {
    add_number(value, offsetof(PyCFunctionObject, m_ml), true);
    add_field(value, offsetof(PyCFunctionObject, m_self), "__self__", true);
  }
  --nesting_;
  return false;
}

void Reads::hold_if_needed() {
  size_t index = reads_.size() - 1;
  PyObject* value = reads_[index].value;
  if (value && must_hold(value)) reads_[index].held = py::Ref::borrow(value);
}

bool Reads::read_key(PyObject* dict, PyObject* key) {
  if (!pairs_.insert(dict, key)) return false;
  PyObject* value = PyDict_GetItemWithError(dict, key);
  if (!value) PyErr_Clear();
  add(Access::Key, dict, value, key);
  return true;
}

bool Reads::read_key(PyObject* dict, PyObject* key, PyObject* value) {
  if (!pairs_.insert(dict, key)) return false;
  add(Access::Key, dict, value, key);
  return true;
}

void Reads::read_items(PyObject* dict) {
  if (!whole_.insert(dict)) return;
  add_contents(Access::Items, dict, dict_contents(dict));
  // An OrderedDict has an order of its own, which versions do not show.
  if (PyODict_Check(dict) && PyDict_GET_SIZE(dict) > 1)
    if (py::Ref order = keys_in_order(dict)) add_contents(Access::Order, dict, list_contents(order.get()));
}

void Reads::read_cache(PyObject* dict, PyObject* key, PyObject* found) {
  if (key) {
    if (pairs_.insert(dict, key)) add(Access::Entry, dict, find_entry(dict, key), key);
  } else if (whole_.insert(dict)) {
    auto contents = dict_contents(dict);
    for (PyObject* item : contents->items) contents->held.push_back(py::Ref::borrow(item));
    add_contents(Access::Items, dict, std::move(contents));
  }
  // A cache of limited size keeps results in links, which it uses again for other results.
  Py_ssize_t position = 0;
  PyObject *each, *link;
  while (PyDict_Next(dict, &position, &each, &link)) {
    ptrdiff_t place = mg_lru_cache_result(link);
    bool has_it = place && (!key || each == key) && field(link, place) == found;
    if (has_it && pairs_.insert(link, found)) add_field(link, place, "result");
  }
}

void Reads::read_list(PyObject* list) {
  if (whole_.insert(list)) add_contents(Access::List, list, list_contents(list));
}

void Reads::read_set(PyObject* set) {
  if (!whole_.insert(set)) return;
  auto contents = std::make_shared<Contents>();
  Py_ssize_t position = 0;
  PyObject* item;
  while (mg_set_next(set, &position, &item)) contents->items.push_back(item);
  add_contents(Access::Set, set, std::move(contents));
}

void Reads::read_cell(PyObject* cell, PyObject* value) {
  if (!whole_.insert(cell)) return;
  add_type(cell);
  Read& read = note(Access::Field, cell, value);
  read.offset = offsetof(PyCellObject, ob_ref);
  read.label = "cell_contents";
  hold_if_needed();
}

void Reads::read_instance(PyObject* object) {
  if (!instances_.insert(object)) return;
  add_type(object);
  if (PyObject** slot = mg_dict_slot(object))
    add_dict_field(object, reinterpret_cast<char*>(slot) - reinterpret_cast<char*>(object));
}

void Reads::read_class(PyObject* object) {
  add_type(object);
  if (PyModule_Check(object) && instances_.insert(object)) add_dict_field(object, mg_module_dict_offset());
}

void Reads::read_type(PyTypeObject* type, PyObject* name) {
  if (!pairs_.insert(type, name)) return;
  auto* object = (PyObject*)type;
  if ((type->tp_flags & Py_TPFLAGS_HEAPTYPE) && classes_.insert(object)) {
    for (PyObject* hook : attribute_hooks()) add(Access::Name, object, _PyType_Lookup(type, hook), hook);
  }
  add(Access::Name, object, _PyType_Lookup(type, name), name);
}

void Reads::read_specials(PyTypeObject* type) {
  if (!type->tp_mro || !whole_.insert(type)) return;  // without bases yet, it is a class in the making
  add_contents(Access::Specials, (PyObject*)type, runtime::process_state().specials.get(type, special_contents),
               static_cast<int32_t>(PyTuple_GET_SIZE(type->tp_mro)));
}

bool Reads::read_function(PyFunctionObject* function) {
  auto* object = (PyObject*)function;
  if (!whole_.insert(object)) return false;
  add_field(object, offsetof(PyFunctionObject, func_code), "__code__");
  add_field(object, offsetof(PyFunctionObject, func_defaults), "__defaults__");
  add_field(object, offsetof(PyFunctionObject, func_kwdefaults), "__kwdefaults__");
  add_field(object, offsetof(PyFunctionObject, func_closure), "__closure__", true);
  add_field(object, offsetof(PyFunctionObject, func_globals), "__globals__", true);
  add_field(object, offsetof(PyFunctionObject, func_builtins), "__builtins__", true);
  if (function->func_kwdefaults) read_items(function->func_kwdefaults);
  return true;
}

// The attributes of functions that look computed but are fields.
bool Reads::read_function_slot(PyObject* function, PyObject* descriptor) {
  PyObject* name = ((PyDescrObject*)descriptor)->d_name;
  auto is = [&](const char* text) { return PyUnicode_CompareWithASCIIString(name, text) == 0; };
  bool is_field = is("__code__") || is("__defaults__") || is("__kwdefaults__") || is("__name__") || is("__qualname__");
  if (!is_field) return false;
  read_function((PyFunctionObject*)function);
  if (is("__name__")) add_field(function, offsetof(PyFunctionObject, func_name), "__name__");
  if (is("__qualname__")) add_field(function, offsetof(PyFunctionObject, func_qualname), "__qualname__");
  return true;
}

void Reads::read_slot(PyObject* object, PyObject* descriptor, PyObject* value) {
  if (!pairs_.insert(object, descriptor)) return;
  if (Py_TYPE(descriptor) == &PyMemberDescr_Type) {
    const PyMemberDef* member = ((PyMemberDescrObject*)descriptor)->d_member;
    if (member->type == T_OBJECT_EX || member->type == T_OBJECT) return add_field(object, member->offset, member->name);
  }
  if (PyFunction_Check(object) && read_function_slot(object, descriptor)) return;
  add_type(object);
  add(Access::Getter, object, value, descriptor);
  reads_.back().held = py::Ref::borrow(value);
}

void Reads::read_context(PyObject* variable, PyObject* value) {
  if (!whole_.insert(variable)) return;
  add(Access::Context, variable, value);
  reads_.back().held = py::Ref::borrow(value);
}

void Reads::read_abc_registry() {
  if (std::exchange(abc_registry_read_, true)) return;
  py::Ref token = abc_token();
  add(Access::AbcRegistry, nullptr, token.get());
}

void Reads::read_recursion_limit() {
  if (std::exchange(recursion_limit_read_, true)) return;
  add(Access::RecursionLimit, nullptr, nullptr);
  reads_.back().offset = Py_GetRecursionLimit();
}

void Reads::read_length(PyObject* container) {
  if (PyDict_Check(container)) return add_number(container, offsetof(PyDictObject, ma_used));
  if (PyAnySet_Check(container)) return add_number(container, offsetof(PySetObject, used));
  add_number(container, offsetof(PyVarObject, ob_size));
}

void Reads::read_version(PyTypeObject* type) {
  auto* object = (PyObject*)type;
  add_number(object, reinterpret_cast<const char*>(mg_type_version_word(type)) - reinterpret_cast<char*>(type));
}

void Reads::read_reference(PyObject* reference) { add_number(reference, offsetof(PyWeakReference, wr_object)); }

void Reads::read_referent(PyObject* reference) {
  if (pairs_.insert(reference, reference)) add_field(reference, offsetof(PyWeakReference, wr_object), kReferent);
}

bool Reads::read_root(PyObject* root) {
  bool hold = must_hold(root);
  add_type(root);
  return hold;
}

void Reads::add_state_tensor(PyObject* tensor) {
  if (!state_tensor_set_.insert(tensor)) return;
  kept_tensors_.push_back(py::Ref::borrow(tensor));
  tensors_.objects.push_back(tensor);
  tensors_.checks->add(tensor, {});
}

namespace {

// Whether the check of this read, in its turn, vouches for the values that it found.
bool vouches(const Read& read) {
  switch (read.access) {
    case Access::Field:
    case Access::Key:
    case Access::Items:
    case Access::Entry:
    case Access::List:
    case Access::Set:
    case Access::Name:
    case Access::Specials: return true;
    default: return false;
  }
}

}  // namespace

bool Reads::pin_identity(PyObject* value) {
  for (Read& read : reads_) {
    if (read.value != value) continue;
    if (!vouches(read)) return false;  // it is computed anew each time
    read.exact = true;
  }
  return true;
}

bool Reads::pins(PyObject* object) {
  for (; pinning_reads_ < reads_.size(); ++pinning_reads_) {
    const Read& read = reads_[pinning_reads_];
    if (!vouches(read)) continue;
    if (read.value) pinned_.insert(read.value);
    if (!read.contents) continue;
    for (PyObject* item : read.contents->items)
      if (item) pinned_.insert(item);
  }
  return pinned_.contains(object);
}

// ---- ending

void Reads::forget_unreachable() {
  for (;;) {
    PointerSet dead;
    bool any = false;
    for (bool changed = true; changed;) {
      changed = false;
      for (py::Ref& kept : kept_) {
        if (!kept || Py_REFCNT(kept.get()) != 1) continue;
        dead.insert(kept.get());
        kept = {};
        changed = any = true;
      }
    }
    if (!any) return;
    // What these reads held may be nothing but kept now, too.
    std::erase_if(reads_, [&](const Read& read) { return dead.contains(read.owner); });
  }
}

void Reads::find_roots(const std::vector<PyObject*>& roots) {
  PointerSet known;
  known.reserve(reads_.size() * 2);
  for (PyObject* root : roots) known.insert(root);
  auto lives_forever = [](PyObject* object) {
    return PyType_Check(object) && !(((PyTypeObject*)object)->tp_flags & Py_TPFLAGS_HEAPTYPE);
  };
  for (Read& read : reads_) {
    if (read.owner && known.insert(read.owner) && !lives_forever(read.owner)) read.root = py::Ref::borrow(read.owner);
    if (!vouches(read)) continue;
    if (read.value) known.insert(read.value);
    if (!read.contents) continue;
    for (PyObject* item : read.access == Access::Specials ? read.contents->owners : read.contents->items)
      known.insert(item);
  }
  for (PyObject* tensor : tensors_.objects)
    if (known.insert(tensor)) tensors_.roots.push_back(py::Ref::borrow(tensor));
}

bool Reads::hold_the_last_reference() {
  return std::any_of(kept_.begin(), kept_.end(),
                     [this](const py::Ref& kept) { return Py_REFCNT(kept.get()) == 1 && pins(kept.get()); });
}

std::vector<Read> Reads::finish(const std::vector<PyObject*>& roots, const PointerSet& changed) {
  forget_unreachable();
  find_roots(roots);
  kept_.clear();
  for (Read& read : reads_) {
    if (!read.owner || !changed.contains(read.owner)) continue;
    read.outdated = true;
    read.version = 0;
  }
  kept_tensors_.clear();
  return std::move(reads_);
}

}  // namespace magneto::guard
