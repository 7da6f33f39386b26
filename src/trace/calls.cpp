// Calls: Python callees come back through the frame hook; C functions are run and then noted by their model.
#include <algorithm>
#include <optional>
#include <vector>

#include "cpython/cpython.h"
#include "cpython/text.h"
#include "runtime/state.h"
#include "trace/call_table.h"
#include "trace/known_types.h"
#include "trace/rules.h"
#include "trace/watch.h"

namespace magneto::trace {

using runtime::CallKind;

namespace {

using Call = Watch::Call;

// Calls a class past a __call__ of its metaclass, as type.__call__ does.
PyObject* make_object(const Call& call) {
  if (!metaclass_calls_python(Py_TYPE(call.callable))) return call.make();
  py::Ref args = py::Ref::steal(PyTuple_New(static_cast<Py_ssize_t>(call.positional)));
  py::Ref keywords = py::Ref::steal(call.keyword_names ? PyDict_New() : nullptr);
  if (!args || (call.keyword_names && !keywords)) return nullptr;
  for (size_t i = 0; i < call.positional; ++i) PyTuple_SET_ITEM(args.get(), i, Py_NewRef(call.args[i]));
  for (size_t i = call.positional; i < call.size(); ++i)
    if (PyDict_SetItem(keywords.get(), PyTuple_GET_ITEM(call.keyword_names, i - call.positional), call.args[i]) < 0)
      return nullptr;
  return PyType_Type.tp_call(call.callable, args.get(), keywords.get());
}

bool is_lru_cache(PyObject* object) {
  return std::string_view(Py_TYPE(object)->tp_name) == "functools._lru_cache_wrapper";
}

// What it gives is what it refers to, and a guard can say so.
bool is_plain_reference(PyObject* object) { return Py_TYPE(object) == &_PyWeakref_RefType; }

bool is_partial(PyObject* object) { return std::string_view(Py_TYPE(object)->tp_name) == "functools.partial"; }

// The bare name of a C function or method descriptor.
std::string_view method_name(PyObject* callable) {
  const PyMethodDef* method = PyCFunction_Check(callable)                ? ((PyCFunctionObject*)callable)->m_ml
                              : Py_TYPE(callable) == &PyMethodDescr_Type ? ((PyMethodDescrObject*)callable)->d_method
                                                                         : nullptr;
  return method && method->ml_name ? method->ml_name : "";
}

// Functions that read the values of tensors among their data while torch looks away.
bool fills_memory_by_hand(PyObject* callable) {
  std::string_view name = method_name(callable);
  return name == "tensor" || name == "as_tensor" || name == "asarray" || name == "new_tensor";
}

// Or is nested so deeply that one need not look.
bool contains_tensor(PyObject* value, int depth = 0) {
  if (runtime::tensor_plug().is_tensor(value) || depth > 64) return true;
  if (!PyList_Check(value) && !PyTuple_Check(value)) return false;
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(value); ++i)
    if (contains_tensor(PySequence_Fast_GET_ITEM(value, i), depth + 1)) return true;
  return false;
}

bool is_defaultdict(PyTypeObject* type) {
  while (mg_is_python_class(type)) type = type->tp_base;
  return std::string_view(type->tp_name) == "collections.defaultdict";
}

// The function inside a compiled one: a watched call that meets it goes on into the function itself.
PyObject* compiled_callee(PyObject* callable) {
  const runtime::ProcessState& state = runtime::process_state();
  return state.compiled_type && Py_IS_TYPE(callable, state.compiled_type) ? state.compiled_inner(callable) : nullptr;
}

// As the key of a dict, or as a dict whose keys are added to another: it runs no code of its own.
bool is_plain_key(PyObject* object) {
  return PyDict_CheckExact(object) ? mg_has_only_text_keys(object) : guard::is_atom(object);
}

// float(tensor) and its like.
bool asks_for_number(PyObject* callable, PyObject* argument) {
  bool is_number_type = callable == (PyObject*)&PyFloat_Type || callable == (PyObject*)&PyLong_Type ||
                        callable == (PyObject*)&PyBool_Type || callable == (PyObject*)&PyComplex_Type;
  return is_number_type && runtime::tensor_plug().is_tensor(argument);
}

// Takes items from what it is given, and looks at none of them.
bool only_iterates(PyTypeObject* type, size_t argument) {
  if (argument) return type == &PyZip_Type;
  return type == &PyList_Type || type == &PyTuple_Type || type == &PyEnum_Type || type == &PyZip_Type;
}

// By next(generator) or generator.send(value): the call gives what the generator yields, and otherwise raises.
bool resumes_generator(const Call& call, PyObject* self) {
  if (!(self || call.size()) || !PyGen_CheckExact(self ? self : call.args[0])) return false;
  std::string_view name = method_name(call.callable);
  size_t arguments = call.size() - (self ? 0 : 1);
  return !call.keyword_names && ((name == "next" && !self && !arguments) || (name == "send" && arguments == 1));
}

bool is_container(PyObject* object) {
  return PyList_CheckExact(object) || PyDict_CheckExact(object) || PySet_CheckExact(object) ||
         PyTuple_CheckExact(object);
}

}  // namespace

// Applies the model of one C function to one call: `before` notes reads and effects, `after` looks at the result.
class CallModel {
 public:
  CallModel(Watch& watch, const Call& call, Model model, PyObject* self)
      : watch_(watch),
        call_(call),
        model_(model),
        bound_(self != nullptr),
        self_(self),
        name_(method_name(call.callable)) {
    if (!self_ && call.size()) self_ = call.args[0];
    rest_ = bound_ ? 0 : 1;
  }

  // What C code that is not torch's does with tensors is not done on stand-ins.
  void check_tensors_unseen() {
    bool looks_at_self = compares_own_items() || model_ == Model::Pure || model_ == Model::Print ||
                         model_ == Model::Format || (model_ == Model::Iterate && call_.size() > 1);
    if (looks_at_self && self_) watch_.look_at_tensor(self_, call_.callable);
    if (!looks_at_self && model_ != Model::Contents) return;
    for (size_t i = rest_; i < call_.size(); ++i) watch_.look_at_tensor(call_.args[i], call_.callable);
  }

  void before() {
    switch (model_) {
      case Model::Unknown:
        return watch_.give_up("the call runs " + callable_name(call_.callable) + ", which is not understood");
      case Model::Pure: return read_all();
      case Model::Layout: return read_layout();
      case Model::Print: return print_all();
      case Model::Identity:
        if (self_) watch_.use_identity(self_, "id or hash");
        if (self_ && PyTuple_Check(self_)) watch_.read_deep(self_);
        return read_types();
      case Model::Is:
        if (call_.size() == 2) watch_.compare_identity(call_.args[0], call_.args[1]);
        return;
      case Model::Format:
        if (self_ && names_attributes(py::text(self_)))
          watch_.give_up("the call formats a text that names attributes or items");
        return print_all();
      case Model::Abc: watch_.guards.read_abc_registry(); [[fallthrough]];
      case Model::Types: return read_types();
      case Model::GetAttribute:
        if (arg(0)) watch_.read_attribute(self_, arg(0));
        return;
      case Model::SetAttribute:
        if (arg(0) && arg(1)) {
          Value value{arg(1), std::exchange(watch_.handover.stored, kKnown)};
          watch_.write_attribute(self_, arg(0), value, !PyCFunction_Check(call_.callable));
        }
        return;
      case Model::DeleteAttribute:
        if (arg(0)) watch_.write_attribute(self_, arg(0), {nullptr}, !PyCFunction_Check(call_.callable));
        return;
      case Model::DictLookup:
        if (self_ && arg(0) && PyDict_Check(self_)) watch_.read_dict_key(self_, arg(0));
        if (arg(0)) watch_.read_operand(arg(0));
        return;
      case Model::Contents:
        if (self_) watch_.read_contents(self_);
        return read_all();
      case Model::DictPop: return before_pop();
      case Model::Mutate:
      case Model::Init: return before_mutation();
      case Model::New: return before_new();
      case Model::Next:
        if (self_) watch_.read_iterator(self_);
        return;
      case Model::Iterate:
        if (self_) watch_.read_iterable(self_);
        if (call_.size() > 1) read_all();
        return;
      case Model::ContextGet: return before_context_get();
      case Model::ContextReset: return before_context_reset();
      case Model::InstanceDict:
        if (!call_.size()) return watch_.give_up("the call asks for its local variables", Around::Frames);
        if (!watch_.is_fresh(self_) && mg_dict_slot(self_)) watch_.read_instance(self_);
        return;
      case Model::Frames:
        return watch_.give_up("the call runs " + callable_name(call_.callable) + ", which looks at frames",
                              Around::Frames);
      case Model::RecursionLimit: return watch_.guards.read_recursion_limit();
      case Model::ClassCall:
      case Model::ContextSet:
      case Model::Reduce:
      case Model::Own: return;
    }
  }

  void after(PyObject* result) {
    if (!watch_.alive()) return;
    switch (model_) {
      case Model::Pure:
      case Model::Print:
      case Model::Layout:
      case Model::Contents:
      case Model::Iterate:
        watch_.check_tensors_if_any(result);
        if (is_container(result) || watch_.kind_of(Py_TYPE(result)) == Kind::Iterator) mark_if_new(result);
        return;
      case Model::GetAttribute:
        if (arg(0)) watch_.handover.returned = watch_.finish_attribute(self_, arg(0), result);
        return;
      case Model::New: watch_.mark_fresh(result); return;
      case Model::Identity:
        if (self_ && watch_.is_fresh(self_) && (name_is("id") || is_hashed_by_address(self_)))
          watch_.note_address(result);
        return;
      case Model::ContextSet:
        watch_.open_context_.emplace_back(py::Ref::borrow(self_), py::Ref::borrow(result));
        return;
      case Model::InstanceDict:
        if (watch_.is_fresh(self_)) watch_.mark_attributes(result);
        return;
      default: return;
    }
  }

 private:
  bool compares_own_items() const { return model_ == Model::Mutate && (name_is("sort") || name_is("remove")); }

  // The i-th argument after self.
  PyObject* arg(size_t i) const { return rest_ + i < call_.size() ? call_.args[rest_ + i] : nullptr; }

  void mark_if_new(PyObject* result) {
    for (size_t i = 0; i < call_.size(); ++i)
      if (call_.args[i] == result) return;
    if (result != self_ && (Py_REFCNT(result) == 1)) watch_.mark_fresh(result);
  }

  void read_all() {
    if (bound_) read_one(self_);
    for (size_t i = 0; i < call_.size(); ++i) read_one(call_.args[i]);
  }

  void read_layout() {
    if (!self_) return;
    if (watch_.kind_of(Py_TYPE(self_)) == Kind::Iterator) return watch_.read_iterator(self_);
    if (Py_TYPE(self_)->tp_flags & Py_TPFLAGS_HEAPTYPE) watch_.guards.read_specials(Py_TYPE(self_));
    watch_.read_contents(self_);
  }

  void print_all() {
    read_all();
    if (bound_) watch_.read_printed(self_);
    for (size_t i = 0; i < call_.size(); ++i) watch_.read_printed(call_.args[i]);
  }

  void read_one(PyObject* value) {
    if (watch_.kind_of(Py_TYPE(value)) == Kind::Iterator) return watch_.read_iterator(value);
    watch_.read_deep(value);
    // A function handed to a C function is called from C: Python ones come back through the hook, others must be pure.
    if (PyFunction_Check(value) || PyMethod_Check(value) || !PyCallable_Check(value) || PyType_Check(value)) return;
    PyObject* self;
    Kind kind = watch_.kind_of(Py_TYPE(value));
    if ((kind == Kind::Identity && model_of(value, &self) != Model::Pure) ||
        (kind == Kind::Instance && !method_is_python(Py_TYPE(value), "__call__")))
      watch_.give_up("the call passes " + callable_name(value) + " to " + callable_name(call_.callable));
  }

  void read_types() {
    for (size_t i = 0; i < call_.size(); ++i) watch_.read_types_of(call_.args[i]);
  }

  void before_pop() {
    if (arg(0)) watch_.read_operand(arg(0));
    if (!self_ || watch_.is_fresh(self_)) return;
    if (!PyDict_Check(self_) || !arg(0) || !guard::is_atom(arg(0))) return watch_.mutate(self_, "pop");
    watch_.read_dict_key(self_, arg(0));
    bool is_unclear = false;
    PyObject* found = guard::find_key(self_, arg(0), &is_unclear);
    if (is_unclear) return watch_.mutate(self_, "pop");
    if (watch_.alive() && found) watch_.write_item(self_, arg(0), {nullptr});
  }

  void before_mutation() {
    if (!self_) return;
    bool no_effect = (model_ == Model::Init && definition_is_object_init()) || watch_.is_fresh(self_);
    bool compares_items = compares_own_items();
    bool compares = compares_items || PyAnySet_Check(self_);
    for (size_t i = rest_; i < call_.size(); ++i) {
      if (compares || (i == rest_ && PyDict_Check(self_) && !is_plain_key(call_.args[i])))
        read_one(call_.args[i]);
      else
        read_one_for_storing(call_.args[i]);
    }
    if (compares_items) watch_.read_deep(self_);
    if (!no_effect && watch_.alive() && !repeat()) watch_.mutate(self_, call_.callable);
  }

  // Lets the program make the change again. False if it cannot.
  bool repeat() {
    Kind kind = watch_.kind_of(Py_TYPE(self_));
    bool plain = (kind == Kind::List || kind == Kind::Dict || kind == Kind::Set) && !mg_is_python_class(Py_TYPE(self_));
    if (!plain || model_ != Model::Mutate || call_.keyword_names) return false;
    if (kind == Kind::Dict && !watch_.check_keys(self_)) return true;
    PyObject* function = call_.callable;
    if (bound_) {
      py::Ref name = py::Ref::steal(PyUnicode_FromString(std::string(name_).c_str()));
      function = name ? _PyType_Lookup(Py_TYPE(self_), name.get()) : nullptr;
    }
    if (!function || Py_TYPE(function) != &PyMethodDescr_Type) return false;
    std::vector<PyObject*> rest(call_.args + rest_, call_.args + call_.size());
    py::Ref copy;
    bool takes_items = name_is("extend") || name_is("extendleft") || method_name(call_.callable).ends_with("update");
    if (takes_items) {
      // What it takes in is what the argument holds now.
      if (rest.size() != 1) return false;
      if (PyList_CheckExact(rest[0]) || PyTuple_CheckExact(rest[0]))
        copy = py::Ref::steal(PySequence_Tuple(rest[0]));
      else if (PyDict_CheckExact(rest[0]))
        copy = py::Ref::steal(PyDict_Copy(rest[0]));
      if (!copy) return PyErr_Clear(), false;
      rest[0] = copy.get();
      watch_.mark_fresh(copy.get());
    }
    bool only_adds = name_is("append") || name_is("appendleft") || name_is("add") || name_is("extend");
    if (!only_adds && !name_is("discard") && !name_is("update") && !name_is("clear")) watch_.read_contents(self_);
    bool drops = !only_adds && !name_is("insert") && !name_is("setdefault") && !name_is("sort") && !name_is("reverse");
    NodeId last = std::exchange(watch_.handover.stored, kKnown);
    if (watch_.alive()) watch_.repeat(self_, function, rest.data(), rest.size(), drops, last);
    return true;
  }

  bool name_is(std::string_view name) const { return name_ == name; }

  // "{0.name}", "{0[key]}": look-ups that str.format makes by itself.
  static bool names_attributes(const std::string& format) {
    bool in_field = false;
    for (char c : format) {
      if (c == '{')
        in_field = true;
      else if (c == '}' || c == ':' || c == '!')
        in_field = false;
      else if (in_field && (c == '.' || c == '['))
        return true;
    }
    return false;
  }

  // Items that are only stored need no guard, but an iterable that is unpacked into self does.
  void read_one_for_storing(PyObject* value) {
    Kind kind = watch_.kind_of(Py_TYPE(value));
    if (kind == Kind::Iterator) return watch_.read_iterator(value);
    if (kind == Kind::List || kind == Kind::Dict || kind == Kind::Set) watch_.read_contents(value);
  }

  bool definition_is_object_init() const {
    PyObject* self;
    PyWrapperDescrObject* wrapper = nullptr;
    if (!mg_method_wrapper(call_.callable, &wrapper, &self)) wrapper = (PyWrapperDescrObject*)call_.callable;
    return Py_TYPE(wrapper) == &PyWrapperDescr_Type && PyDescr_TYPE(wrapper) == &PyBaseObject_Type;
  }

  void before_new() {
    auto* owner = (PyTypeObject*)PyCFunction_GET_SELF(call_.callable);
    bool plain = is_plain_constructor(owner) || owner == &PyBaseObject_Type;
    if (!plain) return watch_.give_up("the call makes a " + std::string(owner->tp_name) + ", which is not understood");
    if (self_ && PyType_Check(self_)) watch_.before_making((PyTypeObject*)self_);
    for (size_t i = 1; i < call_.size(); ++i) read_one_for_storing(call_.args[i]);
  }

  void before_context_get() {
    for (auto& [variable, token] : watch_.open_context_)
      if (variable.get() == self_) return;  // its value is the one that the call itself set
    PyObject* value = nullptr;
    if (PyContextVar_Get(self_, nullptr, &value) < 0) PyErr_Clear();
    watch_.guards.read_context(self_, value);
    watch_.saw(value);
    Py_XDECREF(value);
  }

  void before_context_reset() {
    auto& open = watch_.open_context_;
    if (open.empty() || open.back().first.get() != self_ || open.back().second.get() != arg(0))
      return watch_.give_up("the call resets a context variable that it did not set last");
    open.pop_back();
  }

  Watch& watch_;
  const Call& call_;
  Model model_;
  bool bound_;
  PyObject* self_;
  std::string_view name_;
  size_t rest_;
};

void Watch::read_types_of(PyObject* value) {
  if (!alive()) return;
  PyTypeObject* type = Py_TYPE(value);
  if (type->tp_flags & Py_TPFLAGS_HEAPTYPE) {
    use_specials(type);
    if (!PyType_Check(value) && !is_tensor(value) && !is_fresh(value)) read_instance(value);
  }
  if (PyType_Check(value) && (((PyTypeObject*)value)->tp_flags & Py_TPFLAGS_HEAPTYPE))
    guards.read_specials((PyTypeObject*)value);
  if (PyTuple_Check(value))  // of classes
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(value); ++i) {
      PyObject* item = PyTuple_GET_ITEM(value, i);
      if (PyType_Check(item)) read_types_of(item);
    }
}

int Watch::is_instance(PyObject* object, PyObject* type) {
  read_types_of(object);
  read_types_of(type);
  ConsumerScope consumer(*this);
  return PyObject_IsInstance(object, type);
}

void Watch::check_tensors_if_any(PyObject* result) {
  if (is_tensor(result)) check_tensors(result, "the call");
}

bool Watch::is_unknown(PyObject* callable) const {
  if (cuts(rule_of(callable))) return true;
  PyObject* self;
  if (!PyCFunction_Check(callable) && Py_TYPE(callable) != &PyMethodDescr_Type) return false;
  if (model_of(callable, &self) != Model::Unknown || plug_.only_calls(callable, nullptr, 0)) return false;
  CallKind kind = plug_.classify_call(callable);
  return kind == CallKind::Foreign || kind == CallKind::Refused;
}

PyObject* Watch::call(PyObject* callable, PyObject* const* args, size_t positional, PyObject* keyword_names) {
  Call call{callable, args, positional, keyword_names};
  constructing_ = nullptr;
  if (!alive()) let_go();
  if (alive() && rule_of(callable) != Rule::None) return call_by_rule(callable, args, positional, keyword_names);
  if (call_site_ == args && leads_to_unknown(callable, args, call.size()))
    return call_unknown(callable, args, positional, keyword_names);
  PyObject* function = PyMethod_Check(callable) ? PyMethod_GET_FUNCTION(callable) : callable;
  if (alive() && PyFunction_Check(function) && plug_.may_be_left_out(function)) Py_RETURN_NONE;
  if (!alive() || PyFunction_Check(function)) return call.make();
  if (PyMethod_Check(callable)) {
    std::vector<PyObject*> all{PyMethod_GET_SELF(callable)};
    all.insert(all.end(), args, args + call.size());
    return this->call(PyMethod_GET_FUNCTION(callable), all.data(), positional + 1, keyword_names);
  }
  if (PyCFunction_CheckExact(callable) || Py_IS_TYPE(callable, &PyMethodDescr_Type)) return call_by_model(call);
  if (call_site_ == args && call.size() == 1 && asks_for_number(callable, args[0]) && can_cut_at_question(args, 1))
    return call_unknown(callable, args, positional, keyword_names);
  bool is_mode = PyType_Check(callable) && plug_.is_mode((PyTypeObject*)callable);
  if (is_mode || (PyType_Check(callable) && !metaclass_calls_python(Py_TYPE(callable))))
    return call_type((PyTypeObject*)callable, args, positional, keyword_names);
  if (PyObject* inner = compiled_callee(callable)) return this->call(inner, args, positional, keyword_names);
  if (is_plain_reference(callable) && !call.size()) {
    if (!is_fresh(callable)) guards.read_referent(callable);
    PyObject* referent = call.make();
    saw(referent);
    return referent;
  }
  if (is_partial(callable)) return call_partial(callable, args, positional, keyword_names);
  return is_lru_cache(callable) ? call_cached(call) : call_by_model(call);
}

// Of a C function, or of an object by what calling it runs.
PyObject* Watch::call_by_model(const Call& call) {
  auto [callable, args, positional, keyword_names] = call;
  if (plug_.only_calls(callable, args, call.size())) {
    PyObject* owner = PyCFunction_GET_SELF(callable);  // where it looks for that code
    if (!owner || !PyType_Check(owner) || !mg_assign_type_version((PyTypeObject*)owner))
      give_up("the call runs " + callable_name(callable) + ", whose class cannot be guarded");
    else
      guards.read_version((PyTypeObject*)owner);
    bool before = std::exchange(takes_context_, true);
    PyObject* result = call.make();
    takes_context_ = before;
    if (result) check_tensors(result, callable);
    return result;
  }
  PyTypeObject* type = Py_TYPE(callable);
  PyObject* self;
  Model model = model_of(callable, &self);
  CallKind kind = model == Model::Unknown || model == Model::New ? plug_.classify_call(callable) : CallKind::Foreign;
  if (kind != CallKind::Foreign) {
    bool is_question = kind == CallKind::Asks && can_cut_at_question(args, call.size());
    if ((is_question || (kind == CallKind::Refused && can_cut())) && call_site_ == args)
      return call_unknown(callable, args, positional, keyword_names);
    if (kind == CallKind::Asks) kind = CallKind::TensorOp;
    if (kind == CallKind::Refused) give_up("the call runs " + callable_name(callable) + ", which is not understood");
    if (kind == CallKind::TensorOp)
      for (size_t i = 0; i < call.size(); ++i) {
        if (!is_tensor(args[i])) read_deep(args[i]);
        bool is_self = i == 0 && Py_TYPE(callable) == &PyMethodDescr_Type;
        if (fills_memory_by_hand(callable) && !is_self && contains_tensor(args[i]))
          give_up("the call makes a tensor from the values of others (" + callable_name(callable) + ")");
      }
    std::vector<NodeId> nodes = std::exchange(handover.operands, {});
    PyObject* result = call.make();
    if (result) call_again(call, nodes, kind, result);
    if (result && kind == CallKind::TensorOp) finish_tensor_op(callable, result);
    if (result && kind == CallKind::Balanced && alive()) repeat(nullptr, callable, args, call.size(), false);
    if (result && kind == CallKind::Balanced && plug_.hands_to_python())
      give_up("the call runs " + callable_name(callable) + ", which hands operators to Python code");
    if (!result && (kind == CallKind::TensorOp || kind == CallKind::Query)) note_error_of(call, nodes);
    return result;
  }
  if (mg_is_python_class(type) || PyType_Check(callable)) {
    guards.read_specials(type);
    if (!is_fresh(callable) && !PyType_Check(callable)) read_instance(callable);
    static PyObject* name = PyUnicode_InternFromString("__call__");
    PyObject* found = _PyType_Lookup(type, name);
    if (found && PyFunction_Check(found)) return call.make();
    if (found && found != (PyObject*)callable) {
      read_attribute(callable, name);
      py::Ref bound =
          py::Ref::steal(Py_TYPE(found)->tp_descr_get ? Py_TYPE(found)->tp_descr_get(found, callable, (PyObject*)type)
                                                      : Py_NewRef(found));
      return bound ? this->call(bound.get(), args, positional, keyword_names) : nullptr;
    }
  }
  if (model == Model::ClassCall) {
    PyObject* cls = self ? self : call.size() ? args[0] : nullptr;
    if (cls && PyType_Check(cls)) {
      size_t skip = self ? 0 : 1;
      return call_type((PyTypeObject*)cls, args + skip, positional - skip, keyword_names);
    }
  }
  if (model == Model::Reduce) {
    PyObject* object = self ? self : call.size() ? args[0] : nullptr;
    size_t skip = self || !object ? 0 : 1;
    if (object && is_reduced_plainly(object, args + skip, call.size() - skip)) return reduce(object, call);
    model = Model::Unknown;
  }
  if (model == Model::Unknown && call_site_ == args) return call_unknown(callable, args, positional, keyword_names);
  if (stand_ins() && is_len(callable) && call.size() == 1 && is_tensor(args[0])) return length_of(args[0]);
  CallModel modelled(*this, call, model, self);
  size_t effects_before = effects.size();
  bool is_plain_start = call.size() == 1 || (call.size() == 2 && is_tensor(args[1]));
  bool adds_up = stand_ins() && is_sum(callable) && is_plain_start && !keyword_names;
  if (!adds_up) modelled.check_tensors_unseen();
  modelled.before();
  if (!alive()) {
    let_go();
    return call.make();
  }
  bool has_effect = effects.size() > effects_before;
  std::optional<ConsumerScope> consumer;
  if (model == Model::Next && resumes_generator(call, self))
    handover.generator = self ? self : args[0];
  else
    consumer.emplace(*this);
  py::Ref result = py::Ref::steal(adds_up ? add_up(call) : call.make());
  if (model == Model::Abc && effects.size() > effects_before)  // it asks once, and remembers the answer
    give_up("the call asks an abstract base class whose answer changes something");
  if (result)
    modelled.after(result.get());
  else if (has_effect)
    effects.resize(effects_before);
  return result.release();
}

// torch has it in Python, but is asked by C code.
PyObject* Watch::length_of(PyObject* tensor) {
  guards.read_specials(Py_TYPE(tensor));
  PyObject* result;
  {
    runtime::PauseWatch pause;
    Py_ssize_t size = PyObject_Size(tensor);
    result = size < 0 ? nullptr : PyLong_FromSsize_t(size);
  }
  if (result)
    handover.returned = stand_ins()->length(tensor, result);
  else
    note_tensor_error({{tensor}});
  return result;
}

void Watch::note_error_of(const Call& call, const std::vector<NodeId>& nodes) {
  if (PyCFunction_Check(call.callable)) note_tensor_error({{PyCFunction_GET_SELF(call.callable)}});
  for (size_t i = 0; i < call.size(); ++i) note_tensor_error({{call.args[i], i < nodes.size() ? nodes[i] : kKnown}});
}

void Watch::note_tensor_error(std::initializer_list<Value> operands) {
  StandIns* again = stand_ins();
  if (again && std::ranges::any_of(operands, [&](const Value& operand) { return again->concerns(operand); }))
    give_up("an operation on tensors raises an error where sizes or numbers may change");
}

// On stand-ins, if need be.
void Watch::call_again(const Call& call, const std::vector<NodeId>& nodes, CallKind kind, PyObject* result) {
  StandIns* again = stand_ins();
  if (!again || (kind != CallKind::TensorOp && kind != CallKind::Query)) return;
  std::vector<Value> args;
  for (size_t i = 0; i < call.size(); ++i) args.push_back({call.args[i], i < nodes.size() ? nodes[i] : kKnown});
  PyObject* self = PyCFunction_Check(call.callable) ? PyCFunction_GET_SELF(call.callable) : nullptr;
  bool concerns = (self && is_tensor(self)) ||
                  std::any_of(args.begin(), args.end(), [&](const Value& arg) { return again->concerns(arg); });
  if (concerns || kind == CallKind::TensorOp)
    handover.returned = again->call(call.callable, args, call.positional, call.keyword_names, result);
}

PyObject* Watch::call_by_rule(PyObject* callable, PyObject* const* args, size_t positional, PyObject* keyword_names) {
  Call call{callable, args, positional, keyword_names};
  Rule rule = rule_of(callable);
  if (cuts(rule) && call_site_ == args) return call_unknown(callable, args, positional, keyword_names);
  if (cuts(rule)) {
    give_up(why_cut(callable, args, call.size()));
    let_go();
    return call.make();
  }
  if (rule == Rule::Label) return call_label(call);
  if (rule == Rule::Forbid) {
    met_forbidden = true;
    PyErr_Format(runtime::process_state().user_error,
                 "%s is forbidden in compiled code (magneto.forbid_in_graph), but is called at %s; keep it out of what "
                 "is compiled, or use magneto.disallow_in_graph to let it run as Python",
                 callable_name(callable).c_str(), place().c_str());
    return nullptr;
  }
  for (size_t i = 0; i < call.size(); ++i)
    if (!is_tensor(args[i])) read_deep(args[i]);
  py::Ref result;
  {
    runtime::PauseWatch pause;
    result = py::Ref::steal(call.make());
  }
  if (result && rule == Rule::Allow) {
    call_again(call, {}, CallKind::TensorOp, result.get());
    finish_tensor_op(callable, result.get());
  }
  if (!result && rule == Rule::Allow) note_error_of(call, {});
  if (result && rule == Rule::Constant) saw(result.get());
  return result.release();
}

void Watch::finish_tensor_op(PyObject* callable, PyObject* result) {
  if (!alive()) return;
  if (is_tensor(result) || PyTuple_Check(result) || PyList_Check(result)) return check_tensors(result, callable);
  // The recording has noted the number that was asked for, or has failed.
  std::string_view name = method_name(callable);
  bool is_number =
      PyBool_Check(result) || PyLong_CheckExact(result) || PyFloat_CheckExact(result) || PyComplex_CheckExact(result);
  if (is_number && (name == "item" || name == "__bool__" || name == "__int__" || name == "__float__")) return;
  if (result != Py_None) give_up("the call asks " + callable_name(callable) + " for a value");
}

PyObject* Watch::call_type(PyTypeObject* type, PyObject* const* args, size_t positional, PyObject* keyword_names) {
  Call call{(PyObject*)type, args, positional, keyword_names};
  if (type == &PyType_Type && call.size() == 1) {
    if ((Py_TYPE(args[0])->tp_flags & Py_TPFLAGS_HEAPTYPE) && !is_fresh(args[0]) && !PyType_Check(args[0]) &&
        !is_tensor(args[0]))
      read_instance(args[0]);
    return call.make();
  }
  if (!is_plain_constructor(type)) {
    bool python = mg_is_python_class(type) && kind_of(type) != Kind::Tensor;
    if (python)
      before_making(type);
    else if (looks_at_frames((PyObject*)type))
      give_up("the call makes a " + std::string(type->tp_name) + ", which looks at frames", Around::Frames);
    else if (bool is_known = plug_.is_immutable(type) || plug_.is_mode(type);
             !is_known && call_site_ == args && kind_of(type) != Kind::Tensor)
      return call_unknown((PyObject*)type, args, positional, keyword_names);
    else if (!is_known)
      give_up("the call makes a " + std::string(type->tp_name) + ", which is not understood");
    guards.read_specials(type);
    if (Py_TYPE(type) != &PyType_Type) guards.read_specials(Py_TYPE(type));
    if (python && has_plain_new(type)) constructing_ = type;
  }
  Kind made = kind_of(type);
  bool holds_items = made == Kind::List || made == Kind::Dict || made == Kind::Tuple || made == Kind::Set;
  // Looks at its arguments, as str and list do; also a class that is built on such a type. Those of lists, dicts and
  // sets leave them to __init__.
  bool has_own_init = (made == Kind::List || made == Kind::Dict || made == Kind::Set) && mg_is_python_class(type) &&
                      method_is_python(type, "__init__");
  bool has_own_new = has_plain_new(type) && type->tp_new != PyBaseObject_Type.tp_new;
  bool consumes = !has_own_init && (is_plain_constructor(type) || holds_items || has_own_new);
  bool lazily_called = type == &PyMap_Type || type == &PyFilter_Type || is_defaultdict(type);
  bool prints = PyType_IsSubtype(type, &PyUnicode_Type) || (call.size() && args[0] == (PyObject*)&PyUnicode_Type);
  for (size_t i = 0; i < call.size() && alive(); ++i) {
    if (lazily_called && i == 0) {
      if (!may_be_called_later(args[0], args + 1, call.size() - 1))
        give_up("the call lets C code call " + callable_name(args[0]));
    } else if (kind_of(Py_TYPE(args[i])) == Kind::Iterator) {
      read_iterator(args[i]);
    } else if (consumes) {
      if (is_tensor(args[i]) && !asks_for_number(call.callable, args[i]) && !only_iterates(type, i))
        look_at_tensor(args[i], call.callable);
      read_operand(args[i]);
      if (prints) read_printed(args[i]);
    }
  }
  std::optional<ConsumerScope> consumer;
  bool only_keeps = (type == &PyTuple_Type || type == &PyList_Type) && call.size() == 1 && PyGen_CheckExact(args[0]);
  if (consumes) consumer.emplace(*this, !only_keeps);
  py::Ref result = py::Ref::steal(make_object(call));
  constructing_ = nullptr;
  if (!result) return nullptr;
  if (call.size() == 1 && asks_for_number(call.callable, args[0]))
    call_again(call, {}, CallKind::TensorOp, result.get());
  bool is_new = has_plain_new(type) || plug_.is_mode(type);
  if (Py_TYPE(result.get()) == type && is_new && !plug_.is_immutable(type) && !is_tensor(result.get()))
    mark_fresh(result.get());
  // reversed(list) and its like make an iterator of another type.
  if (Py_REFCNT(result.get()) == 1 && kind_of(Py_TYPE(result.get())) == Kind::Iterator) mark_fresh(result.get());
  return result.release();
}

// An object of a Python class.
void Watch::before_making(PyTypeObject* type) {
  std::string what = "the call makes a " + std::string(type->tp_name);
  if (kind_of(type) == Kind::Unknown) give_up(what + ", which is not understood");
  if (has_finaliser(type)) give_up(what + ", which has a finaliser (__del__)");
}

// By map, filter or defaultdict: Python code is watched then; a pure C function looks at items which must be known now.
bool Watch::may_be_called_later(PyObject* callable, PyObject* const* iterables, size_t count) {
  if (PyFunction_Check(callable) || callable == Py_None) return true;
  if (PyMethod_Check(callable)) return PyFunction_Check(PyMethod_GET_FUNCTION(callable));
  if (callable == (PyObject*)&PyType_Type && count == 1 && PyList_CheckExact(iterables[0])) {  // of tensors: known
    PyObject** items = PySequence_Fast_ITEMS(iterables[0]);
    return std::all_of(items, items + PyList_GET_SIZE(iterables[0]),
                       [this](PyObject* item) { return is_tensor(item); });
  }
  if (PyType_Check(callable))
    return callable == (PyObject*)&PyLong_Type || callable == (PyObject*)&PyUnicode_Type ||
           callable == (PyObject*)&PyFloat_Type || (!count && is_plain_constructor((PyTypeObject*)callable));
  PyObject* self;
  if (model_of(callable, &self) != Model::Pure || self) return false;
  return std::none_of(iterables, iterables + count, [this](PyObject* iterable) {
    Kind kind = kind_of(Py_TYPE(iterable));
    return kind == Kind::Iterator || kind == Kind::Instance || is_fresh(iterable);
  });
}

// functools.partial: the call that it stands for, so that a C function inside is seen.
PyObject* Watch::call_partial(PyObject* partial, PyObject* const* args, size_t positional, PyObject* keyword_names) {
  py::Ref function = py::Ref::steal(PyObject_GetAttrString(partial, "func"));
  py::Ref first = py::Ref::steal(PyObject_GetAttrString(partial, "args"));
  py::Ref keywords = py::Ref::steal(PyObject_GetAttrString(partial, "keywords"));
  if (!function || !first || !keywords) return nullptr;
  for (const char* name : {"func", "args", "keywords"}) {  // __setstate__ can change them
    py::Ref text = py::Ref::steal(PyUnicode_InternFromString(name));
    PyObject* descriptor = _PyType_Lookup(Py_TYPE(partial), text.get());
    PyObject* value = *name == 'f' ? function.get() : *name == 'a' ? first.get() : keywords.get();
    if (descriptor && !is_fresh(partial)) guards.read_slot(partial, descriptor, value);
  }
  saw(first.get());
  read_contents(keywords.get());
  std::vector<PyObject*> values, names;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(first.get()); ++i) values.push_back(PyTuple_GET_ITEM(first.get(), i));
  values.insert(values.end(), args, args + positional);
  size_t all_positional = values.size();
  size_t keyword_count = keyword_names ? PyTuple_GET_SIZE(keyword_names) : 0;
  auto overridden = [&](PyObject* name) {
    for (size_t i = 0; i < keyword_count; ++i)
      if (PyUnicode_Compare(name, PyTuple_GET_ITEM(keyword_names, i)) == 0) return true;
    return false;
  };
  Py_ssize_t position = 0;
  PyObject *name, *value;
  while (PyDict_Next(keywords.get(), &position, &name, &value)) {
    if (overridden(name)) continue;
    names.push_back(name);
    values.push_back(value);
  }
  for (size_t i = 0; i < keyword_count; ++i) {
    names.push_back(PyTuple_GET_ITEM(keyword_names, i));
    values.push_back(args[positional + i]);
  }
  py::Ref all_names;
  if (!names.empty()) {
    all_names = py::Ref::steal(PyTuple_New(static_cast<Py_ssize_t>(names.size())));
    for (size_t i = 0; i < names.size(); ++i) PyTuple_SET_ITEM(all_names.get(), i, Py_NewRef(names[i]));
  }
  std::vector<py::Ref> owned;
  for (PyObject* item : values) owned.push_back(py::Ref::borrow(item));
  return call(function.get(), values.data(), all_positional, all_names.get());
}

}  // namespace magneto::trace
