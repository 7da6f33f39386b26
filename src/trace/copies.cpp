// object.__reduce_ex__, by which the module copy takes objects apart.
#include <algorithm>

#include "cpython/cpython.h"
#include "trace/known_types.h"
#include "trace/watch.h"

namespace magneto::trace {

namespace {

struct Hook {
  PyObject* name;
  PyObject* plain;  // what object has there, or null
};

// What a class may have to say about it.
const std::vector<Hook>& hooks() {
  static const auto& all = *[] {
    auto* found = new std::vector<Hook>;
    for (const char* text : {"__reduce__", "__getstate__", "__getnewargs__", "__getnewargs_ex__"}) {
      PyObject* name = PyUnicode_InternFromString(text);
      found->push_back({name, _PyType_Lookup(&PyBaseObject_Type, name)});
    }
    return found;
  }();
  return all;
}

bool has_slots(PyTypeObject* type) {
  PyObject** bases = ((PyTupleObject*)type->tp_mro)->ob_item;
  return std::any_of(bases, bases + PyTuple_GET_SIZE(type->tp_mro),
                     [](PyObject* base) { return mg_has_slots((PyTypeObject*)base); });
}

}  // namespace

// Into the function that makes an object of the class, and its __dict__.
bool Watch::is_reduced_plainly(PyObject* object, PyObject* const* args, size_t count) const {
  PyTypeObject* type = Py_TYPE(object);
  const Kind* kind = kinds_.find(type);
  bool is_known = kind && *kind == Kind::Instance && !contents().containers().contains(object);
  bool is_plain = is_known && mg_dict_slot(object) && !has_slots(type);
  bool is_current = count == 1 && PyLong_CheckExact(args[0]) && PyLong_AsLong(args[0]) >= 2;
  auto has_no_say = [type](const Hook& hook) { return _PyType_Lookup(type, hook.name) == hook.plain; };
  return is_plain && is_current && type->tp_new == PyBaseObject_Type.tp_new && std::ranges::all_of(hooks(), has_no_say);
}

// What came out of it: a function, its arguments, the object's __dict__, None and None.
PyObject* Watch::reduce(PyObject* object, const Call& call) {
  PyObject* reduced;
  {
    runtime::PauseWatch pause;  // who asks first notes in the class which slots it has
    reduced = call.make();
  }
  if (!reduced || !alive()) return reduced;
  static PyObject* maker_name = PyUnicode_InternFromString("__newobj__");
  static PyObject* module_name = PyUnicode_InternFromString("copyreg");
  for (const Hook& hook : hooks()) guards.read_type(Py_TYPE(object), hook.name);
  py::Ref module = py::Ref::steal(PyImport_GetModule(module_name));
  if (!module || !PyTuple_CheckExact(reduced) || PyTuple_GET_SIZE(reduced) != 5)
    return give_up("an object is taken apart in a way that is not understood"), reduced;
  read_attribute(module.get(), maker_name);
  PyObject* attributes = *mg_dict_slot(object);
  if (is_fresh(object)) {
    mark_attributes(attributes);
  } else {
    read_instance(object);
    read_contents(attributes);
  }
  mark_fresh(reduced);
  mark_fresh(PyTuple_GET_ITEM(reduced, 1));
  return reduced;
}

}  // namespace magneto::trace
