// Guards on state: notes made while watching, and the check before each compiled call.
#include "guard/guards.h"

#include <structmember.h>

#include <algorithm>

#include "cpython/cpython.h"
#include "guard/arguments.h"

namespace magneto::guard {

using runtime::tensor_plug;

namespace {

py::Ref abc_token() {
  py::Ref abc = py::Ref::steal(PyImport_ImportModule("_abc"));
  py::Ref token = abc ? py::Ref::steal(PyObject_CallMethod(abc.get(), "get_cache_token", nullptr)) : py::Ref();
  if (!token) PyErr_Clear();
  return token;
}

PyObject* get_key(PyObject* dict, PyObject* key) {
  PyObject* value = PyDict_GetItemWithError(dict, key);
  if (!value) PyErr_Clear();
  return value;
}

std::string quoted(PyObject* key) {
  if (!PyUnicode_Check(key)) return "a key";
  const char* text = PyUnicode_AsUTF8(key);
  if (!text) PyErr_Clear();
  return text ? "'" + std::string(text) + "'" : "a key";
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

// The members of a set, or the keys of an OrderedDict in its own order; never runs Python code. Null: no error is set.
py::Ref items_in_order(PyObject* object) {
  PyTypeObject* type = PyODict_Check(object) ? &PyODict_Type : &PySet_Type;
  py::Ref iterator = py::Ref::steal(type->tp_iter(object));
  py::Ref list = iterator ? py::Ref::steal(PySequence_List(iterator.get())) : py::Ref();
  if (!list) PyErr_Clear();
  return list;
}

std::vector<py::Ref> to_vector(PyObject* list) {
  std::vector<py::Ref> items;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); ++i) items.push_back(py::Ref::borrow(PyList_GET_ITEM(list, i)));
  return items;
}

// Special methods that CPython looks up by name, or whose slot does not show that they were replaced.
const std::vector<PyObject*>& slotless_names() {
  static const auto& names = *[] {
    auto* all = new std::vector<PyObject*>;
    for (const char* name :
         {"__reversed__", "__format__", "__missing__", "__class_getitem__", "__instancecheck__", "__subclasscheck__",
          "__length_hint__", "__round__", "__trunc__", "__floor__", "__ceil__", "__bytes__", "__complex__",
          "__getitem__", "__setitem__", "__contains__", "__get__", "__set__", "keys"})
      all->push_back(PyUnicode_InternFromString(name));
    return all;
  }();
  return names;
}

}  // namespace

Guards::Guards() : state_checks_(tensor_plug().tensor_checks()) {}

Guards::DictGuard& Guards::dict_guard(PyObject* dict) {
  auto [index, is_new] = dict_index_.insert(dict);
  if (is_new) {
    *index = static_cast<uint32_t>(dicts_.size());
    dicts_.emplace_back();
    dicts_.back().dict = py::Ref::borrow(dict);
  }
  return dicts_[*index];
}

Guards::TypeGuard& Guards::type_guard(PyTypeObject* type) {
  auto [index, is_new] = type_index_.insert(type);
  if (is_new) {
    *index = static_cast<uint32_t>(types_.size());
    types_.emplace_back();
    types_.back().type = py::Ref::borrow((PyObject*)type);
    // By name: CPython replaces the slot once it has found out that one of them is missing.
    static PyObject* const names[] = {PyUnicode_InternFromString("__getattribute__"),
                                      PyUnicode_InternFromString("__getattr__")};
    if (type->tp_flags & Py_TPFLAGS_HEAPTYPE)
      for (PyObject* name : names)
        types_.back().names.push_back({py::Ref::borrow(name), py::Ref::borrow(_PyType_Lookup(type, name))});
  }
  return types_[*index];
}

bool Guards::read_key(PyObject* dict, PyObject* key) {
  if (!pairs_.insert(dict, key)) return false;
  dict_guard(dict).keys.push_back({py::Ref::borrow(key), py::Ref::borrow(get_key(dict, key))});
  return true;
}

void Guards::read_items(PyObject* dict) {
  DictGuard& guard = dict_guard(dict);
  if (guard.whole) return;
  guard.whole = true;
  Py_ssize_t position = 0;
  PyObject *key, *value;
  while (PyDict_Next(dict, &position, &key, &value))
    guard.items.push_back({py::Ref::borrow(key), py::Ref::borrow(value)});
  // An OrderedDict has an order of its own, which versions do not show.
  if (!PyODict_Check(dict) || PyDict_GET_SIZE(dict) < 2) return;
  py::Ref order = items_in_order(dict);
  if (order) sets_.push_back({py::Ref::borrow(dict), to_vector(order.get())});
}

void Guards::read_list(PyObject* list) {
  if (!seen_.insert(list)) return;
  lists_.push_back({py::Ref::borrow(list), {}});
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); ++i)
    lists_.back().items.push_back(py::Ref::borrow(PyList_GET_ITEM(list, i)));
}

void Guards::read_set(PyObject* set) {
  if (!seen_.insert(set)) return;
  py::Ref items = items_in_order(set);
  if (items) sets_.push_back({py::Ref::borrow(set), to_vector(items.get())});
}

void Guards::read_cell(PyObject* cell) {
  if (!seen_.insert(cell)) return;
  cells_.push_back({py::Ref::borrow(cell), py::Ref::borrow(PyCell_GET(cell))});
}

void Guards::read_instance(PyObject* object) {
  if (!seen_instances_.insert(object)) return;
  PyObject** slot = mg_dict_slot(object);
  instances_.push_back({py::Ref::borrow(object), Py_TYPE(object), slot, slot ? *slot : nullptr});
}

void Guards::read_class(PyObject* object) {
  if (seen_instances_.insert(object))
    instances_.push_back({py::Ref::borrow(object), Py_TYPE(object), nullptr, nullptr});
}

void Guards::read_type(PyTypeObject* type, PyObject* name) {
  if (!pairs_.insert(type, name)) return;
  PyObject* value = _PyType_Lookup(type, name);
  type_guard(type).names.push_back({py::Ref::borrow(name), py::Ref::borrow(value)});
}

void Guards::read_specials(PyTypeObject* type) {
  TypeGuard& guard = type_guard(type);
  if (guard.mro) return;
  guard.mro = py::Ref::borrow(type->tp_mro);
  collect_slots(type, &guard.slots);
  PyObject* mro = type->tp_mro;
  std::vector<PyObject*> names;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(mro); ++i) {
    auto* base = (PyTypeObject*)PyTuple_GET_ITEM(mro, i);
    if (!(base->tp_flags & Py_TPFLAGS_HEAPTYPE)) continue;
    Py_ssize_t position = 0;
    PyObject *name, *value;
    while (PyDict_Next(base->tp_dict, &position, &name, &value)) {
      if (PyUnicode_Check(name) && PyUnicode_GET_LENGTH(name) > 4 && PyUnicode_READ_CHAR(name, 0) == '_' &&
          PyUnicode_READ_CHAR(name, 1) == '_' && value != Py_None && !PyUnicode_Check(value))
        names.push_back(name);
    }
  }
  for (PyObject* name : names) read_type(type, name);
  for (PyObject* name : slotless_names()) read_type(type, name);
}

bool Guards::read_function(PyFunctionObject* function) {
  if (!seen_.insert(function)) return false;
  functions_.push_back({py::Ref::borrow((PyObject*)function), py::Ref::borrow(function->func_code),
                        py::Ref::borrow(function->func_defaults), py::Ref::borrow(function->func_kwdefaults)});
  if (function->func_kwdefaults) read_items(function->func_kwdefaults);
  return true;
}

void Guards::read_slot(PyObject* object, PyObject* descriptor, PyObject* value) {
  if (!pairs_.insert(object, descriptor)) return;
  PyObject** place = nullptr;
  if (Py_TYPE(descriptor) == &PyMemberDescr_Type) {
    const PyMemberDef* member = ((PyMemberDescrObject*)descriptor)->d_member;
    if (member->type == T_OBJECT_EX || member->type == T_OBJECT)
      place = reinterpret_cast<PyObject**>(reinterpret_cast<char*>(object) + member->offset);
  }
  slots_.push_back({py::Ref::borrow(object), py::Ref::borrow(descriptor), py::Ref::borrow(value), place});
}

void Guards::read_context(PyObject* variable, PyObject* value) {
  if (!seen_.insert(variable)) return;
  context_.push_back({py::Ref::borrow(variable), py::Ref::borrow(value)});
}

void Guards::read_abc_registry() {
  if (!abc_token_) abc_token_ = abc_token();
}

void Guards::read_recursion_limit() { recursion_limit_ = Py_GetRecursionLimit(); }

void Guards::add_state_tensor(PyObject* tensor) {
  if (!state_tensor_set_.insert(tensor)) return;
  state_tensors_.push_back(py::Ref::borrow(tensor));
  state_tensor_pointers_.push_back(tensor);
  state_checks_->add(tensor);
}

bool Guards::pins(PyObject* object) const {
  auto in = [&](const std::vector<Entry>& entries) {
    return std::any_of(entries.begin(), entries.end(), [&](const Entry& e) { return e.value.get() == object; });
  };
  auto in_list = [&](const ListGuard& guard) {
    return std::any_of(guard.items.begin(), guard.items.end(), [&](const py::Ref& i) { return i.get() == object; });
  };
  return std::any_of(dicts_.begin(), dicts_.end(), [&](auto& g) { return in(g.keys) || in(g.items); }) ||
         std::any_of(types_.begin(), types_.end(), [&](auto& g) { return in(g.names); }) || in(cells_) ||
         in(context_) || std::any_of(lists_.begin(), lists_.end(), in_list) ||
         std::any_of(sets_.begin(), sets_.end(), in_list) ||
         std::any_of(slots_.begin(), slots_.end(), [&](auto& g) { return g.value.get() == object; });
}

// Objects that only the notes keep alive were made by the call itself; nobody can change or read them again.
void Guards::drop_unreachable() {
  auto only_ours = [](const py::Ref& ref) { return Py_REFCNT(ref.get()) == 1; };
  for (size_t before = 0, now = size(); before != now;) {
    before = now;
    std::erase_if(instances_, [&](auto& g) { return only_ours(g.object); });
    std::erase_if(dicts_, [&](auto& g) { return only_ours(g.dict); });
    std::erase_if(lists_, [&](auto& g) { return only_ours(g.list); });
    std::erase_if(sets_, [&](auto& g) { return only_ours(g.list); });
    std::erase_if(cells_, [&](auto& g) { return only_ours(g.key); });
    std::erase_if(functions_, [&](auto& g) { return only_ours(g.function); });
    std::erase_if(slots_, [&](auto& g) { return only_ours(g.object); });
    now = size();
  }
}

void Guards::freeze(std::unique_ptr<runtime::GlobalState> global_state) {
  dict_index_.clear();
  type_index_.clear();
  pairs_.clear();
  seen_.clear();
  seen_instances_.clear();
  state_tensor_set_.clear();
  drop_unreachable();
  for (DictGuard& guard : dicts_) guard.version = 0;
  global_state_ = std::move(global_state);
}

bool Guards::DictGuard::holds() const {
  PyObject* d = dict.get();
  if (whole) {
    Py_ssize_t position = 0;
    PyObject *key, *value;
    size_t i = 0;
    while (PyDict_Next(d, &position, &key, &value)) {
      if (i == items.size() || items[i].key.get() != key || items[i].value.get() != value) return false;
      ++i;
    }
    if (i != items.size()) return false;
  }
  for (const Entry& entry : keys) {
    PyObject* value = get_key(d, entry.key.get());
    if (value != entry.value.get() && !(value && entry.value && same_atom(value, entry.value.get()))) return false;
  }
  return true;
}

bool Guards::DictGuard::recheck() {
  if (!holds()) return false;
  version = mg_dict_version(dict.get());
  return true;
}

bool Guards::TypeGuard::holds() const {
  auto* t = (PyTypeObject*)type.get();
  for (const Entry& entry : names)
    if (_PyType_Lookup(t, entry.key.get()) != entry.value.get()) return false;
  if (!mro) return true;
  if (t->tp_mro != mro.get()) return false;
  std::vector<const void*> now;
  collect_slots(t, &now);
  return now == slots;
}

bool Guards::TypeGuard::recheck() {
  if (!holds()) return false;
  version = mg_type_version((PyTypeObject*)type.get());
  return true;
}

bool Guards::ListGuard::holds() const {
  PyObject* object = list.get();
  if (PyList_Check(object)) {
    if (static_cast<size_t>(PyList_GET_SIZE(object)) != items.size()) return false;
    for (size_t i = 0; i < items.size(); ++i)
      if (PyList_GET_ITEM(object, i) != items[i].get()) return false;
    return true;
  }
  py::Ref now = items_in_order(object);
  if (!now || static_cast<size_t>(PyList_GET_SIZE(now.get())) != items.size()) return false;
  for (size_t i = 0; i < items.size(); ++i)
    if (PyList_GET_ITEM(now.get(), i) != items[i].get()) return false;
  return true;
}

const char* Guards::first_failure() { return check(nullptr); }

std::string Guards::explain() {
  std::string why;
  const char* kind = check(&why);
  return kind ? why : "";
}

// The one list of what is checked. `why` is only filled on the way out.
const char* Guards::check(std::string* why) {
  auto fail = [&](const char* kind, auto&& text) {
    if (why) *why = text();
    return kind;
  };
  if (global_state_ && !global_state_->holds()) return fail("global state", [&] { return global_state_->explain(); });
  for (DictGuard& guard : dicts_) {
    if (mg_dict_version(guard.dict.get()) == guard.version || guard.recheck()) [[likely]]
      continue;
    return fail("dict", [&] {
      for (const Entry& entry : guard.keys)
        if (get_key(guard.dict.get(), entry.key.get()) != entry.value.get())
          return quoted(entry.key.get()) + " was changed";
      return std::string("the contents of a dict were changed");
    });
  }
  for (const InstanceGuard& guard : instances_) {
    if (Py_TYPE(guard.object.get()) == guard.type && (!guard.slot || *guard.slot == guard.dict)) [[likely]]
      continue;
    return fail("instance",
                [&] { return "the class or __dict__ of a " + std::string(guard.type->tp_name) + " was replaced"; });
  }
  for (TypeGuard& guard : types_) {
    unsigned version = mg_type_version((PyTypeObject*)guard.type.get());
    if ((version && version == guard.version) || guard.recheck()) [[likely]]
      continue;
    return fail("type", [&] {
      auto* type = (PyTypeObject*)guard.type.get();
      for (const Entry& entry : guard.names)
        if (_PyType_Lookup(type, entry.key.get()) != entry.value.get())
          return quoted(entry.key.get()) + " of class " + type->tp_name + " was changed";
      return "a special method of class " + std::string(type->tp_name) + " was added or removed";
    });
  }
  for (const FunctionGuard& guard : functions_) {
    auto* function = (PyFunctionObject*)guard.function.get();
    if (function->func_code == guard.code.get() && function->func_defaults == guard.defaults.get() &&
        function->func_kwdefaults == guard.keyword_defaults.get()) [[likely]]
      continue;
    return fail("function", [&] {
      return "the code or defaults of function " + quoted(function->func_qualname) + " were replaced";
    });
  }
  for (const Entry& entry : cells_) {
    if (PyCell_GET(entry.key.get()) == entry.value.get()) [[likely]]
      continue;
    return fail("cell", [&] { return std::string("a variable of an enclosing function was changed"); });
  }
  for (const ListGuard& guard : lists_) {
    if (guard.holds()) [[likely]]
      continue;
    return fail("list", [&] { return std::string("the contents of a list were changed"); });
  }
  for (const ListGuard& guard : sets_) {
    if (guard.holds()) [[likely]]
      continue;
    return fail("set", [&] { return std::string("the contents of a set were changed"); });
  }
  for (const SlotGuard& guard : slots_) {
    if (guard.place && *guard.place == guard.value.get()) [[likely]]
      continue;
    PyObject* descriptor = guard.descriptor.get();
    py::Ref now = py::Ref::steal(
        Py_TYPE(descriptor)->tp_descr_get(descriptor, guard.object.get(), (PyObject*)Py_TYPE(guard.object.get())));
    if (!now) PyErr_Clear();
    if (now.get() == guard.value.get() || (now && guard.value && same_atom(now.get(), guard.value.get()))) continue;
    return fail("attribute", [&] {
      return "an attribute of a " + std::string(Py_TYPE(guard.object.get())->tp_name) + " was changed";
    });
  }
  for (const Entry& entry : context_) {
    PyObject* value = nullptr;
    if (PyContextVar_Get(entry.key.get(), nullptr, &value) < 0) PyErr_Clear();
    py::Ref now = py::Ref::steal(value);
    if (now.get() == entry.value.get()) continue;
    return fail("context variable", [&] { return std::string("a context variable was changed"); });
  }
  if (abc_token_) {
    py::Ref now = abc_token();
    if (!now || !same_atom(now.get(), abc_token_.get()))
      return fail("abc", [&] { return std::string("a class was registered with an abstract base class"); });
  }
  if (recursion_limit_ && recursion_limit_ != Py_GetRecursionLimit())
    return fail("recursion limit", [&] { return std::string("the recursion limit was changed"); });
  ptrdiff_t bad = state_checks_->first_mismatch(state_tensor_pointers_.data());
  if (bad >= 0)
    return fail("tensor", [&] {
      return "a parameter, buffer or other tensor in use is " +
             state_checks_->explain(static_cast<size_t>(bad), state_tensor_pointers_[bad]);
    });
  return nullptr;
}

size_t Guards::size() const {
  return dicts_.size() + instances_.size() + types_.size() + functions_.size() + cells_.size() + lists_.size() +
         sets_.size() + slots_.size() + context_.size() + state_tensors_.size();
}

void Guards::describe(std::vector<std::string>* lines) const {
  size_t keys = 0, names = 0;
  for (const DictGuard& guard : dicts_) keys += guard.keys.size() + guard.items.size();
  for (const TypeGuard& guard : types_) names += guard.names.size();
  auto add = [&](size_t count, const std::string& what) {
    if (count) lines->push_back(std::to_string(count) + " " + what);
  };
  add(dicts_.size(), "dicts hold the " + std::to_string(keys) + " values that were read");
  add(instances_.size(), "objects have the class and __dict__ they had");
  add(types_.size(), "classes hold the " + std::to_string(names) + " attributes that were read");
  add(functions_.size(), "functions have the code and defaults they had");
  add(cells_.size(), "closure variables are unchanged");
  add(lists_.size() + sets_.size(), "lists and sets hold the same items");
  add(slots_.size(), "other attributes are unchanged");
  add(context_.size(), "context variables are unchanged");
  add(state_tensors_.size(), "parameters, buffers and other tensors match");
  if (abc_token_) lines->push_back("no class was registered with an abstract base class");
  if (recursion_limit_) lines->push_back("the recursion limit is unchanged");
  if (global_state_) lines->push_back("torch's global state is unchanged");
}

int Guards::traverse(visitproc visit, void* arg) const {
  auto entries = [&](const std::vector<Entry>& list) {
    for (const Entry& entry : list) {
      Py_VISIT(entry.key.get());
      Py_VISIT(entry.value.get());
    }
    return 0;
  };
  auto refs = [&](std::initializer_list<const py::Ref*> list) {
    for (const py::Ref* ref : list) Py_VISIT(ref->get());
    return 0;
  };
  int stop = 0;
  for (auto& g : dicts_)
    if ((stop = refs({&g.dict})) || (stop = entries(g.keys)) || (stop = entries(g.items))) return stop;
  for (auto& g : instances_)
    if ((stop = refs({&g.object}))) return stop;
  for (auto& g : types_)
    if ((stop = refs({&g.type, &g.mro})) || (stop = entries(g.names))) return stop;
  for (auto& g : functions_)
    if ((stop = refs({&g.function, &g.code, &g.defaults, &g.keyword_defaults}))) return stop;
  for (auto* lists : {&lists_, &sets_})
    for (auto& g : *lists) {
      Py_VISIT(g.list.get());
      for (const py::Ref& item : g.items) Py_VISIT(item.get());
    }
  for (auto& g : slots_)
    if ((stop = refs({&g.object, &g.descriptor, &g.value}))) return stop;
  if ((stop = entries(cells_)) || (stop = entries(context_))) return stop;
  for (const py::Ref& tensor : state_tensors_) Py_VISIT(tensor.get());
  return 0;
}

}  // namespace magneto::guard
