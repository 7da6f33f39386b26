// Names of objects, found by following reads back to a root.
#include "guard/names.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <string_view>

#include "cpython/text.h"
#include "guard/atoms.h"

namespace magneto::guard {

namespace {

constexpr int kMaxDepth = 32;

bool is_named(const Read* read, const char* name) {
  return read && read->label && std::string_view(read->label) == name;
}

bool is_number(const std::string& text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) { return std::isdigit(c); });
}

size_t tuple_index(const Read& read) {
  return (static_cast<size_t>(read.offset) - offsetof(PyTupleObject, ob_item)) / sizeof(PyObject*);
}

}  // namespace

std::string shown(PyObject* value) {
  if (PyType_Check(value)) return std::string("class ") + ((PyTypeObject*)value)->tp_name;
  return is_atom(value) ? py::repr(value) : "a " + py::type_name(value);
}

bool is_module_dict(const std::string& key) { return key == "_modules" || key == "_parameters" || key == "_buffers"; }

std::string module_part(const std::string& key) { return is_number(key) ? "[" + key + "]" : "." + key; }

const Read* Names::source_of(PyObject* object) const {
  for (const Read* read : reads_) {
    if (read->access == Access::Number) continue;
    if (read->value == object) return read;
    if (!read->contents || read->access == Access::Specials) continue;
    const auto& items = read->contents->items;
    if (std::find(items.begin(), items.end(), object) != items.end()) return read;
  }
  return nullptr;
}

std::string Names::name_of(PyObject* object, int depth) const {
  for (const auto& [root, name] : roots_)
    if (root == object) return name;
  if (PyType_Check(object)) return ((PyTypeObject*)object)->tp_name;
  if (PyModule_Check(object)) {
    const char* name = PyModule_GetName(object);
    if (!name) PyErr_Clear();
    return name ? name : "a module";
  }
  const Read* source = depth < kMaxDepth ? source_of(object) : nullptr;
  if (!source) return "a " + py::type_name(object);
  if (!source->contents) return place(*source, depth + 1);
  const auto& items = source->contents->items;
  auto index = static_cast<size_t>(std::find(items.begin(), items.end(), object) - items.begin());
  if (source->access == Access::Items) return key_place(source->owner, items[index & ~size_t{1}], depth + 1);
  return name_of(source->owner, depth + 1) + "[" + std::to_string(index) + "]";
}

std::string Names::key_place(PyObject* dict, PyObject* key, int depth) const {
  const Read* source = source_of(dict);
  std::string text = py::text(key);
  if (is_named(source, "__dict__")) return name_of(source->owner, depth + 1) + "." + text;
  if (is_named(source, "__globals__") || is_named(source, "__builtins__")) return text;
  if (source && source->access == Access::Key && is_module_dict(py::text(source->key.get()))) {
    const Read* attributes = source_of(source->owner);
    if (is_named(attributes, "__dict__")) return name_of(attributes->owner, depth + 1) + module_part(text);
  }
  return name_of(dict, depth + 1) + "[" + shown(key) + "]";
}

std::string Names::cell_name(const Read& read, int depth) const {
  const Read* item = source_of(read.owner);
  const Read* closure = item && item->access == Access::Field ? source_of(item->owner) : nullptr;
  if (!is_named(closure, "__closure__")) return name_of(read.owner, depth);
  auto* code = (PyCodeObject*)((PyFunctionObject*)closure->owner)->func_code;
  py::Ref names = py::Ref::steal(PyCode_GetFreevars(code));
  if (!names) PyErr_Clear();
  auto index = static_cast<Py_ssize_t>(tuple_index(*item));
  return names && index < PyTuple_GET_SIZE(names.get()) ? py::text(PyTuple_GET_ITEM(names.get(), index)) : "a cell";
}

std::string Names::place(const Read& read, int depth) const {
  switch (read.access) {
    case Access::Key: return key_place(read.owner, read.key.get(), depth);
    case Access::Name: return name_of(read.owner, depth) + "." + py::text(read.key.get());
    case Access::Field:
      if (is_named(&read, "cell_contents")) return cell_name(read, depth);
      if (PyTuple_Check(read.owner)) return name_of(read.owner, depth) + "[" + std::to_string(tuple_index(read)) + "]";
      if (read.label == kReferent) return name_of(read.owner, depth) + kReferent;
      return name_of(read.owner, depth) + "." + read.label;
    case Access::Getter: return name_of(read.owner, depth) + "." + py::text(((PyDescrObject*)read.key.get())->d_name);
    case Access::Context: return "a context variable";
    default: return name_of(read.owner, depth);
  }
}

std::string Names::describe_failure(const Read& failed) const {
  auto is_now = [&](PyObject* now) {
    std::string what = "`" + place(failed, 0) + "` ";
    if (!failed.value) return what + (now ? "is " + shown(now) + ", was not there" : "was changed");
    if (!now) return what + "is not there any more";
    // What it was may be gone, unless it is held.
    if (failed.held && is_atom(failed.value)) return what + "is " + shown(now) + ", was " + shown(failed.value);
    return what + (is_atom(now) ? "is " + shown(now) + ", was another object" : "is another object, " + shown(now));
  };
  switch (failed.access) {
    case Access::Field: return is_now(*reinterpret_cast<PyObject**>((char*)failed.owner + failed.offset));
    case Access::Key:
      return PyDict_Check(failed.owner) ? is_now(find_key(failed.owner, failed.key.get())) : "a dict was replaced";
    case Access::Name:
      if (!PyType_Check(failed.owner)) return "a class was replaced";
      return is_now(_PyType_Lookup((PyTypeObject*)failed.owner, failed.key.get()));
    case Access::Specials: return "a special method of class `" + name_of(failed.owner) + "` was changed";
    case Access::Items:
    case Access::List:
    case Access::Set:
    case Access::Order: return "the contents of `" + name_of(failed.owner) + "` were changed";
    case Access::Entry: return "a function that is cached (functools.lru_cache) has forgotten a result";
    case Access::Number: return "`" + name_of(failed.owner) + "` has another length";
    case Access::AbcRegistry: return "a class was registered with an abstract base class";
    case Access::RecursionLimit: return "the recursion limit was changed";
    default: return "`" + place(failed, 0) + "` was changed";
  }
}

std::pair<std::string, std::string> Names::describe(const Read& read) const {
  switch (read.access) {
    case Access::Items:
    case Access::List:
    case Access::Set: return {name_of(read.owner), "holds the same items"};
    case Access::Order: return {name_of(read.owner), "has the same order"};
    case Access::Entry: return {"a function that is cached", "has its result"};
    case Access::Number: return {name_of(read.owner), PyType_Check(read.owner) ? "unchanged" : "has the same length"};
    case Access::Specials: return {name_of(read.owner), "has the same special methods"};
    case Access::AbcRegistry: return {"abstract base classes", "unchanged"};
    case Access::RecursionLimit: return {"the recursion limit", "unchanged"};
    default: break;
  }
  bool is_type = is_named(&read, "__class__") && read.value == (PyObject*)Py_TYPE(read.owner);
  if (is_type) return {name_of(read.owner), "is a " + py::type_name(read.owner)};
  if (!read.value) return {place(read, 0), "not there"};
  return {place(read, 0), read.held && is_atom(read.value) ? "== " + shown(read.value) : "unchanged"};
}

void describe_reads(const std::vector<const Read*>& reads, std::vector<std::string>* lines) {
  static constexpr const char* kKinds[] = {"fields of objects are unchanged",
                                           "sizes are unchanged",
                                           "items of dicts are unchanged",
                                           "dicts hold the same items in the same order",
                                           "cached functions have the results they had",
                                           "lists hold the same items",
                                           "attributes of classes are unchanged",
                                           "classes have the special methods they had",
                                           "sets hold the same members",
                                           "ordered dicts have the order they had",
                                           "attributes that C code computes are unchanged",
                                           "context variables are unchanged",
                                           "no class was registered with an abstract base class",
                                           "the recursion limit is unchanged"};
  std::map<Access, size_t> counts;
  for (const Read* read : reads) ++counts[read->access];
  for (auto [access, count] : counts) {
    bool counted = access < Access::AbcRegistry;
    lines->push_back((counted ? std::to_string(count) + " " : "") + kKinds[static_cast<size_t>(access)]);
  }
}

}  // namespace magneto::guard
