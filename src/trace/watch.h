// One watched call: what it may touch, what it read, and why it cannot be compiled, if so.
//
// Every value that a watched instruction meets is one of three: *fresh*, made by this call and free to change; an
// *argument*, guarded by shape before anything runs; or *tracked*, older than the call, so that reading it makes a
// guard and changing it ends the watch.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cpython/ref.h"
#include "guard/arguments.h"
#include "guard/atoms.h"
#include "guard/reads.h"
#include "guard/pointer_set.h"
#include "runtime/state.h"
#include "runtime/tensor_plug.h"

namespace magneto::trace {

// How a type behaves under reads, comparisons and operators.
enum class Kind : uint8_t {
  Atom,      // immutable and compared by value
  Identity,  // compared by identity, without contents that matter: functions, classes, modules, ...
  Tuple,     // tuples and frozen sets: immutable, but their items may change
  List,
  Dict,
  Set,
  Iterator,  // iterators and dict views: only understood if this call made them
  Instance,  // of a Python class: its methods are Python code that is watched
  Tensor,
  Unknown,  // implemented in C by somebody else
};

// What is being done, for a reason that is seldom needed: words, or the function that does it.
class What {
 public:
  What(const char* words) : words_(words) {}
  What(PyObject* callable) : callable_(callable) {}
  std::string text() const;

 private:
  const char* words_ = nullptr;
  PyObject* callable_ = nullptr;
};

class Watch {
 public:
  explicit Watch(const guard::Arguments& arguments);
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  static Watch* current();

  // ---- giving up: the call goes on as Python would run it, and is not compiled

  bool alive() const { return reason_.empty(); }
  void give_up(const std::string& reason);
  const std::string& reason() const { return reason_; }
  const std::string& where() const { return where_; }  // "file.py:12 in forward", or empty

  // ---- what objects are

  void mark_fresh(PyObject* object) { fresh_.insert(object); }
  bool is_fresh(PyObject* object) const { return fresh_.contains(object); }
  bool is_tracked(PyObject* object) const { return !is_fresh(object) && !arguments_.containers().contains(object); }
  bool is_argument(PyObject* object) const;  // a tensor or container that was passed in
  Kind kind_of(PyTypeObject* type);
  bool is_tensor(PyObject* object) const { return plug_.is_tensor(object); }
  bool is_dict(PyObject* object) { return PyDict_CheckExact(object) || kind_of(Py_TYPE(object)) == Kind::Dict; }

  // ---- reads; each is noted before or after the real one is made

  void saw(PyObject* value);                              // a value that came out of a tracked object
  void read_attribute(PyObject* object, PyObject* name);  // before the look-up
  void finish_attribute(PyObject* object, PyObject* name, PyObject* value);
  void read_dict_key(PyObject* dict, PyObject* key);
  void read_contents(PyObject* container);                   // items, length and truth; one level
  void read_deep(PyObject* value) { walk(value, false); }    // everything that comparing it would look at
  void read_printed(PyObject* value) { walk(value, true); }  // the same, and the names that repr shows
  void use_specials(PyTypeObject* type);
  void read_truth(PyObject* value);
  void read_cell(PyObject* cell);
  void read_global(PyObject* globals, PyObject* builtins, PyObject* name);
  void read_iterable(PyObject* value);
  void read_iterator(PyObject* iterator);  // before it is advanced
  void read_operand(PyObject* value);      // before an operator is applied
  void compare_identity(PyObject* a, PyObject* b);
  void use_identity(PyObject* value, const char* what);  // its address matters
  void leave_function(PyObject* result);
  void enter_function(PyFunctionObject* function, PyObject* const* locals);
  void note_tensor_work();
  void check_tensors(PyObject* result, const What& what);  // every tensor in it must be known to the recording

  // ---- effects; false: this one ends the watch

  // Value null: delete. `direct`: through object.__setattr__ itself, past a __setattr__ of the class.
  void write_attribute(PyObject* object, PyObject* name, PyObject* value, bool direct = false);
  void write_item(PyObject* container, PyObject* key, PyObject* value);
  void write_global(PyObject* globals, PyObject* name, PyObject* value);
  void write_cell(PyObject* cell);
  void mutate(PyObject* container, const What& what);

  // ---- calls: makes the call and notes what it means. Null: error set

  PyObject* call(PyObject* callable, PyObject* const* args, size_t positional, PyObject* keyword_names);

  // ---- the parts of the capture

  guard::Reads guards;
  std::unique_ptr<runtime::Recording> recording;
  size_t frames = 0;                                          // watched so far
  size_t loops = 0;                                           // backward jumps and calls so far
  std::vector<std::pair<PyCodeObject*, const int*>> running;  // watched frames: code, and the instruction it is at
  // How many frames were running when C code was entered that looks at what Python code hands to it.
  size_t consumer_depth = SIZE_MAX;
  std::vector<PyObject*> open_generators;  // suspended where being dropped would run more of their code
  bool work_in_handler = false;            // tensor work was done where an exception would have been handled
  bool ended_cleanly();                    // nothing is left open: context variables are reset, generators finished

 private:
  friend class CallModel;
  void fail_from_recording(const std::string& reason);
  void check_tensors_if_any(PyObject* result);
  void finish_tensor_op(PyObject* callable, PyObject* result);
  void locate();
  void walk(PyObject* value, bool printed);
  void read_names(PyObject* object, PyTypeObject* type);  // of a class or function
  bool read_class_attribute(PyTypeObject* type, PyObject* name, PyObject* object);
  void read_tensor_attribute(PyObject* tensor, PyObject* name);
  void read_super(PyObject* super, PyObject* name);
  void unchanged_or_give_up(PyObject* dict, PyObject* key, PyObject* value, const std::string& what);
  PyObject* call_type(PyTypeObject* type, PyObject* const* args, size_t positional, PyObject* keyword_names);
  void before_making(PyTypeObject* type);
  bool may_be_called_later(PyObject* callable, PyObject* const* iterables, size_t count);
  PyObject* call_partial(PyObject* partial, PyObject* const* args, size_t positional, PyObject* keyword_names);

  const guard::Arguments& arguments_;
  const runtime::TensorPlug& plug_;
  guard::PointerSet fresh_;
  guard::PointerMap<Kind> kinds_;
  std::vector<py::Ref> kept_types_;                        // those in kinds_
  guard::PointerSet scanned_dicts_;                        // whose keys were looked at
  guard::PointerPairSet attributes_;                       // of tracked instances, whose reads are noted already
  std::vector<std::pair<py::Ref, py::Ref>> open_context_;  // context variables set by the call, with their tokens
  PyTypeObject* constructing_ = nullptr;                   // a class is being called: its new object is fresh
  std::string reason_, where_;
  Watch* outer_;
  std::optional<runtime::NoCollection> no_collection_{std::in_place};
};

// While C code runs that looks at the results of the Python functions it calls: any(), sorted(key=...), filter, ...
class ConsumerScope {
 public:
  explicit ConsumerScope(Watch& watch) : watch_(watch), before_(watch.consumer_depth) {
    watch.consumer_depth = watch.running.size();
  }
  ~ConsumerScope() { watch_.consumer_depth = before_; }
  ConsumerScope(const ConsumerScope&) = delete;
  ConsumerScope& operator=(const ConsumerScope&) = delete;

 private:
  Watch& watch_;
  size_t before_;
};

// Runs one frame in our interpreter if this thread is watching; otherwise as CPython would.
PyObject* watch_frame(PyThreadState* thread, struct _PyInterpreterFrame* frame, int throwing);

}  // namespace magneto::trace
