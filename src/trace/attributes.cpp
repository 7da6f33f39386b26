// What an attribute look-up depends on: the class, the instance, and whatever stands in between.
#include <algorithm>
#include <string_view>

#include "cpython/cpython.h"
#include "cpython/text.h"
#include "trace/known_types.h"
#include "trace/watch.h"
#include "trace/writer.h"

namespace magneto::trace {

using py::text;

namespace {

bool is_c_attribute(PyObject* descriptor) {
  return Py_TYPE(descriptor) == &PyGetSetDescr_Type || Py_TYPE(descriptor) == &PyMemberDescr_Type;
}

// The name for which `property(operator.attrgetter(name))` stands, or null.
py::Ref attribute_behind(PyObject* property) {
  py::Ref getter = py::Ref::steal(PyObject_GetAttrString(property, "fget"));
  if (!getter || std::string_view(Py_TYPE(getter.get())->tp_name) != "operator.attrgetter")
    return PyErr_Clear(), py::Ref();
  py::Ref parts = py::Ref::steal(PyObject_CallMethod(getter.get(), "__reduce__", nullptr));
  PyObject *cls, *name;
  if (!parts || !PyArg_ParseTuple(parts.get(), "O(U)", &cls, &name)) return PyErr_Clear(), py::Ref();
  return text(name).find('.') == std::string::npos ? py::Ref::borrow(name) : py::Ref();
}

PyObject* find_text(PyObject* dict, PyObject* name) {
  PyObject* value = PyDict_GetItemWithError(dict, name);
  if (!value) PyErr_Clear();
  return value;
}

}  // namespace

// Notes the look-up of `name` through the class of `object`. True if the instance's own __dict__ matters, too.
bool Watch::read_class_attribute(PyTypeObject* type, PyObject* name, PyObject* object) {
  const ClassAttribute* known = class_attributes_.find(type, name);
  bool holds = known && known->version && known->version == mg_type_version(type);
  return holds ? known->leads_on : read_new_class_attribute(type, name, object);
}

bool Watch::read_new_class_attribute(PyTypeObject* type, PyObject* name, PyObject* object) {
  guards.read_type(type, name);
  PyObject* found = _PyType_Lookup(type, name);
  // For all instances, as long as the class stays as it is.
  auto answer = [&](bool leads_on) {
    bool is_fixed = !found || !(Py_TYPE(found)->tp_flags & Py_TPFLAGS_HEAPTYPE);
    if (alive() && is_fixed) *class_attributes_.insert(type, name).first = {mg_type_version(type), leads_on};
    return leads_on;
  };
  if (!found) return answer(true);
  saw(found);
  PyTypeObject* descriptor = Py_TYPE(found);
  if (!descriptor->tp_descr_get || is_binding_descriptor(descriptor)) {
    if (descriptor->tp_flags & Py_TPFLAGS_HEAPTYPE) guards.read_specials(descriptor);
    return answer(!descriptor->tp_descr_set);
  }
  if (descriptor == &PyProperty_Type) {
    py::Ref behind = attribute_behind(found);
    if (behind && !_PyType_Lookup(type, behind.get()))
      read_attribute(object, behind.get());
    else if (!property_is_python(found))
      give_up("the property '" + text(name) + "' of " + type->tp_name + " is written in C");
    return false;
  }
  if (is_c_attribute(found)) {
    if (is_tensor(object)) {
      auto kind = plug_.classify_attribute(object, name);
      if (kind == runtime::CallKind::Refused || kind == runtime::CallKind::Balanced)
        give_up("the call reads the attribute '" + text(name) + "' of a tensor");
    }
    // A slot that is empty raises AttributeError, which the program may expect; finish_attribute guards the others.
    if (descriptor == &PyMemberDescr_Type && !is_fresh(object)) {
      py::Ref value = py::Ref::steal(descriptor->tp_descr_get(found, object, (PyObject*)type));
      if (!value) {
        PyErr_Clear();
        guards.read_slot(object, found, nullptr);
      }
    }
    return false;
  }
  if (kind_of(descriptor) == Kind::Identity) return false;  // the fields of named tuples
  give_up("the attribute '" + text(name) + "' of " + type->tp_name + " is a " + descriptor->tp_name + ", written in C");
  return false;
}

// super().name looks through the classes after the current one.
void Watch::read_super(PyObject* super, PyObject* name) {
  py::Ref self_class = py::Ref::steal(PyObject_GetAttrString(super, "__self_class__"));
  py::Ref this_class = py::Ref::steal(PyObject_GetAttrString(super, "__thisclass__"));
  if (!self_class || !this_class || !PyType_Check(self_class.get())) {
    PyErr_Clear();
    return give_up("the call uses super() in a way that is not understood");
  }
  guards.read_specials((PyTypeObject*)self_class.get());  // and with them the order of its bases
  PyObject* mro = ((PyTypeObject*)self_class.get())->tp_mro;
  bool after = false;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(mro); ++i) {
    auto* base = (PyTypeObject*)PyTuple_GET_ITEM(mro, i);
    if (!after) {
      after = (PyObject*)base == this_class.get();
      continue;
    }
    guards.read_type(base, name);
    PyObject* own = PyDict_GetItemWithError(mg_type_dict(base), name);
    if (!own) continue;
    PyTypeObject* descriptor = Py_TYPE(own);
    bool python_property = descriptor == &PyProperty_Type && property_is_python(own);
    if (descriptor->tp_descr_get && !is_binding_descriptor(descriptor) && !python_property)
      return give_up("super()." + text(name) + " is a " + descriptor->tp_name + ", written in C");
    return saw(own);
  }
}

// Arguments are guarded to have no attributes of their own, and what the call made is fresh.
void Watch::read_tensor_attribute(PyObject* tensor, PyObject* name) {
  if (!guards.has_state_tensor(tensor)) {
    // An argument has no attributes but marks, which no guard looks at.
    std::string asked = text(name);
    if (runtime::is_mark(asked) || (asked == "__dict__" && mg_has_attributes(tensor)))
      give_up("the call asks what is marked on a tensor");
    // Behind a cut, what was there before may have others, which unknown code has set.
    bool was_there = std::any_of(writer_->tensors.begin(), writer_->tensors.end(),
                                 [&](const auto& carried) { return carried.first == tensor; });
    if (cuts_ && (was_there || is_argument(tensor)) && !_PyType_Lookup(Py_TYPE(tensor), name))
      give_up("the call reads the attribute '" + text(name) + "' of a tensor behind a cut");
    return;
  }
  read_instance(tensor);
  PyObject** slot = mg_dict_slot(tensor);
  if (slot && *slot) read_dict_key(*slot, name);
}

// The dict may be made just now, at the address of one that the call has made and dropped.
void Watch::read_instance(PyObject* object) {
  if (contents().containers().contains(object)) return;  // which is guarded to be like this one
  guards.read_instance(object);
  PyObject** slot = mg_dict_slot(object);
  if (slot && *slot && fresh_.contains(*slot)) {
    fresh_.erase(*slot);
    attribute_dicts_.erase(*slot);
  }
}

// Where the look-ups of an instance end, if others were noted already and nothing has changed since. Null: who knows.
PyObject* Watch::known_dict(PyObject* object) const {
  PyObject* const* dict = effects.empty() ? instances_.find(object) : nullptr;
  if (!dict) return nullptr;
  const guard::PointerSet& given = contents().containers();
  if (given.contains(object) || given.contains(*dict)) return nullptr;
  PyObject** slot = mg_dict_slot(object);
  return slot && *slot == *dict ? *dict : nullptr;
}

NodeId Watch::look_up_attribute(PyObject* object, PyObject* name, PyObject** found) {
  if (!alive()) return kKnown;
  if (!PyUnicode_CheckExact(name)) {
    give_up("the call reads an attribute whose name is no plain string");
    return kKnown;
  }
  if (PyCell_Check(object)) settle(content(object).node);
  if (const NodeId* known = effects.empty() ? attributes_.find(object, name) : nullptr) return *known;
  PyTypeObject* type = Py_TYPE(object);
  if (PyObject* dict = known_dict(object)) {
    if (!read_class_attribute(type, name, object) || !alive()) return kKnown;
    PyObject* value = find_text(dict, name);
    if (found && type->tp_getattro == PyObject_GenericGetAttr) *found = value;
    return *attributes_.insert(object, name).first = look_up_item(dict, name, value);
  }
  if (type == &PySuper_Type) {
    read_super(object, name);
    return kKnown;
  }
  if (PyModule_Check(object)) {
    PyObject* dict = PyModule_GetDict(object);
    guards.read_type(type, name);
    NodeId node = look_up_key(dict, name);
    if (alive() && !guard::find_key(dict, name)) {
      py::Ref fallback = py::Ref::steal(PyUnicode_InternFromString("__getattr__"));
      read_dict_key(dict, fallback.get());
    }
    if (type->tp_flags & Py_TPFLAGS_HEAPTYPE) guards.read_specials(type);
    guards.read_class(object);
    return node;
  }
  if (PyMethod_Check(object)) {
    return _PyType_Lookup(type, name) ? kKnown : look_up_attribute(PyMethod_GET_FUNCTION(object), name);
  }
  if (PyType_Check(object)) {
    auto* cls = (PyTypeObject*)object;
    guards.read_type(cls, name);
    if (PyObject* found = _PyType_Lookup(cls, name)) {
      saw(found);
      PyTypeObject* descriptor = Py_TYPE(found);
      if (kind_of(descriptor) == Kind::Instance) guards.read_specials(descriptor);
      if (descriptor->tp_descr_get && !is_binding_descriptor(descriptor) && descriptor != &PyProperty_Type &&
          !is_c_attribute(found) && kind_of(descriptor) != Kind::Identity)
        give_up("the class attribute '" + text(name) + "' of " + cls->tp_name + " is a " + descriptor->tp_name);
    }
    read_class_attribute(type, name, object);
    if (type != &PyType_Type) guards.read_specials(type);
    if (cls->tp_flags & Py_TPFLAGS_HEAPTYPE) guards.read_class(object);
    return kKnown;
  }
  Kind kind = kind_of(type);
  if (type->tp_getattro != PyObject_GenericGetAttr && kind != Kind::Atom && kind != Kind::Identity) {
    if (!mg_is_python_class(type) || kind == Kind::Unknown) {
      give_up("the call reads an attribute of a " + std::string(type->tp_name));
      return kKnown;
    }
    guards.read_specials(type);  // __getattr__ or __getattribute__, whose Python code is watched
  }
  if (!read_class_attribute(type, name, object) || !alive() || is_fresh(object)) return kKnown;
  if (is_tensor(object)) {
    read_tensor_attribute(object, name);
    return kKnown;
  }
  if (kind == Kind::Atom) return kKnown;  // which is guarded by value: the object may be another one
  read_instance(object);                  // which also keeps it, so that its address stands for it
  PyObject** slot = mg_dict_slot(object);
  NodeId node = slot && *slot ? look_up_key(*slot, name) : kKnown;
  if (slot && *slot && alive() && is_tracked(object) && is_tracked(*slot)) *instances_.insert(object).first = *slot;
  *attributes_.insert(object, name).first = node;
  return node;
}

NodeId Watch::finish_attribute(PyObject* object, PyObject* name, PyObject* value) {
  if (!alive()) return kKnown;
  PyTypeObject* type = Py_TYPE(object);
  PyObject* descriptor = _PyType_Lookup(type, name);
  if (!descriptor || !is_c_attribute(descriptor)) return kKnown;
  if (is_tensor(object)) {
    bool has_stand_in = is_tensor(value) || is_number(value) || PyTuple_Check(value);
    StandIns* again = has_stand_in ? stand_ins() : nullptr;
    NodeId node = again ? again->get_attribute(object, name, value) : kKnown;
    check_tensors(value, "an attribute of a tensor");
    return node;
  }
  if (is_fresh(object)) {
    PyObject** own = mg_dict_slot(object);
    if (own && *own == value) mark_attributes(value);
    return kKnown;
  }
  if (plug_.is_immutable(type) || kind_of(type) == Kind::Atom || PyCode_Check(object) || PySlice_Check(object))
    return kKnown;
  PyObject** slot = mg_dict_slot(object);
  bool own_dict = slot && *slot == value;
  if (own_dict || value == (PyObject*)type) {  // __dict__ and __class__
    read_instance(object);
    return kKnown;
  }
  if (PyType_Check(object) && Py_TYPE(value) == &PyDictProxy_Type) {  // a new one each time, over the same dict
    read_contents(mg_type_dict((PyTypeObject*)object));
    mark_fresh(value);
    return kKnown;
  }
  py::Ref again = py::Ref::steal(Py_TYPE(descriptor)->tp_descr_get(descriptor, object, (PyObject*)type));
  if (!again) PyErr_Clear();
  bool is_same = again.get() == value || (again && guard::same_atom(again.get(), value));
  if (!is_same || (kind_of(type) == Kind::Unknown && Py_TYPE(descriptor) == &PyGetSetDescr_Type)) {
    give_up("the call reads '" + text(name) + "' of a " + type->tp_name);
    return kKnown;
  }
  if (!is_tracked(object)) return give_up("the call reads '" + text(name) + "' of an argument"), kKnown;
  guards.read_slot(object, descriptor, value);
  saw(value);
  return kKnown;
}

}  // namespace magneto::trace
