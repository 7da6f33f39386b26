// Guards on the arguments of a call.
#include "guard/arguments.h"

#include <frameobject.h>

#include <algorithm>

#include "cpython/cpython.h"
#include "cpython/text.h"
#include "guard/atoms.h"

namespace magneto::guard {

using py::repr;
using py::type_name;
using runtime::tensor_plug;

namespace {

bool same_names(PyObject* a, PyObject* b) {
  if (a == b) return true;
  if (!a || !b || PyTuple_GET_SIZE(a) != PyTuple_GET_SIZE(b)) return false;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(a); ++i) {
    PyObject *x = PyTuple_GET_ITEM(a, i), *y = PyTuple_GET_ITEM(b, i);
    bool plain = PyUnicode_CheckExact(x) && PyUnicode_CheckExact(y);  // others have an __eq__ of their own
    if (x != y && (!plain || PyUnicode_Compare(x, y) != 0)) return false;
  }
  return true;
}

bool same_keys_listed(PyObject* a, PyObject* b) {
  if (PyList_GET_SIZE(a) != PyList_GET_SIZE(b)) return false;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(a); ++i)
    if (!same_atom(PyList_GET_ITEM(a, i), PyList_GET_ITEM(b, i))) return false;
  return true;
}

// In the order in which iteration finds them, whatever a class says about that.
py::Ref list_keys(PyObject* dict) {
  if (!PyODict_Check(dict)) return py::Ref::steal(PyDict_Keys(dict));
  py::Ref iterator = py::Ref::steal(PyODict_Type.tp_iter(dict));
  return py::Ref::steal(iterator ? PySequence_List(iterator.get()) : nullptr);
}

// The same keys in the same order: iteration sees the order.
bool same_keys(PyObject* dict, PyObject* keys) {
  if (PyDict_GET_SIZE(dict) != PyList_GET_SIZE(keys)) return false;
  if (PyODict_Check(dict)) {
    py::Ref now = list_keys(dict);
    if (!now) PyErr_Clear();
    return now && same_keys_listed(now.get(), keys);
  }
  Py_ssize_t position = 0, i = 0;
  PyObject *key, *value;
  while (PyDict_Next(dict, &position, &key, &value))
    if (!same_atom(key, PyList_GET_ITEM(keys, i++))) return false;
  return true;
}

constexpr int kMaxDepth = 64;

// An object of a Python class, or a SimpleNamespace, that holds attributes, may be a dict, and holds nothing else.
bool has_known_parts(PyObject* object) {
  static PyTypeObject* const simple_namespace = Py_TYPE(PySys_GetObject("implementation"));
  PyTypeObject* type = Py_TYPE(object);
  if (!mg_is_python_class(type) && type != simple_namespace) return false;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(type->tp_mro); ++i) {
    auto* base = (PyTypeObject*)PyTuple_GET_ITEM(type->tp_mro, i);
    if (base == &PyBaseObject_Type || base == &PyDict_Type || base == &PyODict_Type || base == simple_namespace)
      continue;
    if (!mg_is_python_class(base) || mg_has_slots(base)) return false;
  }
  PyObject** slot = mg_dict_slot(object);
  return slot && *slot && PyDict_CheckExact(*slot) && mg_has_only_text_keys(*slot);
}

// Of Python, for tuples that hold nothing but their items.
bool is_named_tuple(PyTypeObject* type) {
  return mg_is_python_class(type) && PyType_IsSubtype(type, &PyTuple_Type) && !type->tp_dictoffset &&
         type->tp_basicsize == PyTuple_Type.tp_basicsize && type->tp_itemsize == PyTuple_Type.tp_itemsize;
}

}  // namespace

std::vector<Opening> difference(const std::vector<Opening>& all, const std::vector<Opening>& others) {
  std::vector<Opening> rest;
  for (Opening opening : all) {
    bool is_number = opening.sizes.empty();
    for (const Opening& other : others) {
      if (other.node != opening.node) continue;
      is_number = false;
      std::erase_if(opening.sizes, [&](int size) { return std::ranges::find(other.sizes, size) != other.sizes.end(); });
    }
    if (is_number || !opening.sizes.empty()) rest.push_back(std::move(opening));
  }
  return rest;
}

Arguments::Arguments(const CallArguments& call, std::vector<std::string> by_content, std::vector<Opening> open)
    : positional_(call.positional),
      keyword_names_(py::Ref::borrow(call.keyword_names)),
      by_content_(std::move(by_content)),
      open_(std::move(open)),
      checks_(tensor_plug().tensor_checks()) {
  for (size_t i = 0; i < call.size() && refusal_.empty(); ++i) {
    std::string name = "args[" + std::to_string(i) + "]";
    PyObject* keyword = i < call.positional ? nullptr : PyTuple_GET_ITEM(call.keyword_names, i - call.positional);
    if (keyword && !PyUnicode_CheckExact(keyword)) refusal_ = "the name of a keyword is no plain string";
    if (keyword) name = py::text(keyword);
    add(call.values[i], -1, static_cast<Py_ssize_t>(i), nullptr, name);
  }
  tensor_count_ = checks_->size();
  note_content(0);
}

Arguments::Arguments(IsOwned is_owned) : positional_(0), is_owned_(std::move(is_owned)) {}

void Arguments::add_root(PyObject* value, const std::string& name) {
  size_t from = nodes_.size();
  add(value, -1, static_cast<Py_ssize_t>(positional_++), nullptr, name);
  note_content(from);
}

void Arguments::note_content(size_t from) {
  for (size_t i = from; i < nodes_.size(); ++i)
    if (is_content(nodes_[i].kind)) by_content_nodes_.push_back(i);
}

void Arguments::add(PyObject* value, int parent, Py_ssize_t index, PyObject* key, std::string name) {
  if (!refusal_.empty()) return;
  int self = static_cast<int>(nodes_.size());
  if (self > 10000) {
    refusal_ = "an argument has more than 10,000 parts";
    return;
  }
  bool is_tensor = tensor_plug().is_tensor(value);
  bool is_again = containers_.contains(value) || (is_tensor && std::ranges::find(tensors_, value) != tensors_.end());
  int before = is_again ? node_of(value) : -1;
  nodes_.push_back({Kind::Object, parent, index, py::Ref::borrow(key), Py_TYPE(value), 0, -1, {}, false, value, name});
  Node& node = nodes_.back();
  if (depth(self) > kMaxDepth) {
    refusal_ = "argument " + name + " is nested too deeply";
  } else if (before >= 0) {
    node.kind = Kind::Again;
    node.size = before;
  } else if (is_tensor) {
    if (mg_has_other_attributes(value, runtime::kMarkPrefixes))
      refusal_ = "argument " + name + " is a tensor with Python attributes";
    if (std::string why = tensor_plug().why_not_plain(value); !why.empty()) {
      refusal_ = "argument " + name + " is " + why;
      return;
    }
    node.kind = Kind::Tensor;
    tensors_.push_back(value);
    if (!checks_) return;
    node.tensor = static_cast<int>(checks_->size());
    checks_->add(value, open_sizes(checks_->size()));
  } else if (is_atom(value)) {
    bool is_open = is_owned_ ? key && is_plain_number(value) : opening_of(static_cast<size_t>(self)) != nullptr;
    node.kind = is_open ? Kind::Number : Kind::Atom;
    if (is_owned_ && !key && PyFloat_CheckExact(value)) refusal_ = name + " is a float, which may be any";
    if (node.kind == Kind::Atom) node.expected = py::Ref::borrow(value);
  } else if (PyTuple_CheckExact(value) || PyList_CheckExact(value) || is_named_tuple(Py_TYPE(value))) {
    node.kind = PyTuple_Check(value) ? Kind::Tuple : Kind::List;
    node.size = PySequence_Fast_GET_SIZE(value);
    if (is_named_tuple(Py_TYPE(value))) {
      node.expected = py::Ref::steal(PyWeakref_NewRef((PyObject*)Py_TYPE(value), nullptr));
      node.is_weak = true;
    }
    if (node.size || node.kind == Kind::List) containers_.insert(value);  // there is only one ()
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(value); ++i)
      add(PySequence_Fast_GET_ITEM(value, i), self, i, nullptr, name + "[" + std::to_string(i) + "]");
  } else if (PyDict_CheckExact(value)) {
    node.kind = Kind::Dict;
    add_dict(value, self);
  } else if (is_by_content(value, self)) {
    add_instance(value, self);
  } else {
    node.expected = py::Ref::steal(PyWeakref_NewRef(value, nullptr));
    node.is_weak = static_cast<bool>(node.expected);
    if (node.is_weak) return;
    PyErr_Clear();
    // Held, a traceback or iterator would keep others alive, and no later call can pass it anyway.
    bool is_iterator = (Py_TYPE(value)->tp_flags & Py_TPFLAGS_IMMUTABLETYPE) && Py_TYPE(value)->tp_iternext;
    if (PyTraceBack_Check(value) || PyFrame_Check(value) || is_iterator)
      refusal_ = "argument " + name + " is a " + type_name(value) + ", which is another one each time";
    node.expected = py::Ref::borrow(value);
  }
}

void Arguments::add_dict(PyObject* dict, int self) {
  std::string name = nodes_[self].name;
  bool is_dict = nodes_[self].kind != Kind::Attributes;
  nodes_[self].expected = list_keys(dict);
  containers_.insert(dict);
  Py_ssize_t position = 0;
  PyObject *key, *item;
  while (PyDict_Next(dict, &position, &key, &item)) {
    if (!is_atom(key)) {
      refusal_ = "argument " + name + " is a dict with a key of type " + type_name(key);
      return;
    }
    add(item, self, 0, key, is_dict ? name + "[" + repr(key) + "]" : name + "." + py::text(key));
  }
}

void Arguments::add_instance(PyObject* object, int self) {
  nodes_[self].kind = Kind::Instance;
  nodes_[self].expected = py::Ref::steal(PyWeakref_NewRef((PyObject*)Py_TYPE(object), nullptr));
  nodes_[self].is_weak = true;
  containers_.insert(object);
  PyObject* dict = *mg_dict_slot(object);
  nodes_.push_back({Kind::Attributes, self, 0, {}, Py_TYPE(dict), 0, -1, {}, false, dict, nodes_[self].name});
  add_dict(dict, self + 1);
  if (!PyDict_Check(object) || !refusal_.empty()) return;
  nodes_.push_back({Kind::Items, self, 0, {}, Py_TYPE(object), 0, -1, {}, false, object, nodes_[self].name});
  add_dict(object, static_cast<int>(nodes_.size()) - 1);
}

// What nobody else holds belongs to the object that it is part of.
bool Arguments::is_by_content(PyObject* object, int self) const {
  if (is_owned_) return is_owned_(object, nodes_[self].parent >= 0) && has_known_parts(object);
  if (by_content_.empty()) return false;
  bool is_named = std::ranges::find(by_content_, nodes_[self].name) != by_content_.end();
  auto is_part = [&] {
    for (int node = nodes_[self].parent; node >= 0; node = nodes_[node].parent)
      if (nodes_[node].kind == Kind::Instance) return true;
    return false;
  };
  return (is_named || (Py_REFCNT(object) == 1 && is_part())) && has_known_parts(object);
}

std::vector<PyObject*> Arguments::classes() const {
  std::vector<PyObject*> found;
  for (const Node& node : nodes_)
    if (node.kind == Kind::Instance || (node.kind == Kind::Tuple && node.is_weak))
      found.push_back(reinterpret_cast<PyObject*>(node.type));
  return found;
}

std::vector<std::string> Arguments::other_objects(const CallArguments& call) const {
  std::vector<std::string> names;
  if (call.positional != positional_ || !same_names(call.keyword_names, keyword_names_.get())) return names;
  std::vector<PyObject*> values(nodes_.size());
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const Node& node = nodes_[i];
    PyObject* value = values[i] = fetch(node, call, values.data());
    bool leads_on = node.kind != Kind::Tensor && node.kind != Kind::Atom && node.kind != Kind::Number;
    if (!leads_on || matches(node, value, values.data())) continue;
    if (node.kind != Kind::Object) return {};
    if (value && Py_TYPE(value) == node.type && has_known_parts(value)) names.push_back(node.name);
  }
  return names;
}

// ---- what other calls may change

const Opening* Arguments::opening_of(size_t node) const {
  auto found = std::find_if(open_.begin(), open_.end(), [&](const Opening& opening) { return opening.node == node; });
  return found == open_.end() ? nullptr : &*found;
}

std::vector<int> Arguments::open_sizes(size_t tensor) const {
  for (const Opening& opening : open_)
    if (nodes_.size() > opening.node && nodes_[opening.node].tensor == static_cast<int>(tensor)) return opening.sizes;
  return {};
}

std::vector<Arguments::Number> Arguments::open_numbers(size_t from) const {
  std::vector<Number> numbers;
  for (size_t i = from; i < nodes_.size(); ++i) {
    const Node& node = nodes_[i];
    if (node.kind != Kind::Number) continue;
    auto id = static_cast<uint32_t>(i);
    const Node* parent = node.parent < 0 ? nullptr : &nodes_[node.parent];
    if (!parent)
      numbers.push_back({id, static_cast<int>(node.index), nullptr, nullptr});
    else if (node.key)
      numbers.push_back({id, -1, parent->seen, node.key.get()});
    else
      numbers.push_back({id, static_cast<int>(parent->index), nullptr, nullptr, parent->seen, node.index});
  }
  return numbers;
}

bool Arguments::is_given_twice(PyObject* container) const {
  int first = node_of(container);
  return std::ranges::any_of(nodes_,
                             [first](const Node& node) { return node.kind == Kind::Again && node.size == first; });
}

namespace {

// Those among the dimensions that can be open for this tensor.
std::vector<int> openable(PyObject* tensor, const std::vector<int>& dimensions) {
  std::vector<int> all = tensor_plug().openable(tensor), both;
  for (int dimension : dimensions)
    if (std::find(all.begin(), all.end(), dimension) != all.end()) both.push_back(dimension);
  return both;
}

}  // namespace

// Numbers that were passed by themselves, in a tuple, or under a key or name.
bool Arguments::can_be_open(const Node& node, PyObject* value) const {
  bool is_in_tuple = node.parent >= 0 && nodes_[node.parent].type == &PyTuple_Type && nodes_[node.parent].parent < 0;
  return node.kind == Kind::Atom && (node.parent < 0 || node.key || is_in_tuple) && value &&
         Py_TYPE(value) == node.type && is_plain_number(value);
}

std::optional<std::vector<Opening>> Arguments::opened_for(const CallArguments& call) const {
  if (call.positional != positional_ || !same_names(call.keyword_names, keyword_names_.get())) return std::nullopt;
  std::vector<Opening> opened;
  std::vector<PyObject*> values(nodes_.size());
  bool is_new = false;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const Node& node = nodes_[i];
    values[i] = fetch(node, call, values.data());
    const Opening* before = opening_of(i);
    if (!matches(node, values[i], values.data()) && !can_be_open(node, values[i])) return std::nullopt;
    if (is_repeated(i, values.data())) return std::nullopt;
    if (node.kind == Kind::Tensor) {
      auto changed = checks_->changed_sizes(static_cast<size_t>(node.tensor), values[i]);
      if (!changed) return std::nullopt;
      is_new |= !changed->empty();
      if (before) changed->insert(changed->end(), before->sizes.begin(), before->sizes.end());
      std::vector<int> sizes = openable(values[i], *changed);
      if (!sizes.empty()) opened.push_back({i, std::move(sizes)});
    } else if (before || !matches(node, values[i], values.data())) {
      is_new |= !before;
      opened.push_back({i, {}});
    }
  }
  return is_new ? std::optional(std::move(opened)) : std::nullopt;
}

std::vector<Opening> Arguments::everything() const {
  std::vector<Opening> opened;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const Node& node = nodes_[i];
    std::vector<int> sizes = node.kind == Kind::Tensor ? tensor_plug().openable(node.seen) : std::vector<int>();
    bool is_number = node.kind == Kind::Atom && node.parent < 0 && is_plain_number(node.seen);
    if (!sizes.empty() || is_number) opened.push_back({i, std::move(sizes)});
  }
  return opened;
}

std::vector<Opening> Arguments::with_marks(std::vector<Opening> open, const std::vector<Opening>& pinned) const {
  auto has = [](const std::vector<int>& list, int item) { return std::ranges::find(list, item) != list.end(); };
  for (size_t i = 0; i < nodes_.size(); ++i) {
    if (nodes_[i].kind != Kind::Tensor) continue;
    auto [dynamic, maybe_dynamic, fixed] = tensor_plug().size_marks(nodes_[i].seen);
    if (dynamic.empty() && maybe_dynamic.empty() && fixed.empty()) continue;
    auto found = std::ranges::find(open, i, &Opening::node);
    if (found == open.end()) found = open.insert(found, {i, {}});
    std::vector<int> kept;
    for (int size : tensor_plug().openable(nodes_[i].seen)) {
      bool may = has(maybe_dynamic, size) && !difference({{i, {size}}}, pinned).empty();
      bool wanted = may || has(found->sizes, size);
      if (has(dynamic, size)) found->promised.push_back(size);
      if (has(dynamic, size) || (wanted && !has(fixed, size))) kept.push_back(size);
    }
    found->sizes = std::move(kept);
    if (found->sizes.empty()) open.erase(found);
  }
  return open;
}

void Arguments::close_all_but(std::vector<Opening> open) {
  open_ = std::move(open);
  checks_ = tensor_plug().tensor_checks();
  for (size_t i = 0; i < nodes_.size(); ++i) {
    Node& node = nodes_[i];
    if (node.kind == Kind::Tensor) checks_->add(node.seen, open_sizes(static_cast<size_t>(node.tensor)));
    if (node.kind != Kind::Number || opening_of(i)) continue;
    node.kind = Kind::Atom;
    node.expected = py::Ref::borrow(node.seen);
  }
}

int Arguments::depth(int node) const {
  int depth = 0;
  for (; node >= 0; node = nodes_[node].parent) ++depth;
  return depth;
}

int Arguments::node_of(PyObject* object) const {
  for (size_t i = 0; i < nodes_.size(); ++i)
    if (nodes_[i].seen == object && nodes_[i].kind != Kind::Atom && nodes_[i].kind != Kind::Number)
      return static_cast<int>(i);
  return -1;
}

bool Arguments::holds_identity(PyObject* object) const {
  for (const Node& node : nodes_)
    if (node.kind == Kind::Object && node.identity() == object) return true;
  return false;
}

bool Arguments::is_lost() const {
  return std::ranges::any_of(nodes_, [](const Node& node) { return node.is_weak && node.identity() == Py_None; });
}

std::vector<std::pair<PyObject*, std::string>> Arguments::objects() const {
  std::vector<std::pair<PyObject*, std::string>> found;
  for (const Node& node : nodes_)
    if (node.kind == Kind::Object) found.emplace_back(node.identity(), node.name);
  return found;
}

bool Arguments::same_as(const Arguments& other) const {
  auto lists_keys = [](const Node& node) {
    return node.kind == Kind::Dict || node.kind == Kind::Attributes || node.kind == Kind::Items;
  };
  auto same_node = [&](const Node& a, const Node& b) {
    if (a.kind != b.kind || a.parent != b.parent || a.index != b.index || a.type != b.type || a.size != b.size ||
        a.tensor != b.tensor || !same_value(a.key.get(), b.key.get()))
      return false;
    return lists_keys(a) ? same_keys_listed(a.expected.get(), b.expected.get())
                         : same_value(a.expected.get(), b.expected.get());
  };
  return positional_ == other.positional_ && same_names(keyword_names_.get(), other.keyword_names_.get()) &&
         std::equal(nodes_.begin(), nodes_.end(), other.nodes_.begin(), other.nodes_.end(), same_node) &&
         !checks_ == !other.checks_ && (!checks_ || checks_->same_as(*other.checks_));
}

void Arguments::freeze() {
  for (Node& node : nodes_) node.seen = nullptr;
  tensors_.clear();
  is_owned_ = nullptr;
}

// These three are what `match` does for each node.
[[gnu::always_inline]] inline PyObject* Arguments::fetch(const Node& node, const CallArguments& call,
                                                         PyObject* const* values) const {
  if (node.parent < 0) return call.values[node.index];
  PyObject* parent = values[node.parent];
  if (node.kind == Kind::Items) return parent;
  if (node.kind == Kind::Attributes) {
    PyObject** slot = mg_dict_slot(parent);
    return slot ? *slot : nullptr;
  }
  if (!node.key) return PySequence_Fast_GET_ITEM(parent, node.index);
  PyObject* item = PyDict_GetItemWithError(parent, node.key.get());
  if (!item) PyErr_Clear();
  return item;
}

[[gnu::always_inline]] inline bool Arguments::matches(const Node& node, PyObject* value,
                                                      PyObject* const* values) const {
  if (!value || Py_TYPE(value) != node.type) return false;
  switch (node.kind) {
    case Kind::Tensor:
      return !mg_has_other_attributes(value, runtime::kMarkPrefixes);  // the rest is checked for all tensors together
    case Kind::Atom: return value == node.expected.get() || same_atom(node.expected.get(), value);
    case Kind::Number: return true;
    case Kind::Tuple:
      return PyTuple_GET_SIZE(value) == node.size && (!node.is_weak || node.identity() == (PyObject*)node.type);
    case Kind::List: return PyList_GET_SIZE(value) == node.size;
    case Kind::Dict:
    case Kind::Attributes:
    case Kind::Items: return same_keys(value, node.expected.get());
    case Kind::Object: return value == node.identity();
    case Kind::Instance: return true;
    case Kind::Again: return value == values[node.size];
  }
  return false;
}

// The watched call saw distinct tensors and containers (repeated ones were refused), so that it did not matter which
// object is which.
[[gnu::always_inline]] inline bool Arguments::is_repeated(size_t index, PyObject* const* values) const {
  const Node& node = nodes_[index];
  if (!is_content(node.kind) || (node.kind == Kind::Tuple && !node.size)) return false;  // there is only one ()
  for (size_t i : by_content_nodes_) {
    if (i == index) return false;
    if (values[i] == values[index]) return true;
  }
  return false;
}

bool Arguments::match(const CallArguments& call, PyObject** values, PyObject** tensors) const {
  if (call.positional != positional_ || !same_names(call.keyword_names, keyword_names_.get())) return false;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const Node& node = nodes_[i];
    values[i] = fetch(node, call, values);
    if (!matches(node, values[i], values)) return false;
    if (node.tensor >= 0) tensors[node.tensor] = values[i];
    if (is_repeated(i, values)) return false;
  }
  return !tensor_count_ || checks_->first_mismatch(tensors) < 0;
}

std::string Arguments::explain(const CallArguments& call) const {
  if (call.positional != positional_ || !same_names(call.keyword_names, keyword_names_.get()))
    return "other arguments are passed";
  std::vector<PyObject*> values(nodes_.size()), tensors(tensor_count_);
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const Node& node = nodes_[i];
    values[i] = fetch(node, call, values.data());
    if (!matches(node, values[i], values.data())) {
      if (!values[i]) return node.name + " is missing";
      if (Py_TYPE(values[i]) != node.type)
        return node.name + " is a " + type_name(values[i]) + ", was a " + node.type_name();
      if (node.kind == Kind::Atom) return node.name + " is " + repr(values[i]) + ", was " + repr(node.expected.get());
      if (node.kind == Kind::Object) return node.name + " is another " + type_name(values[i]);
      if (node.kind == Kind::Again) return node.name + " is not the same object as " + nodes_[node.size].name;
      return node.name + " has another length or other keys";
    }
    if (node.tensor >= 0) tensors[node.tensor] = values[i];
    if (is_repeated(i, values.data())) return node.name + " is the same object as another argument";
  }
  ptrdiff_t bad = tensor_count_ ? checks_->first_mismatch(tensors.data()) : -1;
  if (bad < 0) return "";
  for (const Node& node : nodes_)
    if (node.tensor == bad) return node.name + " is " + checks_->explain(static_cast<size_t>(bad), tensors[bad]);
  return "";
}

void Arguments::describe(std::vector<std::string>* lines) const {
  for (const Node& node : nodes_) {
    switch (node.kind) {
      case Kind::Tensor:
        lines->push_back(
            node.name + " matches the tensor it was" +
            (node.tensor < 0 || open_sizes(static_cast<size_t>(node.tensor)).empty() ? "" : ", but for its size"));
        break;
      case Kind::Atom: lines->push_back(node.name + " == " + repr(node.expected.get())); break;
      case Kind::Number: lines->push_back(node.name + " is any " + node.type->tp_name); break;
      case Kind::Object: lines->push_back(node.name + " is the same " + node.type_name()); break;
      case Kind::Again: lines->push_back(node.name + " is " + nodes_[node.size].name); break;
      case Kind::Attributes: lines->push_back(node.name + " has the same attributes"); break;
      case Kind::Items: lines->push_back(node.name + " has the same keys"); break;
      case Kind::Instance: lines->push_back(node.name + " is a " + node.type_name()); break;
      default: lines->push_back(node.name + " is a " + node.type->tp_name + " with the same layout");
    }
  }
}

int Arguments::traverse(visitproc visit, void* arg) const {
  for (const Node& node : nodes_) {
    Py_VISIT(node.expected.get());
    Py_VISIT(node.key.get());
  }
  return 0;
}

}  // namespace magneto::guard
