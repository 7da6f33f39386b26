// `magneto.guards`: the boundary of guards that users build. Everything is checked here, so that what lies below may
// rely on it.
#include "python/bind_guards.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <structmember.h>

#include <algorithm>

#include "cpython/cpython.h"
#include "cpython/text.h"
#include "guard/atoms.h"
#include "guard/manager.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace magneto::python {

namespace {

using guard::Check;
using guard::Condition;
using guard::Manager;
using guard::Source;
using guard::Step;
using runtime::Dimensions;
using runtime::tensor_plug;

[[noreturn]] void wrong_type(const std::string& text) { throw nb::type_error(text.c_str()); }
[[noreturn]] void wrong_value(const std::string& text) { throw nb::value_error(text.c_str()); }
std::string class_name(nb::handle object) { return py::type_name(object.ptr()); }

// ---- RootGuardManager: plain C, because its call is the hot path

struct Root {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  Manager* manager;
};

Manager& manager_of(PyObject* root) { return *reinterpret_cast<Root*>(root)->manager; }

bool is_locals(PyObject* object) {
  if (PyDict_Check(object)) return true;
  PyErr_Format(PyExc_TypeError, "guards are checked on the local variables of a frame, a dict, not on a %.200s",
               Py_TYPE(object)->tp_name);
  return false;
}

// The namespace of a class body whose metaclass has made it: only its own code knows what is in it.
bool is_foreign_namespace(PyObject* locals) {
  return !PyDict_Check(locals) && (Py_TYPE(locals)->tp_flags & Py_TPFLAGS_HEAPTYPE) && PyMapping_Check(locals);
}

PyObject* check(PyObject* self, PyObject* locals) {
  if (is_foreign_namespace(locals)) Py_RETURN_FALSE;
  return is_locals(locals) ? PyBool_FromLong(manager_of(self).check(locals)) : nullptr;
}

PyObject* call(PyObject* self, PyObject* const* args, size_t flagged_count, PyObject* keyword_names) {
  if (PyVectorcall_NARGS(flagged_count) == 1 && !keyword_names) return check(self, args[0]);
  PyErr_SetString(PyExc_TypeError, "a guard manager is called with one argument, the local variables of a frame");
  return nullptr;
}

PyObject* create(PyTypeObject* type, PyObject* args, PyObject* keywords) {
  if (PyTuple_GET_SIZE(args) || (keywords && PyDict_GET_SIZE(keywords))) {
    PyErr_SetString(PyExc_TypeError, "RootGuardManager takes no arguments");
    return nullptr;
  }
  auto* self = reinterpret_cast<Root*>(type->tp_alloc(type, 0));
  if (!self) return nullptr;
  self->vectorcall = call;
  self->manager = new Manager;
  return (PyObject*)self;
}

void destroy(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  delete reinterpret_cast<Root*>(self)->manager;
  type->tp_free(self);
  Py_DECREF(type);
}

PyMethodDef kRootMethods[] = {
    {"check", check, METH_O, "Whether all guards hold for these local variables, a dict. Runs no Python code."},
    {nullptr, nullptr, 0, nullptr}};

PyMemberDef kRootMembers[] = {{"__vectorcalloffset__", T_PYSSIZET, offsetof(Root, vectorcall), READONLY, nullptr},
                              {nullptr, 0, 0, 0, nullptr}};

constexpr const char* kRootDoc =
    "Guards on the local variables of a frame, on globals and on closures, and on all that these lead to.\n\n"
    "It is a callable (f_locals) -> bool, as magneto.eval_frame wants it. It keeps no guarded object alive.";

PyType_Slot kRootSlots[] = {{Py_tp_new, (void*)create},
                            {Py_tp_dealloc, (void*)destroy},
                            {Py_tp_call, (void*)PyVectorcall_Call},
                            {Py_tp_methods, kRootMethods},
                            {Py_tp_members, kRootMembers},
                            {Py_tp_doc, (void*)kRootDoc},
                            {0, nullptr}};

nb::object make_root_type(const std::string& module_name) {
  static std::string name = module_name + ".RootGuardManager";
  static PyType_Spec spec = {name.c_str(), sizeof(Root), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL,
                             kRootSlots};
  PyObject* type = PyType_FromSpec(&spec);
  if (!type) throw nb::python_error();
  return nb::steal(type);
}

// ---- sources

// What Python calls a GuardManager.
struct Place {
  nb::object root;
  Source* source;

  Manager& manager() const { return manager_of(root.ptr()); }

  Place step(Step step, PyObject* key = nullptr, size_t index = 0) const {
    if (source->depth >= Manager::kMaxDepth)
      wrong_value("a source is at most " + std::to_string(Manager::kMaxDepth) + " steps away from its root");
    return {root, manager().step(source, step, key, static_cast<Py_ssize_t>(index))};
  }
  void add(Check check) const { manager().add_check(source, std::move(check)); }
};

nb::str interned(const nb::str& name) {
  PyObject* exact = PyUnicode_FromObject(name.ptr());
  if (!exact) throw nb::python_error();
  PyUnicode_InternInPlace(&exact);
  return nb::steal<nb::str>(exact);
}

Place item(const Place& place, nb::handle key) {
  if (!guard::is_atom(key.ptr())) wrong_type("a key is a constant such as a str or an int, not a " + class_name(key));
  return place.step(Step::Item, PyUnicode_CheckExact(key.ptr()) ? interned(nb::borrow<nb::str>(key)).ptr() : key.ptr());
}

Place index_or_key(const Place& place, nb::handle key) {
  if (PyLong_Check(key.ptr()) && _PyLong_Sign(key.ptr()) < 0)
    wrong_value("an index counts from the front; for the key of a dict use dict_getitem_manager");
  return item(place, key);
}

size_t property_index(const std::string& name) {
  const auto& names = tensor_plug().tensor_properties();
  auto found = std::find(names.begin(), names.end(), name);
  if (found != names.end()) return static_cast<size_t>(found - names.begin());
  std::string known;
  for (const std::string& each : names) known += (known.empty() ? "" : ", ") + each;
  wrong_value("tensors have no property '" + name + "'; known are: " + (known.empty() ? "none in this build" : known));
}

// ---- checks

void add_equals(const Place& place, nb::handle value) {
  if (!guard::is_constant(value.ptr()))
    wrong_type("only constants can be compared by value (numbers, str, bytes, None, dtypes, tuples of these), not a " +
               class_name(value));
  place.add({Condition::Equals, py::Ref::borrow(value.ptr())});
}

void add_weak_identity(const Place& place, nb::handle object) {
  Check check = guard::identity_check(object.ptr());
  if (!check.expected || !check.address) wrong_type("a " + class_name(object) + " cannot be referenced weakly");
  place.add(std::move(check));
}

PyTypeObject* need_type(nb::handle type) {
  if (!PyType_Check(type.ptr())) wrong_type("expected a class, not a " + class_name(type));
  return (PyTypeObject*)type.ptr();
}

void add_type_version(const Place& place, nb::handle type) {
  PyTypeObject* expected = need_type(type);
  unsigned version = mg_assign_type_version(expected);
  if (!version) wrong_value("class " + std::string(expected->tp_name) + " has no version");
  place.add({Condition::TypeVersion, {}, nullptr, static_cast<Py_ssize_t>(version)});
}

void add_length(const Place& place, Py_ssize_t length) {
  if (length < 0) wrong_value("a length is not negative");
  place.add({Condition::Length, {}, nullptr, length});
}

nb::tuple need_keys(nb::handle keys) {
  nb::object all = nb::steal(PySequence_Tuple(keys.ptr()));
  if (!all.is_valid() && !PyErr_ExceptionMatches(PyExc_TypeError)) throw nb::python_error();
  if (!all.is_valid()) PyErr_Clear(), wrong_type("keys are given as an iterable, not as a " + class_name(keys));
  for (nb::handle key : nb::borrow<nb::tuple>(all))
    if (!guard::is_atom(key.ptr())) wrong_type("a key is a constant such as a str or an int, not a " + class_name(key));
  return nb::borrow<nb::tuple>(all);
}

void add_keys(const Place& place, nb::handle keys) {
  place.add({Condition::Keys, py::Ref::borrow(need_keys(keys).ptr())});
}

void add_dict(const Place& place, const nb::dict& example, std::optional<nb::object> keys) {
  nb::tuple names = need_keys(keys ? nb::handle(*keys) : nb::handle(example));
  std::vector<std::pair<nb::handle, PyObject*>> values;
  for (nb::handle name : names) {
    values.emplace_back(name, guard::find_key(example.ptr(), name.ptr()));
    if (!values.back().second) wrong_value("the dict has no key " + py::repr(name.ptr()));
  }
  if (!keys) add_keys(place, names);
  for (auto [name, value] : values) item(place, name).add(guard::identity_check(value));
}

// ---- tensors

void need_tensor(nb::handle object) {
  if (!tensor_plug().is_tensor(object.ptr())) wrong_type("expected a tensor, not a " + class_name(object));
  if (std::string why = tensor_plug().why_not_checked(object.ptr()); !why.empty())
    wrong_type("the metadata of this tensor cannot be checked: " + why);
}

nb::object tensor_property(nb::handle tensor, const char* name) {
  return nb::steal(tensor_plug().tensor_property(tensor.ptr(), property_index(name)));
}

// The numbers that the user wants, or those of the tensor; if it has none, any will do.
Dimensions dimensions(nb::handle wanted, nb::handle tensor, const char* property) {
  size_t count = nb::cast<size_t>(tensor_property(tensor, "ndim"));
  nb::object own = tensor_property(tensor, property);
  if (wanted.is_none() && !own.is_valid()) return Dimensions(count);
  Dimensions all;
  if (!nb::try_cast(wanted.is_none() ? nb::handle(own) : wanted, all))
    wrong_type(std::string("expected an int or None for each dimension (") + property + "), or None");
  if (all.size() != count)
    wrong_value("the tensor has " + std::to_string(count) + " dimensions, but " + std::to_string(all.size()) +
                " were given (" + property + ")");
  return all;
}

void add_tensor(const Place& place, nb::handle tensor, nb::handle sizes, nb::handle strides) {
  need_tensor(tensor);
  place.manager().add_tensor(place.source, tensor.ptr(), dimensions(sizes, tensor, "shape"),
                             dimensions(strides, tensor, "stride"));
}

class TensorGuards {
 public:
  TensorGuards(const nb::args& tensors, nb::handle sizes, nb::handle strides) {
    std::vector<nb::object> all_sizes = per_tensor(sizes, tensors.size(), "dynamic_dims_sizes");
    std::vector<nb::object> all_strides = per_tensor(strides, tensors.size(), "dynamic_dims_strides");
    for (size_t i = 0; i < tensors.size(); ++i) {
      need_tensor(tensors[i]);
      checks_->add(nb::object(tensors[i]).ptr(), dimensions(all_sizes[i], tensors[i], "shape"),
                   dimensions(all_strides[i], tensors[i], "stride"));
    }
  }

  bool check(const nb::args& tensors) const { return explain(tensors, {}).empty(); }

  nb::object check_verbose(const nb::args& tensors, const std::vector<std::string>& names) const {
    if (names.size() != checks_->size())
      wrong_value("expected " + std::to_string(checks_->size()) + " names, not " + std::to_string(names.size()));
    std::string why = explain(tensors, names);
    return why.empty() ? nb::object(nb::bool_(true)) : nb::object(nb::str(why.c_str()));
  }

 private:
  static std::vector<nb::object> per_tensor(nb::handle given, size_t count, const char* name) {
    if (given.is_none()) return std::vector<nb::object>(count, nb::none());
    std::vector<nb::object> all;
    if (!nb::try_cast(given, all)) wrong_type(std::string(name) + " is a list with one entry for each tensor, or None");
    if (all.size() != count)
      wrong_value(std::string(name) + " has " + std::to_string(all.size()) + " entries for " + std::to_string(count) +
                  " tensors");
    return all;
  }

  // Empty if all match; without names any text.
  std::string explain(const nb::args& tensors, const std::vector<std::string>& names) const {
    if (tensors.size() != checks_->size())
      wrong_type("expected " + std::to_string(checks_->size()) + " tensors, not " + std::to_string(tensors.size()));
    auto name = [&](size_t i) { return names.empty() ? "" : "`" + names[i] + "`"; };
    std::vector<PyObject*> values;
    for (size_t i = 0; i < tensors.size(); ++i) {
      PyObject* value = PyTuple_GET_ITEM(tensors.ptr(), static_cast<Py_ssize_t>(i));
      if (!tensor_plug().is_tensor(value)) return name(i) + " is a " + py::type_name(value) + ", was a tensor";
      auto twin = std::find(values.begin(), values.end(), value);
      if (twin != values.end())
        return name(static_cast<size_t>(twin - values.begin())) + " and " + name(i) + " are the same tensor";
      values.push_back(value);
    }
    ptrdiff_t bad = checks_->first_mismatch(values.data());
    if (bad < 0) return "";
    auto index = static_cast<size_t>(bad);
    return name(index) + " is " + checks_->explain(index, values[index]);
  }

  std::unique_ptr<runtime::TensorChecks> checks_ = tensor_plug().tensor_checks();
};

bool assert_size_stride(nb::handle tensor, const nb::tuple& size, const nb::tuple& stride,
                        std::optional<std::string> op_name) {
  need_tensor(tensor);
  Dimensions is_size = dimensions(nb::none(), tensor, "shape"), is_stride = dimensions(nb::none(), tensor, "stride");
  Dimensions want_size, want_stride;
  if (!nb::try_cast(size, want_size) || !nb::try_cast(stride, want_stride))
    wrong_type("sizes and strides are tuples of ints, not " + py::repr(size.ptr()) + " and " + py::repr(stride.ptr()));
  std::string where = op_name ? " (in " + *op_name + ")" : "";
  auto fail = [&](const std::string& text) {
    PyErr_SetString(PyExc_AssertionError, (text + where).c_str());
    throw nb::python_error();
  };
  auto text = [](std::optional<int64_t> number) { return number ? std::to_string(*number) : "none"; };
  if (want_size.size() != is_size.size() || want_stride.size() != is_size.size())
    fail("expected " + std::to_string(want_size.size()) + " sizes and " + std::to_string(want_stride.size()) +
         " strides, the tensor has " + std::to_string(is_size.size()) + " dimensions");
  bool is_empty = std::find(is_size.begin(), is_size.end(), 0) != is_size.end();
  for (size_t i = 0; i < is_size.size(); ++i) {
    // Nothing is found by the strides of an empty tensor, nor by that of a dimension of size 1.
    bool stride_matters = !is_empty && is_size[i] != 1;
    if (want_size[i] == is_size[i] && (!stride_matters || want_stride[i] == is_stride[i])) continue;
    fail("expected size " + text(is_size[i]) + "==" + text(want_size[i]) + ", stride " + text(is_stride[i]) +
         "==" + text(want_stride[i]) + " at dim=" + std::to_string(i));
  }
  return true;
}

// ---- building from the root

PyObject* module_of(PyObject* globals) {
  PyObject* name = PyDict_GetItemString(globals, "__name__");
  nb::object module = nb::steal(name && PyUnicode_Check(name) ? PyImport_GetModule(name) : nullptr);
  if (!module.is_valid()) PyErr_Clear();
  bool is_it = module.is_valid() && PyModule_Check(module.ptr()) && PyModule_GetDict(module.ptr()) == globals;
  return is_it ? module.ptr() : nullptr;  // sys.modules holds it
}

// Who holds the globals and can be referenced weakly, which a dict cannot. Modules outlive functions.
PyObject* owner_of_globals(nb::handle owner) {
  if (PyModule_Check(owner.ptr())) return owner.ptr();
  bool is_function = PyFunction_Check(owner.ptr());
  if (!is_function && !PyDict_Check(owner.ptr()))
    wrong_type("globals belong to a function or a module, not to a " + class_name(owner));
  PyObject* module = module_of(is_function ? PyFunction_GET_GLOBALS(owner.ptr()) : owner.ptr());
  if (!module && !is_function) wrong_type("this dict is not that of an imported module; pass the function instead");
  return module ? module : owner.ptr();
}

Source* closure(Manager& manager, nb::handle function, const nb::str& name) {
  if (!PyFunction_Check(function.ptr())) wrong_type("expected a function, not a " + class_name(function));
  nb::object names = nb::steal(PyCode_GetFreevars((PyCodeObject*)PyFunction_GET_CODE(function.ptr())));
  if (!names.is_valid()) throw nb::python_error();
  Py_ssize_t index = PySequence_Index(names.ptr(), name.ptr());
  if (index < 0) {
    PyErr_Clear();
    wrong_value("the function has no free variable " + py::repr(name.ptr()));
  }
  return manager.closure(function.ptr(), index, name.ptr());
}

std::vector<Source*> need_places(nb::handle root, const nb::args& managers) {
  std::vector<Source*> sources;
  for (nb::handle each : managers) {
    Place* place;
    if (!nb::try_cast(each, place) || !place) wrong_type("expected guard managers, not a " + class_name(each));
    if (!place->root.is(root)) wrong_value("a guard manager of another root was given");
    if (std::find(sources.begin(), sources.end(), place->source) != sources.end())
      wrong_value("`" + place->source->name + "` was given twice");
    sources.push_back(place->source);
  }
  if (sources.size() < 2) wrong_value("expected at least two guard managers");
  return sources;
}

struct GuardDebugInfo : Manager::Verdict {};

struct GlobalStateGuard {
  std::unique_ptr<runtime::GlobalState> state = tensor_plug().whole_state();
};

void bind_root(nb::handle module, nb::object type) {
  auto need_root = [type](nb::handle self) -> Manager& {
    if (!PyObject_TypeCheck(self.ptr(), (PyTypeObject*)type.ptr())) wrong_type("expected a RootGuardManager");
    return manager_of(self.ptr());
  };
  auto define = [&](const char* name, auto function, const char* doc, const auto&... extra) {
    nb::cpp_function_def(function, nb::scope(type), nb::name(name), nb::is_method(), doc, extra...);
  };
  define(
      "local_manager",
      [=](nb::handle self, const nb::str& name) {
        return Place{nb::borrow(self), need_root(self).local(interned(name).ptr())};
      },
      "A local variable.", "name"_a);
  define(
      "global_manager",
      [=](nb::handle self, const nb::str& name, nb::handle owner) {
        return Place{nb::borrow(self), need_root(self).global(owner_of_globals(owner), interned(name).ptr())};
      },
      "A global variable of a module or of the module of a function.", "name"_a, "owner"_a);
  define(
      "builtin_manager",
      [=](nb::handle self, const nb::str& name) {
        nb::module_ builtins = nb::module_::import_("builtins");
        return Place{nb::borrow(self), need_root(self).global(builtins.ptr(), interned(name).ptr())};
      },
      "A builtin.", "name"_a);
  define(
      "closure_manager",
      [=](nb::handle self, nb::handle function, const nb::str& name) {
        return Place{nb::borrow(self), closure(need_root(self), function, interned(name))};
      },
      "A free variable of a function.", "function"_a, "name"_a);
  define(
      "add_same_object_guard",
      [=](nb::handle self, const nb::args& managers) {
        need_root(self).add_relation(true, need_places(self, managers));
      },
      "All of them are the same object.", nb::sig("def add_same_object_guard(self, *managers: GuardManager) -> None"));
  define(
      "add_no_aliasing_guard",
      [=](nb::handle self, const nb::args& managers) {
        need_root(self).add_relation(false, need_places(self, managers));
      },
      "No two of them are the same object.",
      nb::sig("def add_no_aliasing_guard(self, *managers: GuardManager) -> None"));
  define(
      "add_global_state_guard", [=](nb::handle self) { need_root(self).add_global_state(); },
      "Torch's global and per-thread state is what it is now.");
  define(
      "check_verbose",
      [=](nb::handle self, nb::handle f_locals) {
        Manager& manager = need_root(self);
        if (!is_locals(f_locals.ptr())) throw nb::python_error();
        return GuardDebugInfo{manager.explain(f_locals.ptr())};
      },
      "The same as check, slower, with the reason.", "f_locals"_a);
  module.attr("RootGuardManager") = type;
}

void bind_sources(nb::module_& module) {
  nb::class_<Place>(module, "GuardManager", "A place that guards look at; made by a RootGuardManager.")
      .def_prop_ro(
          "source", [](const Place& place) { return place.source->name; }, "How it is called in messages.")
      .def("__repr__", [](const Place& place) { return "<GuardManager " + place.source->name + ">"; })
      .def(
          "getattr_manager",
          [](const Place& place, const nb::str& name) { return place.step(Step::Attribute, interned(name).ptr()); },
          "name"_a,
          "An attribute, as inspect.getattr_static finds it; slots give their value. Properties are not called.")
      .def("getitem_manager", &index_or_key, "key"_a.none(), "An item of a list or tuple by index, of a dict by key.")
      .def("dict_getitem_manager", &item, "key"_a.none(), "An item of a dict, also under a negative key.")
      .def(
          "type_manager", [](const Place& place) { return place.step(Step::Type); }, "Its class.")
      .def(
          "len_manager", [](const Place& place) { return place.step(Step::Length); }, "How many items it has, an int.")
      .def(
          "keys_manager", [](const Place& place) { return place.step(Step::Keys); }, "The keys of a dict, a tuple.")
      .def(
          "tensor_property_manager",
          [](const Place& place, const std::string& name) {
            return place.step(Step::Property, nullptr, property_index(name));
          },
          "name"_a, "Metadata of a tensor, such as 'dtype' or 'shape' (a tuple).")
      .def(
          "add_identity_guard",
          [](const Place& place, nb::handle object) { place.add(guard::identity_check(object.ptr())); },
          "object"_a.none(),
          "It is this object (numbers and strings: an equal one of the same type). What can be referenced weakly is "
          "not mistaken for another one after its death.")
      .def("add_weak_identity_guard", &add_weak_identity, "object"_a.none(),
           "It is this object, which can be referenced weakly; fails once the object is gone.")
      .def(
          "add_type_guard", [](const Place& place, nb::handle type) { place.add(guard::type_check(need_type(type))); },
          "type"_a, "Its class is exactly this one.")
      .def("add_equals_guard", &add_equals, "value"_a.none(),
           "It equals this constant and is of the same type; floats to the bit.")
      .def(
          "add_truth_guard", [](const Place& place, bool value) { place.add({Condition::Truth, {}, nullptr, value}); },
          "value"_a, "It is true, or false, if that can be told without running code.")
      .def(
          "add_none_guard",
          [](const Place& place, bool is_none) { place.add({Condition::None, {}, nullptr, is_none}); },
          "is_none"_a = true, "It is None, or is not.")
      .def("add_length_guard", &add_length, "length"_a, "A container, str or bytes has this length.")
      .def("add_keys_guard", &add_keys, "keys"_a, "A dict has these keys in this order.")
      .def("add_dict_guard", &add_dict, "example"_a, "keys"_a = nb::none(),
           nb::sig("def add_dict_guard(self, example: dict[Any, Any], keys: Iterable[Any] | None = None) -> None"),
           "A dict holds under these keys what the example holds; without keys: all of them, in this order.")
      .def("add_type_version_guard", &add_type_version, "type"_a,
           "It is this class, and neither it nor a base of it was changed since.")
      .def(
          "add_absent_guard", [](const Place& place) { place.add({Condition::Absent}); }, "There is nothing here.")
      .def("add_tensor_guard", &add_tensor, "tensor"_a, "sizes"_a = nb::none(), "strides"_a = nb::none(),
           "It is a tensor of the same class, dtype, device, layout, requires_grad and dispatch keys, and of the same "
           "sizes and strides, or of those that are given: a number, or None for any, for each dimension.");
}

void bind_small(nb::module_& module) {
  nb::class_<GuardDebugInfo>(module, "GuardDebugInfo", "What check_verbose found.")
      .def_ro("result", &GuardDebugInfo::result, "Whether all guards hold.")
      .def_ro("reason", &GuardDebugInfo::reason, "The check that failed, in words; empty if none did.")
      .def_prop_ro("verbose_code_parts",
                   [](const GuardDebugInfo& info) {
                     return info.result ? std::vector<std::string>() : std::vector<std::string>{info.reason};
                   })
      .def_ro("num_guards_executed", &GuardDebugInfo::checks, "How many checks were made.")
      .def("__bool__", [](const GuardDebugInfo& info) { return info.result; })
      .def("__repr__", [](const GuardDebugInfo& info) {
        return "<GuardDebugInfo: " + (info.result ? "all hold" : info.reason) + ", " + std::to_string(info.checks) +
               " checks>";
      });
  nb::class_<TensorGuards>(module, "TensorGuards", "Whether tensors have the metadata of the first ones and differ.")
      .def(
          "__init__",
          [](TensorGuards* self, const nb::args& tensors, nb::object sizes, nb::object strides) {
            new (self) TensorGuards(tensors, sizes, strides);
          },
          "tensors"_a, "dynamic_dims_sizes"_a = nb::none(), "dynamic_dims_strides"_a = nb::none(),
          nb::sig("def __init__(self, *tensors: object, dynamic_dims_sizes: Sequence[Any] | None = None, "
                  "dynamic_dims_strides: Sequence[Any] | None = None) -> None"))
      .def("check", &TensorGuards::check, nb::sig("def check(self, *tensors: object) -> bool"))
      .def("check_verbose", &TensorGuards::check_verbose, "tensors"_a, "tensor_check_names"_a,
           nb::sig("def check_verbose(self, *tensors: object, tensor_check_names: Sequence[str]) -> bool | str"),
           "True, or the reason as text.");
  nb::class_<GlobalStateGuard>(module, "GlobalStateGuard", "Torch's global and per-thread state, as it is now.")
      .def(nb::init<>())
      .def(
          "check", [](const GlobalStateGuard& guard) { return guard.state->holds(); }, "Whether it is unchanged.")
      .def(
          "reason", [](const GlobalStateGuard& guard) { return guard.state->explain(); },
          "What was changed; empty if nothing was.");
  module.def(
      "check_type_id",
      [](nb::handle object, size_t type_id) { return reinterpret_cast<size_t>(Py_TYPE(object.ptr())) == type_id; },
      "obj"_a.none(), "type_id"_a, "Whether type(obj) is the class of this id.");
  module.def(
      "check_obj_id",
      [](nb::handle object, size_t object_id) { return reinterpret_cast<size_t>(object.ptr()) == object_id; },
      "obj"_a.none(), "obj_id"_a, "Whether obj is the object of this id.");
  module.def(
      "dict_version", [](const nb::dict& dict) { return mg_dict_version(dict.ptr()); }, "dict"_a,
      nb::sig("def dict_version(dict: dict[Any, Any]) -> int"),
      "A number that differs after the dict was changed (CPython 3.13: unless an attribute of its object was).");
  module.def("assert_size_stride", &assert_size_stride, "tensor"_a, "size"_a, "stride"_a, "op_name"_a = nb::none(),
             nb::sig("def assert_size_stride(tensor: object, size: tuple[int, ...], stride: tuple[int, ...], "
                     "op_name: str | None = None) -> bool"),
             "True; raises AssertionError if the tensor has another shape. Strides that address nothing may differ.");
}

}  // namespace

void bind_guards(nb::module_& module) {
  bind_sources(module);
  bind_small(module);
  bind_root(module, make_root_type(nb::cast<std::string>(module.attr("__name__"))));
}

}  // namespace magneto::python
