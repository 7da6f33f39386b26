// The life of a watch, the kinds of objects, and the reads and effects of plain containers and variables.
#include "trace/watch.h"

#include <frameobject.h>

#include <algorithm>

#include "cpython/cpython.h"
#include "cpython/error_aside.h"
#include "cpython/text.h"
#include "guard/deaths.h"
#include "runtime/state.h"
#include "trace/call_table.h"
#include "trace/frame_run.h"
#include "trace/known_types.h"
#include "trace/listing.h"
#include "trace/writer.h"

namespace magneto::trace {

using py::text;
using py::type_name;

namespace {

constexpr int kMaxNesting = 100;
constexpr Py_ssize_t kOwnReferences = 5;  // guards, nodes and, twice, the writer hold an object; and a spare one

// Looking up a key compares it with others; with objects of Python classes that may run their code.
bool has_plain_keys(PyObject* dict) {
  if (mg_has_only_text_keys(dict)) return true;
  Py_ssize_t position = 0;
  PyObject *key, *value;
  while (PyDict_Next(dict, &position, &key, &value))
    if (!PyUnicode_CheckExact(key) && !guard::is_atom(key) && has_python_equality(Py_TYPE(key))) return false;
  return true;
}

// Of a dict with plain keys, under an atom.
PyObject* item_of(PyObject* dict, PyObject* key) {
  PyObject* value = PyDict_GetItemWithError(dict, key);
  if (!value) PyErr_Clear();
  return value;
}

// Whether the function is called because something dies.
bool is_last_word(PyObject* function, PyObject* self) {
  static PyObject* name = PyUnicode_InternFromString("__del__");
  return PyWeakref_Check(self) || (Py_TYPE(self)->tp_finalize && _PyType_Lookup(Py_TYPE(self), name) == function);
}

}  // namespace

Watch::Watch(const guard::Arguments& arguments, guard::Entry* first, program::Program* program, Leeway leeway)
    : arguments_(arguments),
      plug_(runtime::tensor_plug()),
      writer_(std::make_unique<Writer>(*this, arguments)),
      entry_(first),
      program_(program),
      leeway_(std::move(leeway)),
      global_state_(plug_.global_state()),
      outer_(runtime::thread_state().watch) {
  start_recording();
  writer_->start(program);
  for (size_t i = 0; i < arguments.tensors().size() && alive(); ++i) {
    PyObject* tensor = arguments.tensors()[i];
    if (!symbolic_) {
      recording->add_input(tensor);
      continue;
    }
    symbolic_->add_input(tensor, arguments.open_sizes(i));
    auto node = static_cast<uint32_t>(arguments.node_of(tensor));
    auto opening = std::ranges::find(arguments.open(), size_t{node}, &guard::Opening::node);
    if (opening != arguments.open().end() && !opening->promised.empty())
      symbolic_->watch_dimensions(tensor, opening->promised, [this] { pinned_at = place(); });
    input_registers_.push_back(program->emit(program::Op::Argument, node));
  }
  if (Listing::is_wanted()) listing = std::make_unique<Listing>(*this);
  runtime::thread_state().watch = this;
}

Watch::~Watch() {
  for (const auto& contents : looked_into_) contents->freeze();
  runtime::thread_state().watch = outer_;
}

void Watch::start_recording() {
  auto on_fail = [this](std::string reason) { fail_from_recording(reason); };
  stand_ins_.reset();
  recording.reset();
  bool is_open = !leeway_.empty() || !arguments_.open().empty();
  if (auto made = is_open ? plug_.record_symbolic(on_fail) : nullptr) {
    input_checks_ = plug_.tensor_checks();
    symbolic_ = made.get();
    stand_ins_ = std::make_unique<StandIns>(*this, *symbolic_);
    recording = std::move(made);
  } else {
    recording = plug_.record(on_fail);
  }
}

Watch* Watch::current() {
  runtime::ThreadState& state = runtime::thread_state();
  return state.watch_paused ? nullptr : state.watch;
}

void Watch::give_up(const std::string& reason, Around around) {
  if (!alive()) return;
  note_stumble(reason, around);
  where_ = place();
  reason_ = reason;
  recording.reset();
  no_collection_.reset();
}

// The recording is still on the stack: it has stopped by itself and is destroyed later.
void Watch::fail_from_recording(const std::string& reason) {
  if (!alive()) return;
  note_stumble(reason, Around::Place);
  where_ = place();
  reason_ = reason;
  no_collection_.reset();
}

void Watch::let_go() {
  if (guards.size()) guard::Reads dropped = std::exchange(guards, guard::Reads());
  if (std::exchange(has_let_go_, true)) return;
  std::vector<Effect> dropped_effects = std::exchange(effects, {});
  std::vector<py::Ref> dropped_types = std::exchange(kept_types_, {});
  kinds_ = {};
  auto dropped_context = std::exchange(open_context_, {});
  auto dropped_labels = std::exchange(labels_, {});
  provenance.drop_values();
  writer_->drop_all();
}

std::string Watch::place() {
  std::string place;
  py::ErrorAside aside;
  if (PyFrameObject* frame = PyThreadState_GetFrame(PyThreadState_Get())) {
    PyCodeObject* code = PyFrame_GetCode(frame);
    place =
        text(code->co_filename) + ":" + std::to_string(PyFrame_GetLineNumber(frame)) + " in " + text(code->co_qualname);
    Py_DECREF(code);
    Py_DECREF(frame);
  }
  return place;
}

Kind Watch::new_kind(PyTypeObject* type) {
  Kind kind = known_kind(type);
  if (!alive()) return kind;
  *kinds_.insert(type).first = kind;
  kept_types_.push_back(py::Ref::borrow((PyObject*)type));
  return kind;
}

bool Watch::is_argument(PyObject* object) const {
  if (contents().containers().contains(object)) return true;
  auto has = [object](const std::vector<PyObject*>& tensors) {
    return std::ranges::find(tensors, object) != tensors.end();
  };
  return has(arguments_.tensors()) || (again_ && has(again_->tensors()));
}

// It was passed to the call, or unknown code has got it or returned it: it is another object in each call.
bool Watch::has_been_given(PyObject* object) const {
  auto has = [object](const auto& contents) { return contents->containers().contains(object); };
  return has(&arguments_) || opaque_.contains(object) || std::ranges::any_of(looked_into_, has);
}

// ---- reads

void Watch::saw(PyObject* value) {
  if (!value || !alive()) return;
  if (PyTuple_Check(value)) {
    if (Py_EnterRecursiveCall("")) {
      PyErr_Clear();
      return give_up("the call reads a tuple that is nested too deeply");
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(value) && alive(); ++i) saw(PyTuple_GET_ITEM(value, i));
    Py_LeaveRecursiveCall();
  } else if (!is_tensor(value)) {
    if (has_been_given(value)) give_up("an argument is also part of the state");
  } else if (!guards.has_state_tensor(value)) {
    std::string why = plug_.why_not_plain(value);
    if (!why.empty()) return give_up("the call uses " + why);
    // Made by this call, and read back out of an object that was not known to be fresh.
    if (!is_argument(value) && recording->knows(value)) return;
    recording->add_state(value);
    if (alive()) guards.add_state_tensor(value);
  }
}

// Before a key of an older dict is looked for. False: gave up.
bool Watch::check_keys(PyObject* dict) {
  if (scanned_dicts_.insert(dict) && !has_plain_keys(dict))
    give_up("the call looks into a dict whose keys are objects with methods of their own");
  return alive();
}

NodeId Watch::look_up_key(PyObject* dict, PyObject* key) {
  if (!alive() || is_fresh(dict)) return kKnown;
  if (contents().containers().contains(dict)) return look_up_argument(dict, key);
  if (!check_keys(dict)) return kKnown;
  if (!guard::is_atom(key)) {
    read_contents(dict);
    return kKnown;
  }
  if (is_changed(dict)) {
    const Effect* write = last_write(dict, key);
    if (write && !write->key) return give_up("the call looks into a dict that it has changed"), kKnown;
    if (write) return written(*write, item_of(dict, key));
  }
  return look_up_item(dict, key, item_of(dict, key));
}

// In a dict that is older than the call and that this has not changed.
NodeId Watch::look_up_item(PyObject* dict, PyObject* key, PyObject* value) {
  bool is_open_tensor = value && !leeway_.keys.empty() && is_tensor(value) && is_open_key(key);
  if (value && (guard::is_plain_number(value) || is_open_tensor)) return provenance.add_read(dict, key, value);
  if (guards.read_key(dict, key, value)) saw(value);
  return kKnown;
}

// What an argument holds is guarded, but for numbers that are open.
NodeId Watch::look_up_argument(PyObject* dict, PyObject* key) {
  const Effect* write = is_changed(dict) && guard::is_atom(key) ? last_write(dict, key) : nullptr;
  if (write) return write->key ? written(*write, item_of(dict, key)) : kKnown;
  for (const auto& [number, id] : open_numbers_)
    if (number.dict == dict && guard::same_value(number.key, key)) return provenance.is_known(id) ? kKnown : id;
  return kKnown;
}

void Watch::read_contents(PyObject* container) {
  if (!alive()) return;
  if (!is_tracked(container)) {
    if (!is_fresh(container) && (Py_TYPE(container)->tp_flags & Py_TPFLAGS_HEAPTYPE)) use_specials(Py_TYPE(container));
    for (const auto& [number, id] : open_numbers_)
      if (number.dict == container) settle(id);
    if (is_changed(container)) settle_stored(container);
    return read_again(container);
  }
  if (is_changed(container)) {
    if (!guards.has_read_all(container))
      return give_up("the call looks at a " + type_name(container) + " that it has changed");
    return settle_stored(container);
  }
  switch (kind_of(Py_TYPE(container))) {
    case Kind::List:
      guards.read_list(container);
      for (Py_ssize_t i = 0; i < PyList_GET_SIZE(container); ++i) saw(PyList_GET_ITEM(container, i));
      break;
    case Kind::Dict: {
      guards.read_items(container);
      Py_ssize_t position = 0;
      PyObject *key, *value;
      while (PyDict_Next(container, &position, &key, &value)) saw(value);
      break;
    }
    case Kind::Set: guards.read_set(container); break;
    case Kind::Iterator: give_up("the call reads a " + type_name(container) + " that existed before it"); break;
    case Kind::Unknown:
      give_up("the call reads a " + type_name(container) + ", whose contents cannot be guarded");
      break;
    case Kind::Instance: guards.read_specials(Py_TYPE(container)); break;
    default: break;
  }
}

void Watch::own_part(PyObject* part) {
  if (Py_REFCNT(part) != 1) return;
  if (mg_is_plain_iterator(Py_TYPE(part))) mark_fresh(part);
  for (Py_ssize_t i = 0; PyTuple_CheckExact(part) && i < PyTuple_GET_SIZE(part); ++i)  // of zip and map
    own_part(PyTuple_GET_ITEM(part, i));
}

// Behind a cut: the containers that a new iterator goes over may have been changed.
void Watch::read_again(PyObject* iterator) {
  PyTypeObject* type = Py_TYPE(iterator);
  if (!cuts_ || kind_of(type) != Kind::Iterator || PyGen_CheckExact(iterator) || !type->tp_traverse) return;
  visitproc visit = [](PyObject* part, void* data) -> int {
    auto& watch = *static_cast<Watch*>(data);
    watch.own_part(part);
    Kind kind = watch.kind_of(Py_TYPE(part));
    if (kind == Kind::List || kind == Kind::Dict || kind == Kind::Set || kind == Kind::Iterator)
      watch.read_contents(part);
    else if (PyTuple_CheckExact(part))  // zip and map keep their iterators in one
      for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(part); ++i) watch.read_again(PyTuple_GET_ITEM(part, i));
    return 0;
  };
  type->tp_traverse(iterator, visit, this);
}

bool Watch::holds_only_atoms(PyObject* tuple) {
  PyObject** items = ((PyTupleObject*)tuple)->ob_item;
  return std::all_of(items, items + PyTuple_GET_SIZE(tuple),
                     [this](PyObject* item) { return kind_of(Py_TYPE(item)) == Kind::Atom; });
}

void Watch::walk(PyObject* value, bool printed) {
  struct Walk {
    Watch& watch;
    bool printed;
    guard::PointerSet seen;
    int depth = 0;
    void visit(PyObject* object) {
      if (++depth > kMaxNesting)
        watch.give_up("the call reads values that are nested too deeply");
      else
        look_at(object);
      --depth;
    }
    void look_at(PyObject* object) {
      Kind kind = watch.kind_of(Py_TYPE(object));
      if (kind == Kind::Tensor && printed) watch.look_at_tensor(object, "printing");
      if (PyCell_Check(object)) watch.settle(watch.content(object).node);
      if (kind == Kind::Atom || kind == Kind::Tensor || !watch.alive()) return;
      if (kind == Kind::Identity) {
        if (printed && PyType_Check(object)) watch.read_names(object, &PyType_Type);
        if (printed && PyFunction_Check(object)) watch.read_names(object, &PyFunction_Type);
        if (printed && PyMethod_Check(object)) visit(PyMethod_GET_FUNCTION(object)), visit(PyMethod_GET_SELF(object));
        if (PyType_Check(object) && Py_TYPE(object) != &PyType_Type) watch.guards.read_specials(Py_TYPE(object));
        if (has_hidden_contents(object) && !watch.is_fresh(object))
          watch.give_up("the call compares or prints a " + type_name(object) + " that existed before it");
        return;
      }
      if (printed && !repr_is_python(Py_TYPE(object))) watch.read_names((PyObject*)Py_TYPE(object), &PyType_Type);
      if (kind == Kind::Instance) {
        watch.use_identity(object, "compared or printed");
        if (!watch.is_fresh(object)) watch.read_instance(object);
        return watch.guards.read_specials(Py_TYPE(object));
      }
      if (!seen.insert(object)) return;
      if (kind != Kind::Tuple) watch.read_contents(object);
      if (Py_TYPE(object)->tp_flags & Py_TPFLAGS_HEAPTYPE) watch.guards.read_specials(Py_TYPE(object));
      if (PyTuple_Check(object)) {
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(object); ++i) visit(PyTuple_GET_ITEM(object, i));
      } else if (PyList_Check(object)) {
        for (Py_ssize_t i = 0; i < PyList_GET_SIZE(object); ++i) visit(PyList_GET_ITEM(object, i));
      } else if (PyDict_Check(object)) {
        Py_ssize_t position = 0;
        PyObject *key, *item;
        while (PyDict_Next(object, &position, &key, &item)) visit(key), visit(item);
      } else if (PyAnySet_Check(object)) {
        py::Ref iterator = py::Ref::steal(PySet_Type.tp_iter(object));
        while (py::Ref item = py::Ref::steal(iterator ? PyIter_Next(iterator.get()) : nullptr)) visit(item.get());
      } else if (kind == Kind::Unknown) {
        watch.give_up("the call reads a " + type_name(object) + ", whose contents cannot be guarded");
      }
    }
  };
  if (!alive()) return;
  Kind kind = kind_of(Py_TYPE(value));
  if (kind == Kind::Atom || (kind == Kind::Tensor && !printed)) return;
  if (PyTuple_CheckExact(value) && holds_only_atoms(value)) return;
  Walk{*this, printed, {}}.visit(value);
}

// What repr shows of a class or function. Renaming a class does not change its version.
void Watch::read_names(PyObject* object, PyTypeObject* type) {
  if (PyType_Check(object) && !(((PyTypeObject*)object)->tp_flags & Py_TPFLAGS_HEAPTYPE)) return;
  static PyObject* const names[] = {PyUnicode_InternFromString("__name__"), PyUnicode_InternFromString("__qualname__")};
  static PyObject* module_name = PyUnicode_InternFromString("__module__");
  if (PyType_Check(object)) guards.read_type((PyTypeObject*)object, module_name);
  for (PyObject* name : names) {
    PyObject* descriptor = _PyType_Lookup(type, name);
    py::Ref value = py::Ref::steal(Py_TYPE(descriptor)->tp_descr_get(descriptor, object, (PyObject*)type));
    guards.read_slot(object, descriptor, value.get());
  }
}

// The special methods of `type` may run.
void Watch::use_specials(PyTypeObject* type) {
  guards.read_specials(type);
  if (kind_of(type) == Kind::Unknown && has_opaque_specials(type))
    give_up("the call uses special methods of " + std::string(type->tp_name) + " that are written in C");
}

void Watch::read_truth(PyObject* value) {
  if (value == Py_True || value == Py_False || value == Py_None || !alive()) return;
  switch (kind_of(Py_TYPE(value))) {
    case Kind::Atom: break;
    case Kind::Tensor:
      if (StandIns* again = stand_ins()) again->ask_truth(value);
      break;
    case Kind::Identity:
      if (PyType_Check(value)) guards.read_specials(Py_TYPE(value));
      break;
    default:
      if (Py_TYPE(value)->tp_flags & Py_TPFLAGS_HEAPTYPE) guards.read_specials(Py_TYPE(value));
      read_contents(value);
  }
}

NodeId Watch::look_up_cell(PyObject* cell) {
  if (!alive()) return kKnown;
  if (is_fresh(cell)) return content(cell).node;
  if (const Effect* write = is_changed(cell) ? last_write(cell, nullptr) : nullptr)
    return written(*write, PyCell_GET(cell));
  PyObject* value = PyCell_GET(cell);
  bool is_open_tensor = value && !leeway_.keys.empty() && is_tensor(value) && is_open_key(cell_key());
  if (value && (guard::is_plain_number(value) || is_open_tensor)) return provenance.add_read(cell, nullptr, value);
  guards.read_cell(cell, value);
  saw(value);
  return kKnown;
}

NodeId Watch::look_up_global(PyObject* globals, PyObject* builtins, PyObject* name, PyObject** found) {
  bool is_unchanged = alive() && effects.empty() && is_tracked(globals) && is_tracked(builtins);
  for (PyObject* dict : {globals, builtins}) {
    if (!is_unchanged || !check_keys(dict)) break;
    *found = item_of(dict, name);
    NodeId node = look_up_item(dict, name, *found);
    if (*found || dict == builtins) return node;
  }
  NodeId node = look_up_key(globals, name);
  return !alive() || guard::find_key(globals, name) ? node : look_up_key(builtins, name);
}

void Watch::read_iterable(PyObject* value) {
  if (!alive()) return;
  Kind kind = kind_of(Py_TYPE(value));
  if (Py_TYPE(value)->tp_flags & Py_TPFLAGS_HEAPTYPE) guards.read_specials(Py_TYPE(value));
  if (kind == Kind::Identity && PyType_Check(value)) return guards.read_specials(Py_TYPE(value));
  if (kind == Kind::Unknown) return give_up("the call iterates over a " + type_name(value));
  if (kind != Kind::Instance) read_contents(value);
}

void Watch::read_iterator(PyObject* iterator) {
  mg_iterator state;
  PyObject* parts[MG_ITERATOR_WORDS];
  if (alive() && Py_IS_TYPE(iterator, &PyTupleIter_Type) && mg_iterator_read(iterator, &state, parts))
    for (int i = 0; i < state.part_count; ++i) settle(provenance.find_holder(parts[i]));
  advance_iterator(iterator);
}

// What a tuple that holds open values is about to give.
NodeId Watch::next_of_tuple(PyObject* iterator) const {
  mg_iterator state;
  PyObject* parts[MG_ITERATOR_WORDS];
  if (!alive() || !Py_IS_TYPE(iterator, &PyTupleIter_Type)) return kKnown;
  if (!mg_iterator_read(iterator, &state, parts) || state.part_count != 1) return kKnown;
  const Node* holder = provenance.holder(parts[0]);
  Py_ssize_t left = holder ? PyObject_LengthHint(iterator, 0) : 0;
  return left > 0 ? holder->items[holder->items.size() - static_cast<size_t>(left)] : kKnown;
}

void Watch::advance_iterator(PyObject* iterator) {
  if (!alive()) return;
  if (is_fresh(iterator)) return read_again(iterator);
  Kind kind = kind_of(Py_TYPE(iterator));
  if (kind == Kind::Instance) return guards.read_specials(Py_TYPE(iterator));
  give_up("the call advances a " + type_name(iterator) + " that existed before it");
}

void Watch::read_operand(PyObject* value) {
  if (!alive()) return;
  Kind kind = kind_of(Py_TYPE(value));
  if (kind == Kind::Atom || kind == Kind::Tensor) return;
  if (kind == Kind::Identity && PyType_Check(value)) return guards.read_specials(Py_TYPE(value));
  read_deep(value);
}

// Guards say what an argument holds, not which object it is: a later call may well pass the older object.
void Watch::compare_identity(PyObject* a, PyObject* b) {
  auto is_value = [](PyObject* object) {
    return PyLong_CheckExact(object) || PyFloat_CheckExact(object) || PyUnicode_CheckExact(object) ||
           PyBytes_CheckExact(object) || PyComplex_CheckExact(object);
  };
  // What is equal may be one object in this call and two in the next: no exit would know.
  bool are_equal = is_value(a) && is_value(b) && guard::same_atom(a, b);
  if (alive() && are_equal && !mg_is_shared_int(a) && !(pin_identity(a) && pin_identity(b)))
    return give_up("the call asks whether two values are the same object", Around::Never);
  if (alive() && (foreign_tensors_.contains(a) || foreign_tensors_.contains(b)) && is_tensor(a) && is_tensor(b))
    return give_up("the call asks whether a tensor of an unknown function is another one");
  auto is_older = [&](PyObject* object) {
    return is_tensor(object) ? guards.has_state_tensor(object) : !guard::is_atom(object) && is_tracked(object);
  };
  if (alive() && ((is_argument(a) && is_older(b)) || (is_argument(b) && is_older(a))))
    give_up("the call asks whether an argument is an object that existed before it", Around::Never);
}

// Lets guards tell a value from others that are equal. False: it was not found by a guarded read.
bool Watch::pin_identity(PyObject* value) {
  if (cuts_ || !provenance.is_only_read(value)) return false;
  for (size_t i = 0; i < contents().node_count(); ++i)
    if (contents().seen(i) == value) return false;
  return guards.pin_identity(value);
}

void Watch::enter_function(PyFunctionObject* function, PyObject* const* locals) {
  if (!alive()) return;
  ++frames;
  auto* code = (PyCodeObject*)function->func_code;
  bool called_by_c = handover.function != (PyObject*)function && code->co_argcount > 0;
  if (called_by_c && locals[0] && is_last_word((PyObject*)function, locals[0]))
    give_up("an object dies whose end others notice (__del__, a weak reference)");
  if (takes_context_ && called_by_c && locals[0] && plug_.is_call_context(locals[0])) mark_fresh(locals[0]);
  if (PyTypeObject* type = std::exchange(constructing_, nullptr)) {
    static PyObject* name = PyUnicode_InternFromString("__init__");
    bool is_init = _PyType_Lookup(type, name) == (PyObject*)function;
    if (is_init && code->co_argcount > 0 && locals[0] && Py_TYPE(locals[0]) == type) mark_fresh(locals[0]);
  }
  if (!is_fresh((PyObject*)function)) {
    if (guards.read_function(function)) {
      saw(function->func_defaults);
      if (PyObject* defaults = function->func_kwdefaults) read_contents(defaults);
    }
  }
  bool takes_class = code->co_argcount > 0 && locals[0] && PyType_Check(locals[0]);
  if (takes_class && !((PyTypeObject*)locals[0])->tp_mro) give_up("the call is part of making a class (mro)");
  int index = code->co_argcount + code->co_kwonlyargcount;
  if (code->co_flags & CO_VARARGS) mark_fresh(locals[index++]);
  if (code->co_flags & CO_VARKEYWORDS) mark_fresh(locals[index]);
}

// An iterator that a function hands out may be advanced from C, where nobody sees it.
void Watch::leave_function(PyObject* result) {
  if (consumer_looks && consumer_depth + 1 == running.size()) read_deep(result);
  if (Py_TYPE(result)->tp_iternext && kind_of(Py_TYPE(result)) == Kind::Iterator) read_iterator(result);
}

// Guards say what an argument holds, not where it lives.
void Watch::use_identity(PyObject* value, const char* what) {
  std::vector<PyObject*> open{value};  // no recursion: it may be nested deeply
  while (!open.empty() && alive()) {
    PyObject* next = open.back();
    open.pop_back();
    if (is_argument(next))
      give_up(std::string("the call uses the identity of an argument (") + what + ")", Around::Never);
    for (Py_ssize_t i = 0; PyTuple_Check(next) && i < PyTuple_GET_SIZE(next); ++i)
      open.push_back(PyTuple_GET_ITEM(next, i));
  }
}

void Watch::note_tensor_work() {
  for (size_t i = 0; i < running.size() && !work_in_handler; ++i) work_in_handler = running[i]->notices_errors();
}

void Watch::check_tensors(PyObject* result, const What& what) {
  if (!alive()) return;
  note_tensor_work();
  if (is_tensor(result)) {
    if (!recording->knows(result) && !guards.has_state_tensor(result))
      give_up(what.text() + " returns a tensor that no recorded operation made");
  } else if (PyTuple_Check(result)) {
    mark_fresh(result);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(result); ++i) check_tensors(PyTuple_GET_ITEM(result, i), what);
  } else if (PyList_Check(result)) {
    mark_fresh(result);
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(result); ++i) check_tensors(PyList_GET_ITEM(result, i), what);
  }
}

// ---- effects

// Storing what is there already is no effect, as long as a guard says that it is there. (True also after giving up.)
bool Watch::is_there_already(PyObject* dict, PyObject* key, Value value) {
  if (!check_keys(dict)) return true;
  if (!value.object || !provenance.is_known(value.node) || is_changed(dict)) return false;
  PyObject* now = item_of(dict, key);
  if (!now || (now != value.object && !guard::same_atom(now, value.object))) return false;
  read_dict_key(dict, key);
  return true;
}

const Effect* Watch::last_write(PyObject* container, PyObject* key) const {
  Py_hash_t hash = key ? PyObject_Hash(key) : 0;
  for (auto effect = effects.rbegin(); effect != effects.rend(); ++effect)
    if (effect->container == container &&
        (!effect->key || !key || (effect->hash == hash && guard::are_one_key(effect->key.get(), key))))
      return &*effect;
  return nullptr;
}

// The node of what the call has written, if it is still there: a signal handler or another thread may have come by.
NodeId Watch::written(const Effect& write, PyObject* now) {
  using program::Op;
  bool empties = write.op == Op::SetCell && write.operands.size() == 1;
  bool deletes = empties || write.op == Op::DeleteAttribute || write.op == Op::DeleteItem;
  if (now != (deletes ? nullptr : write.operands.back().first.get()))
    give_up("somebody else changes what the call has changed");
  return write.operands.back().second;
}

// What was stored into the container is about to be taken out where nobody follows it.
void Watch::settle_stored(PyObject* container) {
  for (const Effect& effect : effects)
    if (effect.container == container)
      for (const auto& [object, node] : effect.operands) settle(node);
}

// Of a dict, under a key that is an atom.
void Watch::write_key(Effect effect) {
  bool deletes = effect.op == program::Op::DeleteAttribute || effect.op == program::Op::DeleteItem;
  if (deletes && effect.key) read_dict_key(effect.container, effect.key.get());
  PyObject* old = effect.key ? item_of(effect.container, effect.key.get()) : nullptr;
  if (old && Py_REFCNT(old) == 2 && guards.is_owner(old))  // it must die now, and not when the guards let it go
    return give_up("the call drops an object that it has looked into");
  add(std::move(effect));
}

PyObject* dropped_key(const Effect& effect) {
  if (effect.key) return effect.key.get();
  bool is_item = effect.op == program::Op::SetItem || effect.op == program::Op::DeleteItem;
  return is_item ? effect.operands[1].first.get() : nullptr;
}

// What dies of a change must not run code: in later calls it is something else, and dies at another moment.
void Watch::add(Effect effect) {
  if (!alive()) return;
  if (effect.key) effect.hash = PyObject_Hash(effect.key.get());
  auto ours = static_cast<Py_ssize_t>(effects.size()) + kOwnReferences;
  PyObject* key = dropped_key(effect);
  bool quiet = !effect.drops || (effect.key ? guard::dies_quietly(item_of(effect.container, key), ours)
                                            : guard::drops_quietly(effect.container, key, ours));
  if (!quiet) return give_up("the call drops an object whose end others notice (__del__, a weak reference)");
  if (effect.container) changed_.insert(effect.container);
  effects.push_back(std::move(effect));
}

bool Watch::may_mark(PyObject* tensor, PyObject* name) const {
  return runtime::is_mark(text(name)) && !is_argument(tensor) && !guards.has_state_tensor(tensor) &&
         recording->knows(tensor);
}

void Watch::mark_tensor(PyObject* tensor, PyObject* name, Value value) {
  if (!value.object || !guard::is_atom(value.object) || !may_mark(tensor, name))
    return give_up("the call sets the attribute '" + text(name) + "' of a tensor");
  Effect effect{program::Op::SetAttribute,
                tensor,
                {},
                py::Ref::borrow(name),
                {{py::Ref::borrow(tensor), kKnown}, {py::Ref::borrow(value.object), value.node}}};
  effect.drops = false;
  add(std::move(effect));
}

void Watch::write_attribute(PyObject* object, PyObject* name, Value value, bool direct) {
  if (!alive()) return;
  PyTypeObject* type = Py_TYPE(object);
  if (!PyUnicode_CheckExact(name)) return give_up("the call sets an attribute whose name is no plain string");
  if (PyCell_Check(object)) fill_cell(object, kKnown);
  guards.read_type(type, name);
  if (type->tp_flags & Py_TPFLAGS_HEAPTYPE) guards.read_specials(type);
  if (is_tensor(object)) return mark_tensor(object, name, value);
  bool generic = direct || type->tp_setattro == PyObject_GenericSetAttr;
  bool python = kind_of(type) != Kind::Unknown && (type->tp_flags & Py_TPFLAGS_HEAPTYPE);
  bool watched = method_is_python(type, value.object ? "__setattr__" : "__delattr__");
  if (!generic && python && watched && !PyType_Check(object)) return settle(value.node);
  generic |= python && !PyType_Check(object) && !watched;
  PyObject* descriptor = _PyType_Lookup(type, name);
  if (descriptor && Py_TYPE(descriptor)->tp_descr_set) {
    settle(value.node);
    if (kind_of(Py_TYPE(descriptor)) == Kind::Instance) return guards.read_specials(Py_TYPE(descriptor));
    if (Py_TYPE(descriptor) == &PyProperty_Type) {
      if (!property_is_python(descriptor, "fset"))
        give_up("the call sets the property '" + text(name) + "', written in C");
      return;
    }
  }
  bool is_setter = descriptor && Py_TYPE(descriptor) == &PyGetSetDescr_Type;
  if (is_setter && plug_.is_call_context(object) && !plug_.may_be_set(name))
    return give_up("the call sets '" + text(name) + "' of a " + type->tp_name);
  bool is_special = PyUnicode_CompareWithASCIIString(name, "__dict__") == 0 ||
                    PyUnicode_CompareWithASCIIString(name, "__class__") == 0;
  if (is_special) return give_up("the call sets " + text(name) + " of an object");
  if (is_fresh(object)) return settle(value.node);
  bool in_dict = generic && !(descriptor && Py_TYPE(descriptor)->tp_descr_set);
  PyObject** slot = in_dict ? mg_dict_slot(object) : nullptr;
  if (!slot || !*slot)
    return give_up("the call sets the attribute '" + text(name) + "' of a " + type->tp_name +
                   " that existed before it");
  read_instance(object);
  if (is_there_already(*slot, name, value)) return;
  Effect effect{value.object ? program::Op::SetAttribute : program::Op::DeleteAttribute,
                *slot,
                py::Ref::borrow(name),
                py::Ref::borrow(name),
                {{py::Ref::borrow(object), kKnown}}};
  if (value.object) effect.operands.emplace_back(py::Ref::borrow(value.object), value.node);
  write_key(std::move(effect));
}

// A tuple of what is in a list or tuple that hands its items on.
py::Ref Watch::items_now(PyObject* sequence) {
  if (PyTuple_CheckExact(sequence)) return py::Ref::borrow(sequence);
  if (!PyList_CheckExact(sequence)) return give_up("the call stores the items of a " + type_name(sequence)), py::Ref();
  if (!is_fresh(sequence)) read_contents(sequence);
  py::Ref items = py::Ref::steal(PySequence_Tuple(sequence));
  if (items) mark_fresh(items.get());
  return items;
}

void Watch::write_item(PyObject* container, PyObject* key, Value value) {
  if (!alive()) return;
  if (is_tensor(container)) {
    settle(value.node);
    return note_tensor_work();
  }
  Kind kind = kind_of(Py_TYPE(container));
  if (Py_TYPE(container)->tp_flags & Py_TPFLAGS_HEAPTYPE) guards.read_specials(Py_TYPE(container));
  if (kind == Kind::Instance) return settle(value.node);
  if (kind != Kind::List && kind != Kind::Dict) return give_up("the call changes an item of a " + type_name(container));
  bool overridden = method_is_python(Py_TYPE(container), value.object ? "__setitem__" : "__delitem__");
  if (overridden || is_fresh(container)) return settle(value.node);
  if (kind == Kind::Dict && is_tracked(container) && !check_keys(container)) return;
  bool by_key = kind == Kind::Dict && guard::is_atom(key);
  if (by_key && is_there_already(container, key, value)) return;
  if (!by_key || !is_tracked(container)) settle(value.node), read_contents(container);
  if (!guard::is_atom(key) && !PySlice_Check(key)) return give_up("the call changes an item under an unusual key");
  py::Ref items = PySlice_Check(key) && value.object ? items_now(value.object) : py::Ref();
  if (!alive()) return;
  if (items) value.object = items.get();
  Effect effect{value.object ? program::Op::SetItem : program::Op::DeleteItem,
                container,
                py::Ref::borrow(by_key ? key : nullptr),
                {},
                {{py::Ref::borrow(container), kKnown}, {py::Ref::borrow(key), kKnown}}};
  if (value.object) effect.operands.emplace_back(py::Ref::borrow(value.object), value.node);
  write_key(std::move(effect));
}

void Watch::write_global(PyObject* globals, PyObject* name, Value value) {
  if (!alive() || is_there_already(globals, name, value)) return;
  Effect effect{value.object ? program::Op::SetItem : program::Op::DeleteItem,
                globals,
                py::Ref::borrow(name),
                {},
                {{py::Ref::borrow(globals), kKnown}, {py::Ref::borrow(name), kKnown}}};
  if (value.object) effect.operands.emplace_back(py::Ref::borrow(value.object), value.node);
  write_key(std::move(effect));
}

void Watch::write_cell(PyObject* cell, Value value) {
  if (!alive()) return;
  if (is_fresh(cell)) return fill_cell(cell, value.node);
  Effect effect{program::Op::SetCell, cell, {}, {}, {{py::Ref::borrow(cell), kKnown}}};
  if (value.object) effect.operands.emplace_back(py::Ref::borrow(value.object), value.node);
  add(std::move(effect));
}

void Watch::mutate(PyObject* container, const What& what) {
  if (!is_fresh(container))
    give_up("the call changes a " + type_name(container) + " that existed before it (" + what.text() + ")");
}

void Watch::repeat(PyObject* container, PyObject* function, PyObject* const* rest, size_t count, bool drops,
                   NodeId last) {
  Effect effect{program::Op::Call, container, {}, py::Ref::borrow(function), {}};
  if (container) effect.operands.emplace_back(py::Ref::borrow(container), kKnown);
  for (size_t i = 0; i < count; ++i)
    effect.operands.emplace_back(py::Ref::borrow(rest[i]), i + 1 == count ? last : kKnown);
  effect.drops = drops;
  add(std::move(effect));
}

std::string What::text() const { return words_ ? words_ : callable_name(callable_); }

}  // namespace magneto::trace
