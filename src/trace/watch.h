// One watched call: what it may touch, what it read, and why it cannot be compiled, if so.
//
// Every value that a watched instruction meets is one of three: *fresh*, made by this call and free to change; an
// *argument*, guarded by shape before anything runs; or *tracked*, older than the call: reading it makes a guard, or a
// node if the value is only carried along, and changing it is an effect that the program repeats.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cpython/ref.h"
#include "guard/arguments.h"
#include "guard/atoms.h"
#include "guard/pointer_set.h"
#include "guard/reads.h"
#include "guard/trie.h"
#include "program/program.h"
#include "runtime/state.h"
#include "runtime/tensor_plug.h"
#include "trace/detours.h"
#include "trace/leeway.h"
#include "trace/provenance.h"
#include "trace/stand_ins.h"

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

// A change of something older than the call, to be made again by the program.
struct Effect {
  program::Op op;
  PyObject* container;                               // the dict, list, set or cell that changes; null: torch's state
  py::Ref key;                                       // what of a dict; null: who knows
  py::Ref constant;                                  // of the instruction
  std::vector<std::pair<py::Ref, NodeId>> operands;  // of the instruction; the last is what is stored
  bool drops = true;                                 // something may die of it
  Py_hash_t hash = 0;                                // of the key
};

// Where in the container something is dropped; null: anywhere.
PyObject* dropped_key(const Effect& effect);

constexpr const char* kNoTensorWork = "the call does no tensor work";

class FrameRun;
class Listing;
class Writer;

class Watch {
 public:
  struct Call {
    PyObject* callable;
    PyObject* const* args;
    size_t positional;
    PyObject* keyword_names;

    size_t keywords() const { return keyword_names ? static_cast<size_t>(PyTuple_GET_SIZE(keyword_names)) : 0; }
    size_t size() const { return positional + keywords(); }
    PyObject* make() const { return PyObject_Vectorcall(callable, args, positional, keyword_names); }
  };

  // `first` and `program` are filled in for the first stretch of the call, others are added behind its cuts.
  // With leeway, or with arguments that leave something open, sizes and numbers stay open.
  Watch(const guard::Arguments& arguments, guard::Entry* first, program::Program* program, Leeway leeway = {});
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  static Watch* current();

  // Captures that have given up may have others inside them: how many there are.
  int nesting() const { return nesting_; }

  // ---- giving up: the call goes on as Python would run it, and is not compiled

  bool alive() const { return reason_.empty(); }
  void give_up(const std::string& reason, Around around = Around::Place);
  // Whether our interpreter runs the frames.
  bool interprets() const { return alive() || goes_on; }
  // After giving up: drops all that it holds, so that objects die when they should again.
  void let_go();
  const std::string& reason() const { return reason_; }
  const std::string& where() const { return where_; }  // "file.py:12 in forward", or empty
  static std::string place();                          // where this thread is, in the same way

  // ---- what objects are

  void mark_fresh(PyObject* object) { fresh_.insert(object); }
  // The __dict__ of an object that this call made: fresh as well, but no object of its own.
  void mark_attributes(PyObject* dict) {
    mark_fresh(dict);
    attribute_dicts_.insert(dict);
  }
  // Of a new iterator: those that it made for itself are as new as it is.
  void own_part(PyObject* part);
  bool holds_attributes(PyObject* dict) const { return attribute_dicts_.contains(dict); }
  bool is_fresh(PyObject* object) const { return fresh_.contains(object) && !(cuts_ && opaque_.contains(object)); }
  bool is_tracked(PyObject* object) const { return !is_fresh(object) && !contents().containers().contains(object); }
  // Of what was passed to the call; behind unknown code, which may have changed that, of what was looked into since.
  const guard::Arguments& contents() const { return again_ ? *again_ : arguments_; }
  bool is_argument(PyObject* object) const;  // a tensor or container that was passed in
  bool has_been_given(PyObject* object) const;
  // Whether only this call, or the watch of it, holds the object; a part is held by what it is part of as well.
  bool is_left_to_us(PyObject* object, bool is_part = false) const;
  // As an index of a tensor: how much it selects depends on what a tensor holds.
  bool selects_by_contents(PyObject* key) const { return plug_.selects_by_contents(key); }
  Kind kind_of(PyTypeObject* type) {
    if (type == &PyLong_Type || type == &PyUnicode_Type || type == &PyBool_Type) return Kind::Atom;
    const Kind* known = kinds_.find(type);
    return known ? *known : new_kind(type);
  }
  bool is_tensor(PyObject* object) const { return plug_.is_tensor(object); }
  // Of an object that this call made: the register that it is in, if unknown code knows it.
  NodeId node_of_new(PyObject* object);
  // Whether it was made by this call, and the attribute means something only to those who compile.
  bool may_mark(PyObject* tensor, PyObject* name) const;
  bool is_plain_tensor(PyObject* object) const { return is_tensor(object) && plug_.why_not_plain(object).empty(); }
  bool is_dict(PyObject* object) { return PyDict_CheckExact(object) || kind_of(Py_TYPE(object)) == Kind::Dict; }

  // ---- values that are only carried along

  Provenance provenance;
  void settle(NodeId node) {
    if (!provenance.is_known(node)) settle_all(node);
  }
  // The node, if what was found is what it stands for.
  NodeId carried(NodeId node, PyObject* found);
  // From a call to the frame of the function that is called, and back.
  struct Handover {
    PyObject* function = nullptr;
    PyObject* generator = nullptr;              // that is resumed, in place of a function
    std::vector<std::pair<int, NodeId>> nodes;  // of its local variables
    std::vector<NodeId> rest, named_rest;       // of what ends up in *args and in **kwargs
    bool is_operator = false;                   // an instruction that is no call runs the function
    bool is_constructor = false;                // a class is called, and the function is its __init__
    NodeId stored = kKnown;                     // of what setattr or list.append is to store
    std::vector<NodeId> operands;               // of the arguments of tensor work; empty: none
    NodeId returned = kKnown;
    void clear() {
      function = generator = nullptr;
      is_operator = is_constructor = false;
      stored = returned = kKnown;
      for (auto* list : {&rest, &named_rest, &operands}) list->clear();
      nodes.clear();
    }
    // Of the call or generator that is done.
    NodeId take_returned() {
      NodeId node = returned;
      clear();
      return node;
    }
    // For a call of this: the function behind it, if it is written in Python.
    void expect(PyObject* callable);
    // The node of an argument, to the variable of that function that receives it. False: it is not known.
    bool give(PyObject* callable, size_t index, size_t positional, PyObject* keyword_names, NodeId node);
  } handover;
  // Those of the numbers that the arguments leave open, for the call that is watched.
  void open_numbers(PyObject* callable, const guard::CallArguments& call);

  // ---- sizes and numbers that stay open

  // Who does the work on tensors again; null if sizes are what they are.
  StandIns* stand_ins() const { return alive() ? stand_ins_.get() : nullptr; }
  // What stands for a number in the recording; none: it is settled.
  std::optional<runtime::NumberId> symbol_of(NodeId node);
  // By now it is what it is in this call.
  bool is_plain(const Node& node) const { return symbolic_->is_plain(*node.symbol); }
  // Decides about a branch.
  void take_truth_of(NodeId node);
  // Something done to these raised an error, which may well depend on what stays open.
  void note_tensor_error(std::initializer_list<Value> operands);
  // Something looks at a tensor in a way that stand-ins cannot repeat.
  void look_at_tensor(PyObject* value, const What& what);
  // Whether numbers that are open may be passed to it.
  bool takes_numbers(PyObject* callable) const;

  // ---- reads; each is noted before or after the real one is made

  void saw(PyObject* value);  // a value that came out of a tracked object
  // What may be carried along gets a node from these; the others settle it.
  // Before the real look-up. `found`: becomes its result, borrowed, if that is clear and nobody's code has to run.
  NodeId look_up_attribute(PyObject* object, PyObject* name, PyObject** found = nullptr);
  NodeId look_up_key(PyObject* dict, PyObject* key);
  NodeId look_up_global(PyObject* globals, PyObject* builtins, PyObject* name,
                        PyObject** found);  // which may stay null
  NodeId look_up_cell(PyObject* cell);
  // Of a cell that this call made.
  Value content(PyObject* cell) const;
  void fill_cell(PyObject* cell, NodeId node);
  void read_attribute(PyObject* object, PyObject* name) { settle(look_up_attribute(object, name)); }
  NodeId finish_attribute(PyObject* object, PyObject* name, PyObject* value);  // after it
  void read_dict_key(PyObject* dict, PyObject* key) { settle(look_up_key(dict, key)); }
  void read_contents(PyObject* container);                   // items, length and truth; one level
  void read_deep(PyObject* value) { walk(value, false); }    // everything that comparing it would look at
  void read_printed(PyObject* value) { walk(value, true); }  // the same, and the names that repr shows
  void use_specials(PyTypeObject* type);
  void read_types_of(PyObject* value);                // which class it has; of a class, its bases
  int is_instance(PyObject* object, PyObject* type);  // as isinstance; negative: error set
  void read_instance(PyObject* object);  // its type and which dict is its __dict__; it is older than the call
  void read_truth(PyObject* value);
  void read_iterable(PyObject* value);
  void read_iterator(PyObject* iterator);     // before others advance it
  void advance_iterator(PyObject* iterator);  // before the interpreter does, which follows what it gives
  NodeId next_of_tuple(PyObject* iterator) const;
  void read_operand(PyObject* value);  // before an operator is applied
  void compare_identity(PyObject* a, PyObject* b);
  bool pin_identity(PyObject* value);
  void use_identity(PyObject* value, const char* what);  // its address matters
  // Of a new object, which is another one in each run: a number that must not get out of the call.
  void note_address(PyObject* number) {
    if (addresses_.insert(number)) kept_addresses_.push_back(py::Ref::borrow(number));
  }
  bool is_address(PyObject* number) const { return addresses_.contains(number); }
  void leave_function(PyObject* result);
  void enter_function(PyFunctionObject* function, PyObject* const* locals);
  void note_tensor_work();
  void check_tensors(PyObject* result, const What& what);  // every tensor in it must be known to the recording

  // ---- effects; each is noted before it is made, and taken back if it fails. No object as the value: delete

  // `direct`: through object.__setattr__ itself, past a __setattr__ of the class.
  void write_attribute(PyObject* object, PyObject* name, Value value, bool direct = false);
  void write_item(PyObject* container, PyObject* key, Value value);
  void write_global(PyObject* globals, PyObject* name, Value value);
  void write_cell(PyObject* cell, Value value);
  void mutate(PyObject* container, const What& what);  // in a way that cannot be repeated
  // function(container, ...). `last`: the node of the last argument.
  void repeat(PyObject* container, PyObject* function, PyObject* const* rest, size_t count, bool drops,
              NodeId last = kKnown);
  std::vector<Effect> effects;
  // A region for profilers that the call has begun, and what began it.
  struct Label {
    py::Ref object, function;
    std::vector<py::Ref> args;
    bool is_over;
  };
  const Label* label(PyObject* object) const;  // null: it is none
  // Whether torch's state is what it was at the beginning of the stretch.
  bool keeps_torch_state() const { return global_state_->holds(); }
  bool is_changed(PyObject* container) const { return !effects.empty() && changed_.contains(container); }

  // How an instruction runs something unknown, and where CPython would go on behind it.
  enum class How : uint8_t {
    Called,   // it is a call; at the next instruction, with the result on the stack
    Instead,  // a function of ours does its work; in the same way
    Again,    // a function of ours works on its operand; at the same instruction, with the result in its place
    Entered,  // it calls the __enter__ of a block; at the next one, with the result above the __exit__ on the stack
    Stored,   // a function of ours does its work; at the next one, without a result
    Fetched,  // the same; with the result on the stack, as a method that is called next
  };
  // Whether something unknown would be run behind a cut here, and not end the watch.
  bool can_cut() const;
  // The same for something that is asked of these.
  bool can_cut_at_question(PyObject* const* args, size_t count) const;
  // Runs `function` in place of the innermost instruction, on the operands that it has on the stack.
  PyObject* call_instead(PyObject* function, PyObject* const* operands, size_t count, How how) {
    return call_unknown(function, operands, count, nullptr, how);
  }
  // The __enter__ of a `with` block, bound. `top`: above the __exit__ on the stack.
  PyObject* enter_block(PyObject* enter, PyObject* const* top) {
    bool is_foreign = is_unknown(enter) && can_cut();
    return is_foreign ? call_unknown(enter, top, 0, nullptr, How::Entered) : call(enter, nullptr, 0, nullptr);
  }

  // ---- calls: makes the call and notes what it means. Null: error set

  PyObject* call(PyObject* callable, PyObject* const* args, size_t positional, PyObject* keyword_names);
  // Whether it is a C function that nobody knows anything about.
  bool is_unknown(PyObject* callable) const;
  // Python code that would come to such a function all the same; the call can be cut in front of it.
  bool leads_to_unknown(PyObject* callable, PyObject* const* args, size_t count) const {
    return PyMethod_Check(callable) && plug_.leads_to_unknown(callable, args, count) && can_cut();
  }
  // The same for an instruction that does nothing else: the call may be cut here.
  PyObject* call_here(PyObject* callable, PyObject* const* args, size_t positional, PyObject* keyword_names) {
    call_site_ = args;
    if (around) return call_unknown(callable, args, positional, keyword_names);
    return call(callable, args, positional, keyword_names);
  }

  // ---- stretches: what is between two calls of something unknown

  // The call is over: writes the rest of its programs. What is written of a call that gives up behind a cut holds up
  // to that cut.
  void finish(Value result);
  bool has_program() const;
  // Whether its runs take less time than the call, as far as counts can tell.
  bool pays() const;
  // Gives up on a call that would make too large a program.
  void check_size();
  bool met_forbidden = false;     // a function that must not be met: the error says so
  bool goes_on = false;           // in our interpreter, even where it has given up
  bool may_cut = true;            // else an unknown function ends the watch
  bool cuts_at_questions = true;  // else what is asked from tensors is recorded with its answer
  // What an earlier capture of the same call left: as long as this one does the same, it adds to that.
  const program::Program* base = nullptr;
  enum class Outcome : uint8_t {
    Own,     // the first stretch is another one, or there is no base
    Joined,  // all that was watched is in the base
    Added    // to the base
  } outcome = Outcome::Own;
  std::vector<std::string> breaks;        // why it was cut, and where
  guard::RootNames roots;                 // what the guards of the first stretch start from
  std::vector<guard::Read> first_reads;   // the guards of the first stretch, which held at its end
  std::vector<guard::Opening> left_open;  // of what the arguments leave open, what the first stretch did not pin
  // Of numbers and sizes that the call asks for, some are open to the end of a stretch, and some had to be what they
  // are.
  bool opens_answers = false, pins_answers = false;
  std::string pinned_at;  // where a size was pinned that it is an error to fix; or empty

  // ---- detours

  std::vector<Detour> detours;     // around what earlier watches of the same function did not understand
  std::optional<Detour> stumble;   // where this one gave up, if the next can go around that
  const Detour* around = nullptr;  // the one that is being taken
  NodeId callable_node = kKnown;   // of what is called there
  const Detour* detour_at(const FrameRun& frame) const;
  // CPython goes on with the call, here and in each run of the program.
  void leave_here(const std::string& reason);

  // ---- the parts of the capture

  guard::Reads guards;
  std::unique_ptr<Listing> listing;  // or null
  std::unique_ptr<runtime::Recording> recording;
  size_t frames = 0;               // watched so far
  size_t depth = 0;                // the most that were running at a time
  size_t steps = 0;                // instructions so far
  size_t loops = 0;                // backward jumps and calls so far
  std::vector<FrameRun*> running;  // watched frames, outermost first
  // How many frames were running when C code was entered that looks at what Python code hands to it.
  size_t consumer_depth = SIZE_MAX;
  bool consumer_looks = true;              // or only keeps what it is handed
  std::vector<PyObject*> open_generators;  // suspended where being dropped would run more of their code
  bool work_in_handler = false;            // tensor work was done where the program would notice an operator's error

 private:
  friend class CallModel;
  Kind new_kind(PyTypeObject* type);
  void settle_all(NodeId node);  // with what it is computed from
  void start_recording();
  void note_stumble(const std::string& reason, Around around);
  bool ends_cleanly();  // nothing is left open: context variables are reset, generators finished
  bool close_stretch(std::unique_ptr<program::Cut> cut);
  void keep_apart();
  void add_to_programs(std::vector<guard::Read> reads);
  const program::Program* twin() const;
  std::string first_change(std::vector<guard::Read>& reads) const;
  // `keeps_contents`: what is known of arguments is known still.
  void open_stretch(How how, bool keeps_contents);
  bool is_question(PyObject* callable, PyObject* const* args, size_t count) const;
  size_t slots_kept(const FrameRun& frame, How how) const;
  // Ends the stretch before the innermost instruction, which calls something unknown. False: gave up.
  bool cut(PyObject* callable, PyObject* const* args, size_t count, PyObject* keyword_names, How how);
  void describe_frames(program::Exit* exit, uint32_t result, How how);
  void use_foreign_tensor(NodeId node);
  void use_foreign_tensor(PyObject* tensor, uint32_t number);
  void look_into(NodeId node);
  std::string name_of(PyObject* object) const;
  void look_at_part(size_t node, uint32_t root);
  void add_input(PyObject* tensor, uint32_t number, const std::vector<int>& open);
  bool can_be_put_back(const FrameRun& frame) const;
  template <class Visitor>
  void visit_frames(Visitor visit) const;
  void make_opaque(bool keeps_contents);
  bool reaches_opaque(PyObject* object, bool keeps_contents, guard::PointerSet& clean) const;
  void forget_dead();
  bool dies_quietly_if_built() const;
  bool holds_back_a_death() const;
  PyObject* call_unknown(PyObject* callable, PyObject* const* args, size_t positional, PyObject* keyword_names,
                         How how = How::Called);
  void fail_from_recording(const std::string& reason);
  NodeId hold_in_tuple(const guard::Arguments::Number& number, NodeId id);
  void note_left_open();
  void note_open_answers();
  bool is_open_key(PyObject* key) const;
  void check_tensors_if_any(PyObject* result);
  PyObject* length_of(PyObject* tensor);
  PyObject* add_up(const Call& call);
  void note_error_of(const Call& call, const std::vector<NodeId>& nodes);
  void call_again(const Call& call, const std::vector<NodeId>& nodes, runtime::CallKind kind, PyObject* result);
  void finish_tensor_op(PyObject* callable, PyObject* result);
  bool holds_only_atoms(PyObject* tuple);
  void walk(PyObject* value, bool printed);
  void read_again(PyObject* iterator);
  void read_names(PyObject* object, PyTypeObject* type);  // of a class or function
  bool read_class_attribute(PyTypeObject* type, PyObject* name, PyObject* object);
  bool read_new_class_attribute(PyTypeObject* type, PyObject* name, PyObject* object);
  PyObject* known_dict(PyObject* object) const;
  void read_tensor_attribute(PyObject* tensor, PyObject* name);
  void read_super(PyObject* super, PyObject* name);
  bool is_there_already(PyObject* dict, PyObject* key, Value value);
  void mark_tensor(PyObject* tensor, PyObject* name, Value value);
  py::Ref items_now(PyObject* sequence);
  void write_key(Effect effect);
  void add(Effect effect);
  const Effect* last_write(PyObject* container, PyObject* key) const;
  NodeId written(const Effect& write, PyObject* now);
  void settle_stored(PyObject* container);
  bool check_keys(PyObject* dict);
  NodeId look_up_argument(PyObject* dict, PyObject* key);
  NodeId look_up_item(PyObject* dict, PyObject* key, PyObject* value);
  PyObject* call_type(PyTypeObject* type, PyObject* const* args, size_t positional, PyObject* keyword_names);
  void before_making(PyTypeObject* type);
  bool may_be_called_later(PyObject* callable, PyObject* const* iterables, size_t count);
  PyObject* call_by_rule(PyObject* callable, PyObject* const* args, size_t positional, PyObject* keyword_names);
  bool is_lasting_key(PyObject* part) const;
  PyObject* call_cached(const Call& call);
  PyObject* call_by_model(const Call& call);
  PyObject* call_label(const Call& call);
  bool is_reduced_plainly(PyObject* object, PyObject* const* args, size_t count) const;
  PyObject* reduce(PyObject* object, const Call& call);
  PyObject* call_partial(PyObject* partial, PyObject* const* args, size_t positional, PyObject* keyword_names);

  const guard::Arguments& arguments_;
  std::shared_ptr<guard::Arguments> again_;                     // behind unknown code
  std::vector<std::shared_ptr<guard::Arguments>> looked_into_;  // all of these
  program::Known known_;                                        // what of it is new in this stretch
  const runtime::TensorPlug& plug_;
  guard::PointerSet fresh_;
  guard::PointerSet attribute_dicts_;
  guard::PointerSet opaque_;  // made by this call, but known to code that nobody watched
  size_t cuts_ = 0;
  bool is_cutting_ = false;
  size_t operations_ = 0;                 // in the stretches that are closed
  PyObject* const* call_site_ = nullptr;  // the arguments of the innermost instruction that is nothing but a call
  std::unique_ptr<Writer> writer_;
  guard::Entry* entry_;                    // the stretch that is being watched
  program::Program* program_;              // its program
  guard::Held<program::Stretch> stretch_;  // the same, unless it is the first
  program::Cut* last_cut_ = nullptr;
  std::vector<guard::Held<guard::Entry>> fitting_;  // stretches of the base whose guards held behind that cut
  std::vector<PyObject*> held_objects_;             // by registers, when the stretch begins
  std::vector<uint32_t> input_registers_;           // of the recording's inputs; empty: the tensors among the arguments
  std::vector<uint32_t> checked_registers_;         // of the tensors among them that are checked, behind a cut
  std::unique_ptr<runtime::TensorChecks> input_checks_;  // of those
  const Leeway leeway_;
  runtime::SymbolicRecording* symbolic_ = nullptr;  // the recording, if sizes stay open
  std::unique_ptr<StandIns> stand_ins_;
  std::vector<std::pair<guard::Arguments::Number, NodeId>> open_numbers_;  // of the arguments
  std::vector<PyObject*> open_inputs_;           // of the recording: behind a cut, tensors with sizes that were open
  std::vector<runtime::NumberId> open_answers_;  // and numbers
  guard::PointerSet foreign_tensors_;            // that unknown functions returned
  std::unique_ptr<runtime::GlobalState> global_state_;
  guard::PointerMap<Kind> kinds_;
  std::vector<py::Ref> kept_types_;           // those in kinds_
  guard::PointerSet addresses_;               // of new objects, as numbers
  std::vector<py::Ref> kept_addresses_;       // those
  guard::PointerSet scanned_dicts_;           // whose keys were looked at
  guard::PointerSet changed_;                 // older containers with an effect
  guard::PointerPairMap<NodeId> attributes_;  // of tracked instances, whose reads are noted already
  guard::PointerMap<PyObject*> instances_;    // tracked, with the dicts that their look-ups end in
  struct ClassAttribute {
    uint64_t version = 0;   // of the class
    bool leads_on = false;  // what an instance has itself matters, too
  };
  guard::PointerPairMap<ClassAttribute> class_attributes_;  // by class and name
  std::vector<std::pair<py::Ref, py::Ref>> open_context_;   // context variables set by the call, with their tokens
  std::vector<Label> labels_;                               // that the call has begun
  PyTypeObject* constructing_ = nullptr;                    // a class is being called: its new object is fresh
  bool takes_context_ = false;  // a C function calls Python code with an object that it made (TensorPlug::only_calls)
  std::string reason_, where_;
  bool has_let_go_ = false;
  Watch* outer_;
  int nesting_ = outer_ ? outer_->nesting_ + 1 : 1;
  std::optional<runtime::NoCollection> no_collection_{std::in_place};
};

// While C code runs that looks at the results of the Python functions it calls: any(), sorted(key=...), filter, ... or
// only keeps them: tuple(generator).
class ConsumerScope {
 public:
  explicit ConsumerScope(Watch& watch, bool looks = true)
      : watch_(watch), before_(watch.consumer_depth), looked_before_(watch.consumer_looks) {
    watch.consumer_depth = watch.running.size();
    watch.consumer_looks = looks;
  }
  ~ConsumerScope() {
    watch_.consumer_depth = before_;
    watch_.consumer_looks = looked_before_;
  }
  ConsumerScope(const ConsumerScope&) = delete;
  ConsumerScope& operator=(const ConsumerScope&) = delete;

 private:
  Watch& watch_;
  size_t before_;
  bool looked_before_;
};

// Runs one frame in our interpreter if this thread is watching; otherwise as CPython would.
PyObject* watch_frame(PyThreadState* thread, struct _PyInterpreterFrame* frame, int throwing);

}  // namespace magneto::trace
