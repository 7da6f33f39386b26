// The table of C functions that real models call, and what each does.
#include "trace/call_table.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "cpython/cpython.h"
#include "cpython/ref.h"
#include "cpython/text.h"
#include "guard/pointer_set.h"
#include "trace/known_types.h"

namespace magneto::trace {

namespace {

struct Entry {
  Model model;
  const char* names;  // expressions that give the functions, separated by spaces
};

constexpr Entry kEntries[] = {
    {Model::Pure,
     "abs all any bin chr divmod hex max min oct ord pow round sum globals "
     "functools.reduce sys.intern object.__reduce__ "
     "operator.index operator.add operator.sub operator.mul operator.truediv operator.floordiv operator.mod "
     "operator.pow operator.neg operator.pos operator.abs operator.eq operator.ne operator.lt operator.le operator.gt "
     "operator.ge operator.and_ operator.or_ operator.xor operator.not_ operator.truth operator.lshift operator.rshift "
     "operator.contains operator.matmul operator.invert operator.concat operator.countOf operator.length_hint "
     "dict.fromkeys int.from_bytes float.fromhex bytes.fromhex str.maketrans "
     "object.__eq__ object.__ne__ object.__lt__ object.__le__ object.__gt__ object.__ge__ "
     "list.__eq__ list.__ne__ dict.__eq__ dict.__ne__ set.__eq__ type.__or__ type.__ror__ "
     "list.__add__ list.__mul__ list.__rmul__ list.__contains__ set.__contains__ dict.__or__"},
    {Model::Print,
     "ascii format repr object.__format__ object.__str__ object.__repr__ type.__repr__ list.__repr__ dict.__repr__ "
     "tuple.__repr__ frozenset.__repr__ str.__mod__"},
    {Model::Types,
     "callable isinstance issubclass type.__instancecheck__ type.__subclasscheck__ type.mro "
     "object.__init_subclass__ object.__subclasshook__"},
    {Model::Identity, "hash id object.__hash__"},
    {Model::Is, "operator.is_ operator.is_not"},
    {Model::Format, "str.format str.format_map"},
    {Model::Abc, "_abc._abc_instancecheck _abc._abc_subclasscheck"},
    {Model::GetAttribute,
     "getattr hasattr object.__getattribute__ type.__getattribute__ types.ModuleType.__getattribute__ "
     "super.__getattribute__"},
    {Model::SetAttribute, "setattr object.__setattr__ type.__setattr__"},
    {Model::DeleteAttribute, "delattr object.__delattr__"},
    {Model::DictLookup, "dict.get dict.__getitem__ dict.__contains__ collections.OrderedDict.__getitem__"},
    {Model::Layout,
     "len list.copy list.__len__ list.__iter__ list.__reversed__ "
     "dict.keys dict.values dict.items dict.copy dict.__len__ dict.__iter__ dict.__reversed__ "
     "collections.OrderedDict.keys collections.OrderedDict.values collections.OrderedDict.items "
     "collections.OrderedDict.copy collections.OrderedDict.__iter__ collections.OrderedDict.__len__ "
     "collections.OrderedDict.__reversed__ collections.defaultdict.copy "
     "collections.deque.__len__ collections.deque.__iter__ collections.deque.copy"},
    {Model::Contents,
     "sorted list.index list.count list.__getitem__ "
     "set.copy set.__len__ set.__iter__ set.union set.intersection set.difference set.issubset set.issuperset "
     "set.isdisjoint set.symmetric_difference collections.OrderedDict.__eq__ collections.deque.count "
     "types.MappingProxyType.keys types.MappingProxyType.values types.MappingProxyType.items "
     "types.MappingProxyType.get types.MappingProxyType.copy types.MappingProxyType.__contains__ "
     "types.MappingProxyType.__getitem__ types.MappingProxyType.__len__ types.MappingProxyType.__iter__"},
    {Model::DictPop, "dict.pop collections.OrderedDict.pop"},
    {Model::Mutate,
     "list.append list.extend list.insert list.pop list.remove list.clear list.sort list.reverse list.__setitem__ "
     "list.__delitem__ list.__iadd__ list.__imul__ dict.update dict.setdefault dict.clear dict.popitem "
     "dict.__setitem__ dict.__delitem__ dict.__ior__ set.add set.discard set.remove set.update set.clear set.pop "
     "set.difference_update set.intersection_update set.symmetric_difference_update set.__ior__ "
     "collections.OrderedDict.update collections.OrderedDict.setdefault collections.OrderedDict.clear "
     "collections.OrderedDict.popitem collections.OrderedDict.move_to_end collections.OrderedDict.__setitem__ "
     "collections.OrderedDict.__delitem__ collections.deque.append collections.deque.appendleft "
     "collections.deque.extend collections.deque.pop collections.deque.popleft collections.deque.clear "
     "BaseException.with_traceback BaseException.add_note BaseException.__setstate__"},
    {Model::Init,
     "object.__init__ list.__init__ dict.__init__ set.__init__ BaseException.__init__ "
     "collections.OrderedDict.__init__ collections.defaultdict.__init__ collections.deque.__init__ property.__init__ "
     "types.SimpleNamespace.__init__ OSError.__init__ ImportError.__init__ AttributeError.__init__ NameError.__init__ "
     "StopIteration.__init__ SyntaxError.__init__ UnicodeDecodeError.__init__ UnicodeEncodeError.__init__ "
     "type.__init__"},
    {Model::RecursionLimit, "sys.getrecursionlimit"},
    {Model::Reduce, "object.__reduce_ex__"},
    {Model::Next, "next types.GeneratorType.send types.GeneratorType.throw types.GeneratorType.close"},
    {Model::Iterate, "iter"},
    {Model::ClassCall, "type.__call__"},
    {Model::ContextGet, "contextvars.ContextVar.get"},
    {Model::ContextSet, "contextvars.ContextVar.set"},
    {Model::ContextReset, "contextvars.ContextVar.reset"},
    {Model::InstanceDict, "vars"},
    {Model::Frames,
     "sys._getframe sys._getframemodulename sys.exc_info sys.exception sys.settrace sys.setprofile sys._current_frames "
     "locals dir eval exec breakpoint "
     "__import__ _warnings.warn _warnings.warn_explicit"},
};

// Types and modules whose every C method is pure.
constexpr const char* kPureOwners[] = {"str",   "int",       "float", "bool",  "complex", "bytes",
                                       "tuple", "frozenset", "range", "slice", "math"};

// What identifies a C function, whether bound or not: its definition, or the definition and type of a slot wrapper.
const void* definition_of(PyObject* callable, PyObject** self) {
  *self = nullptr;
  if (Py_IS_TYPE(callable, &PyMethodDescr_Type)) return ((PyMethodDescrObject*)callable)->d_method;
  if (PyCFunction_Check(callable)) {
    PyObject* bound = PyCFunction_GET_SELF(callable);
    if (bound && !PyModule_Check(bound) && !PyType_Check(bound)) *self = bound;
    return ((PyCFunctionObject*)callable)->m_ml;
  }
  PyTypeObject* type = Py_TYPE(callable);
  if (type == &PyClassMethodDescr_Type) return ((PyMethodDescrObject*)callable)->d_method;
  if (type == &PyWrapperDescr_Type) return callable;
  PyWrapperDescrObject* descriptor;
  if (mg_method_wrapper(callable, &descriptor, self)) return descriptor;
  return nullptr;
}

using Table = guard::PointerMap<Model>;

void add(Table* table, PyObject* callable, Model model) {
  PyObject* self;
  const void* key = definition_of(callable, &self);
  // A slot wrapper that several types share through inheritance is one object; keep it, its address is the key.
  if (!key) return;
  auto [place, is_new] = table->insert(key);
  if (!is_new) return;
  *place = model;
  Py_INCREF(callable);
}

Table build_table() {
  Table table;
  py::Ref scope = py::Ref::steal(PyDict_New());
  py::Ref ready = py::Ref::steal(PyRun_String(
      "import _abc, _warnings, builtins, collections, contextvars, functools, math, operator, sys, types\n",
      Py_file_input, scope.get(), scope.get()));
  if (!ready) PyErr_Clear();
  for (const Entry& entry : kEntries) {
    std::string names = entry.names;
    for (size_t start = 0; start < names.size();) {
      size_t end = std::min(names.find(' ', start), names.size());
      std::string name = names.substr(start, end - start);
      start = end + 1;
      py::Ref callable = py::Ref::steal(PyRun_String(name.c_str(), Py_eval_input, scope.get(), scope.get()));
      if (callable) add(&table, callable.get(), entry.model);
      PyErr_Clear();
    }
  }
  py::Ref inits = py::Ref::steal(PyRun_String(
      "[t.__init__ for t in vars(builtins).values() if isinstance(t, type) and issubclass(t, BaseException)]",
      Py_eval_input, scope.get(), scope.get()));
  PyErr_Clear();
  for (Py_ssize_t i = 0; inits && i < PyList_GET_SIZE(inits.get()); ++i)
    add(&table, PyList_GET_ITEM(inits.get(), i), Model::Init);
  for (const char* owner : kPureOwners) {
    std::string expression = std::string("list(vars(") + owner + ").values())";
    py::Ref members = py::Ref::steal(PyRun_String(expression.c_str(), Py_eval_input, scope.get(), scope.get()));
    PyErr_Clear();
    for (Py_ssize_t i = 0; members && i < PyList_GET_SIZE(members.get()); ++i) {
      PyObject* member = PyList_GET_ITEM(members.get(), i);
      if (PyCFunction_Check(member) && ((PyCFunctionObject*)member)->m_ml->ml_name == std::string("__new__")) continue;
      add(&table, member, Model::Pure);
    }
  }
  return table;
}

Table& table() {
  static Table* table = new Table(build_table());
  return *table;
}

}  // namespace

Model model_of(PyObject* callable, PyObject** self) {
  const void* key = definition_of(callable, self);
  if (!key) return Model::Unknown;
  if (const Model* found = table().find(key)) return *found;
  // `__new__` is one C function for all types, bound to the type.
  if (PyCFunction_Check(callable) && std::string(((PyCFunctionObject*)callable)->m_ml->ml_name) == "__new__")
    return Model::New;
  return Model::Unknown;
}

bool looks_at_frames(PyObject* callable) {
  PyObject* self;
  if (!PyType_Check(callable)) return model_of(callable, &self) == Model::Frames;
  auto* type = (PyTypeObject*)callable;
  // They note the module that they are called in.
  constexpr std::array<std::string_view, 4> kNamedByCaller = {"typing.TypeVar", "typing.ParamSpec",
                                                              "typing.TypeVarTuple", "typing.TypeAliasType"};
  return type == &PySuper_Type || PyType_IsSubtype(type, &PyType_Type) ||
         std::ranges::find(kNamedByCaller, std::string_view(type->tp_name)) != kNamedByCaller.end();
}

namespace {

PyMethodDef kSetAttribute = {"set_attribute",
                             [](PyObject* name, PyObject* given) -> PyObject* {
                               PyObject *value, *object;
                               if (!PyArg_UnpackTuple(given, "set_attribute", 2, 2, &value, &object)) return nullptr;
                               return PyObject_SetAttr(object, name, value) < 0 ? nullptr : Py_NewRef(Py_None);
                             },
                             METH_VARARGS, nullptr};

PyMethodDef kGetAttribute = {
    "get_attribute", [](PyObject* name, PyObject* object) { return PyObject_GetAttr(object, name); }, METH_O, nullptr};

}  // namespace

std::string callable_name(PyObject* callable) {
  const PyMethodDef* own = PyCFunction_Check(callable) ? ((PyCFunctionObject*)callable)->m_ml : nullptr;
  if (own == &kSetAttribute || own == &kGetAttribute)
    return (own == &kSetAttribute ? "setattr of '" : "getattr of '") + py::text(PyCFunction_GET_SELF(callable)) + "'";
  if (mg_is_python_class(Py_TYPE(callable)))  // whose code must not be asked
    return PyType_Check(callable) ? ((PyTypeObject*)callable)->tp_name : "a " + py::type_name(callable);
  for (const char* attribute : {"__qualname__", "__name__"}) {
    py::Ref name = py::Ref::steal(PyObject_GetAttrString(callable, attribute));
    if (!name || !PyUnicode_Check(name.get())) {
      PyErr_Clear();
      continue;
    }
    py::Ref module = py::Ref::steal(PyObject_GetAttrString(callable, "__module__"));
    if (!module) PyErr_Clear();
    bool plain =
        !module || !PyUnicode_Check(module.get()) || PyUnicode_CompareWithASCIIString(module.get(), "builtins") == 0;
    return plain ? py::text(name.get()) : py::text(module.get()) + "." + py::text(name.get());
  }
  return "a " + py::type_name(callable);
}

bool is_len(PyObject* callable) {
  static PyObject* len = PyDict_GetItemString(PyEval_GetBuiltins(), "len");
  return callable == len;
}

bool is_sum(PyObject* callable) {
  static PyObject* sum = PyDict_GetItemString(PyEval_GetBuiltins(), "sum");
  return callable == sum;
}

PyObject* call_with_star() {
  static PyMethodDef definition = {"call_with_star",
                                   [](PyObject*, PyObject* given) -> PyObject* {
                                     PyObject *callable, *args, *keywords = nullptr;
                                     if (!PyArg_ParseTuple(given, "OO|O", &callable, &args, &keywords)) return nullptr;
                                     py::Ref positional = py::Ref::steal(PySequence_Tuple(args));
                                     return positional ? PyObject_Call(callable, positional.get(), keywords) : nullptr;
                                   },
                                   METH_VARARGS, nullptr};
  static PyObject* function = PyCFunction_New(&definition, nullptr);
  return function;
}

namespace {

// Programs that do the same have the same function.
PyObject* function_for(PyMethodDef* definition, PyObject* name, PyObject* known) {
  PyObject* function = PyDict_GetItemWithError(known, name);
  if (function) return function;
  py::Ref made = py::Ref::steal(PyCFunction_New(definition, name));
  return made && PyDict_SetItem(known, name, made.get()) == 0 ? made.get() : nullptr;
}

}  // namespace

PyObject* attribute_setter(PyObject* name) {
  static PyObject* known = PyDict_New();
  return function_for(&kSetAttribute, name, known);
}

PyObject* attribute_getter(PyObject* name) {
  static PyObject* known = PyDict_New();
  return function_for(&kGetAttribute, name, known);
}

void add_own_function(PyObject* function) { add(&table(), function, Model::Own); }

}  // namespace magneto::trace
