// Tables of types.
#include "trace/known_types.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "cpython/cpython.h"
#include "cpython/ref.h"
#include "runtime/tensor_plug.h"
#include "trace/call_table.h"

namespace magneto::trace {

namespace {

// Methods that C code looks up by itself, without the underscores. Not here: those that our interpreter looks up and
// calls, as any function.
constexpr std::string_view kSpecialMethods =
    "abs add and bool bytes ceil class_getitem complex contains delattr delete delitem dir divmod eq float floor "
    "floordiv format ge get getattr getattribute getitem gt hash iadd iand ifloordiv ilshift imatmul imod imul "
    "index init instancecheck int invert ior ipow irshift isub iter itruediv ixor le len length_hint lshift lt "
    "matmul missing mod mul ne neg new next or pos pow radd rand rdivmod repr reversed rfloordiv rlshift rmatmul "
    "rmod rmul ror round rpow rrshift rshift rsub rtruediv rxor set setattr setitem str sub subclasscheck "
    "truediv trunc xor";

std::unordered_set<std::string_view> words(std::string_view text) {
  std::unordered_set<std::string_view> all;
  for (size_t start = 0; start < text.size();) {
    size_t end = std::min(text.find(' ', start), text.size());
    all.insert(text.substr(start, end - start));
    start = end + 1;
  }
  return all;
}

struct Tables {
  std::unordered_map<PyTypeObject*, Kind> kinds;
  std::unordered_set<std::string_view> special_methods = words(kSpecialMethods);
  std::unordered_set<PyTypeObject*> constructors;
  reprfunc python_class_repr;
};

// The type object that `expression` evaluates to; kept alive for good.
PyTypeObject* evaluate_type(const char* expression, PyObject* scope) {
  PyObject* type = PyRun_String(expression, Py_eval_input, scope, scope);
  if (!type) PyErr_Clear();  // not in this Python version
  return (PyTypeObject*)type;
}

Tables build_tables() {
  Tables tables;
  py::Ref scope = py::Ref::steal(PyDict_New());
  py::Ref ready = py::Ref::steal(PyRun_String(
      "import _typing, builtins, collections, contextvars, functools, itertools, operator, types, weakref\n"
      "class Plain:\n"
      "  def __repr__(self): pass\n"
      "def generator(): yield\n",
      Py_file_input, scope.get(), scope.get()));
  if (!ready) PyErr_Clear();
  auto add = [&](Kind kind, std::initializer_list<const char*> expressions) {
    for (const char* expression : expressions)
      if (PyTypeObject* type = evaluate_type(expression, scope.get())) tables.kinds.emplace(type, kind);
  };
  add(Kind::Atom,
      {"type(None)", "int", "bool", "float", "complex", "str", "bytes", "type(...)", "type(NotImplemented)", "range"});
  add(Kind::Identity, {"object",
                       "type",
                       "types.FunctionType",
                       "types.BuiltinFunctionType",
                       "types.MethodType",
                       "types.MethodDescriptorType",
                       "types.WrapperDescriptorType",
                       "types.MethodWrapperType",
                       "types.ClassMethodDescriptorType",
                       "types.GetSetDescriptorType",
                       "types.MemberDescriptorType",
                       "property",
                       "staticmethod",
                       "classmethod",
                       "types.ModuleType",
                       "types.CellType",
                       "types.CodeType",
                       "functools.partial",
                       "type(functools.lru_cache(lambda: 0))",
                       "types.GenericAlias",
                       "type(int | str)",
                       "contextvars.ContextVar",
                       "contextvars.Token",
                       "super",
                       "types.FrameType",
                       "types.TracebackType",
                       "types.SimpleNamespace",
                       "BaseException",
                       "type(collections.namedtuple('T', 'a').a)",
                       "weakref.ref",
                       "operator.attrgetter",
                       "operator.itemgetter",
                       "_typing.TypeVar",
                       "_typing.TypeVarTuple",
                       "_typing.ParamSpec",
                       "_typing.TypeAliasType"});
  add(Kind::Tuple, {"tuple", "frozenset", "slice"});
  add(Kind::List, {"list"});
  add(Kind::Dict, {"dict", "collections.OrderedDict", "collections.defaultdict"});
  add(Kind::Set, {"set"});
  add(Kind::Iterator, {"type({}.keys())",
                       "type({}.values())",
                       "type({}.items())",
                       "type(collections.OrderedDict().keys())",
                       "type(collections.OrderedDict().values())",
                       "type(collections.OrderedDict().items())",
                       "types.MappingProxyType",
                       "type(iter([]))",
                       "type(iter(()))",
                       "type(iter({}))",
                       "type(iter({}.values()))",
                       "type(iter({}.items()))",
                       "type(iter(set()))",
                       "type(iter(range(0)))",
                       "type(iter(range(2**70)))",
                       "type(iter(''))",
                       "type(iter(b''))",
                       "type(iter(collections.OrderedDict()))",
                       "type(iter(collections.deque()))",
                       "collections.deque",
                       "type(reversed([]))",
                       "type(reversed({}))",
                       "reversed",
                       "enumerate",
                       "zip",
                       "map",
                       "filter",
                       "types.GeneratorType",
                       "itertools.chain",
                       "itertools.product",
                       "itertools.repeat",
                       "itertools.count",
                       "itertools.islice",
                       "itertools.zip_longest",
                       "itertools.accumulate",
                       "itertools.starmap",
                       "itertools.takewhile",
                       "itertools.dropwhile",
                       "itertools.combinations",
                       "itertools.permutations",
                       "itertools.cycle",
                       "itertools.pairwise",
                       "itertools.compress",
                       "type(iter(int, 1))"});
  for (const char* name : {"bool",
                           "int",
                           "float",
                           "complex",
                           "str",
                           "bytes",
                           "tuple",
                           "list",
                           "dict",
                           "set",
                           "frozenset",
                           "range",
                           "slice",
                           "enumerate",
                           "zip",
                           "reversed",
                           "map",
                           "filter",
                           "super",
                           "object",
                           "property",
                           "staticmethod",
                           "classmethod",
                           "collections.OrderedDict",
                           "collections.defaultdict",
                           "collections.deque",
                           "functools.partial",
                           "types.SimpleNamespace",
                           "types.MappingProxyType",
                           "types.MethodType",
                           "itertools.chain",
                           "itertools.product",
                           "itertools.repeat",
                           "itertools.islice",
                           "itertools.zip_longest",
                           "itertools.accumulate",
                           "itertools.takewhile",
                           "itertools.dropwhile",
                           "itertools.combinations",
                           "itertools.permutations",
                           "itertools.count",
                           "itertools.cycle",
                           "itertools.pairwise",
                           "itertools.compress"})
    if (PyTypeObject* type = evaluate_type(name, scope.get())) tables.constructors.insert(type);
  PyTypeObject* plain = evaluate_type("Plain", scope.get());
  tables.python_class_repr = plain->tp_repr;
  return tables;
}

const Tables& tables() {
  static const Tables* tables = new Tables(build_tables());
  return *tables;
}

// Tuples with names that are made in C, such as torch.return_types.
bool is_struct_sequence(PyTypeObject* type) {
  static PyObject* name = PyUnicode_InternFromString("n_sequence_fields");
  return PyType_IsSubtype(type, &PyTuple_Type) && _PyType_Lookup(type, name);
}

// A special method that is seen when C code calls it: Python code, or what C code expects there anyway.
bool is_transparent(PyObject* name, PyObject* method) {
  PyTypeObject* type = Py_TYPE(method);
  if (type == &PyClassMethod_Type || type == &PyStaticMethod_Type) {
    py::Ref inner = py::Ref::steal(PyObject_GetAttrString(method, "__func__"));
    if (!inner) PyErr_Clear();
    return inner && (PyFunction_Check(inner.get()) || PyType_Check(inner.get()));
  }
  if (type == &PyWrapperDescr_Type || type == &PyMethodDescr_Type) {
    PyObject* self;
    return PyUnicode_Compare(PyDescr_NAME(method), name) == 0 || model_of(method, &self) == Model::Pure;
  }
  return PyCFunction_Check(method) && std::string_view(((PyCFunctionObject*)method)->m_ml->ml_name) == "__new__";
}

bool is_exception(PyTypeObject* type) { return PyType_IsSubtype(type, (PyTypeObject*)PyExc_BaseException); }

}  // namespace

void build_type_tables() { tables(); }

namespace {

Kind find_kind(PyTypeObject* type) {
  if (!type->tp_mro) return Kind::Unknown;  // a class in the making
  const auto& plug = runtime::tensor_plug();
  if (plug.tensor_type && PyType_IsSubtype(type, plug.tensor_type)) return Kind::Tensor;
  if (plug.is_immutable(type)) return Kind::Atom;
  auto found = tables().kinds.find(type);
  if (found != tables().kinds.end()) return found->second;
  if (PyType_IsSubtype(type, &PyType_Type)) return has_opaque_specials(type) ? Kind::Unknown : Kind::Identity;
  if (is_struct_sequence(type)) return Kind::Tuple;
  if (!mg_is_python_class(type)) return is_exception(type) ? Kind::Identity : Kind::Unknown;
  if (has_opaque_specials(type)) return Kind::Unknown;
  // A Python class is as well known as the C types that it is built on.
  for (Py_ssize_t i = 1; i < PyTuple_GET_SIZE(type->tp_mro); ++i) {
    auto* base = (PyTypeObject*)PyTuple_GET_ITEM(type->tp_mro, i);
    if (mg_is_python_class(base)) continue;
    Kind kind = known_kind(base);
    switch (kind) {
      case Kind::Atom:
      case Kind::Identity: break;
      case Kind::Tuple:
      case Kind::List:
      case Kind::Dict:
      case Kind::Set:
      case Kind::Iterator: return kind;
      default: return Kind::Unknown;
    }
  }
  return Kind::Instance;
}

}  // namespace

Kind known_kind(PyTypeObject* type) { return runtime::process_state().kinds.get(type, find_kind); }

bool is_plain_constructor(PyTypeObject* type) {
  return tables().constructors.contains(type) || (!mg_is_python_class(type) && is_exception(type));
}

bool metaclass_calls_python(PyTypeObject* metaclass) { return metaclass->tp_call != PyType_Type.tp_call; }

bool property_is_python(PyObject* property, const char* accessor) {
  py::Ref function = py::Ref::steal(PyObject_GetAttrString(property, accessor));
  if (!function) PyErr_Clear();
  return function && (PyFunction_Check(function.get()) || function.get() == Py_None);
}

bool has_opaque_specials(PyTypeObject* type) {
  if (!type->tp_mro) return true;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(type->tp_mro); ++i) {
    auto* base = (PyTypeObject*)PyTuple_GET_ITEM(type->tp_mro, i);
    if (!mg_is_python_class(base)) continue;
    Py_ssize_t position = 0;
    PyObject *name, *value;
    while (PyDict_Next(mg_type_dict(base), &position, &name, &value)) {
      if (PyFunction_Check(value) || PyUnicode_Check(value) || value == Py_None || !PyUnicode_Check(name)) continue;
      Py_ssize_t size;
      const char* text = PyUnicode_AsUTF8AndSize(name, &size);
      if (!text) PyErr_Clear();
      std::string_view whole(text ? text : "", text ? static_cast<size_t>(size) : 0);
      if (!whole.starts_with("__") || !whole.ends_with("__") || size < 5) continue;
      if (tables().special_methods.contains(whole.substr(2, whole.size() - 4)) && !is_transparent(name, value))
        return true;
    }
  }
  return false;
}

bool repr_is_python(PyTypeObject* type) { return type->tp_repr == tables().python_class_repr; }

bool has_finaliser(PyTypeObject* type) {
  static PyObject* name = PyUnicode_InternFromString("__del__");
  return type->tp_finalize && _PyType_Lookup(type, name);
}

bool has_python_equality(PyTypeObject* type) {
  return (type->tp_flags & Py_TPFLAGS_HEAPTYPE) &&
         (method_is_python(type, "__eq__") || method_is_python(type, "__hash__"));
}

bool has_hidden_contents(PyObject* object) {
  std::string_view name = Py_TYPE(object)->tp_name;
  return PyExceptionInstance_Check(object) || name == "types.SimpleNamespace" || name == "functools.partial" ||
         name == "types.GenericAlias" || name == "types.UnionType";
}

bool is_hashed_by_address(PyObject* object) { return Py_TYPE(object)->tp_hash == PyBaseObject_Type.tp_hash; }

bool has_plain_new(PyTypeObject* type) {
  static PyObject* name = PyUnicode_InternFromString("__new__");
  PyObject* found = _PyType_Lookup(type, name);
  return found && PyCFunction_Check(found);
}

PyObject* initialiser(PyTypeObject* type) {
  static PyObject* name = PyUnicode_InternFromString("__init__");
  bool is_plain = type->tp_new == PyBaseObject_Type.tp_new || type->tp_new == PyDict_Type.tp_new ||
                  type->tp_new == PyODict_Type.tp_new || type->tp_new == PyList_Type.tp_new;
  return is_plain && !metaclass_calls_python(Py_TYPE(type)) ? _PyType_Lookup(type, name) : nullptr;
}

bool method_is_python(PyTypeObject* type, const char* name) {
  // By the address of the literal, of which there are a few.
  static guard::PointerMap<PyObject*>& names = *new guard::PointerMap<PyObject*>;
  auto [text, is_new] = names.insert(name);
  if (is_new) *text = PyUnicode_InternFromString(name);
  PyObject* found = *text ? _PyType_Lookup(type, *text) : nullptr;
  return found && PyFunction_Check(found);
}

bool is_binding_descriptor(PyTypeObject* type) {
  const runtime::ProcessState& state = runtime::process_state();
  if (type == state.compiled_type || type == state.scoped_type) return true;
  return type == &PyFunction_Type || type == &PyMethodDescr_Type || type == &PyWrapperDescr_Type ||
         type == &PyClassMethod_Type || type == &PyStaticMethod_Type || type == &PyClassMethodDescr_Type ||
         type == &PyMethod_Type || type == &PyInstanceMethod_Type || known_kind(type) == Kind::Instance;
}

}  // namespace magneto::trace
