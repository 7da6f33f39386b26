// One frame in the hands of our interpreter: its state, and the instructions by family.
#pragma once
#include <Python.h>

#include <utility>
#include <vector>

#include "cpython/cpython.h"
#include "cpython/operations.h"
#include "cpython/ref.h"
#include "trace/watch.h"

namespace magneto::trace {

enum class Next : uint8_t {
  Go,        // on with the next instruction
  Error,     // a Python error is set
  Raise,     // the same, but its traceback has this frame already
  Leave,     // CPython takes over at this instruction
  Return,    // `result_` is the frame's result
  Yield,     // the same, and the frame may go on later
  Generator  // CPython runs RETURN_GENERATOR, which ends this call of the frame
};

class FrameRun {
 public:
  FrameRun(Watch& watch, PyThreadState* thread, mg_frame* frame, const mg_frame_view& view, const mg_instruction* code)
      : watch_(watch), thread_(thread), frame_(frame), code_(code), view_(view) {
    locals_ = view_.locals;
    stack_ = locals_ + view_.code->co_nlocalsplus;
    sp_ = view_.stack_pointer;
    pc_ = mg_frame_next_instruction(frame);
    nodes_.resize(static_cast<size_t>(view_.code->co_nlocalsplus + view_.code->co_stacksize));
    constants_ = ((PyTupleObject*)view_.code->co_consts)->ob_item;
    names_ = ((PyTupleObject*)view_.code->co_names)->ob_item;
  }

  PyObject* run(bool throwing);

  // ---- for the watch: where the frame stands

  PyCodeObject* code() const { return view_.code; }
  PyObject* function() const { return (PyObject*)view_.function; }
  PyObject* generator() const { return view_.generator; }
  // A watched instruction called the function or resumed the generator, and gets what that returns or yields.
  bool is_direct() const { return is_direct_; }
  // The object, if this is its __init__ and a watched instruction called its class; else null.
  PyObject* made() const { return made_; }
  int executing() const { return at_; }
  // Whether code of the frame would do something about an operator's error that the program could tell.
  bool notices_errors() const;
  size_t size() const { return static_cast<size_t>(sp_ - locals_); }
  Value value(size_t slot) const { return {locals_[slot], nodes_[slot]}; }
  Value value_at(PyObject* const* slot) const { return {*slot, nodes_[slot - locals_]}; }
  void carry(size_t slot, NodeId node) { set_node(locals_ + slot, node); }

  // Those that the caller hands over, if it called this function itself.
  void take_nodes();

 private:
  void take_arguments(Watch::Handover& handed);
  Next do_plainly(const mg_instruction& instruction, PyObject**& sp, int& next);
  static constexpr bool may_be_plain(uint8_t operation) {
    switch (operation) {
      case MG_NOP:
      case MG_LOAD_FAST:
      case MG_LOAD_CONST:
      case MG_PUSH_NULL:
      case MG_STORE_FAST:
      case MG_POP_TOP:
      case MG_JUMP:
      case MG_POP_JUMP_IF_FALSE:
      case MG_POP_JUMP_IF_TRUE:
      case MG_COMPARE_OP:
      case MG_BINARY_OP: return true;
      default: return false;
    }
  }
  Next run_plainly();
  // It is being executed, with this stack.
  void stand_at(const mg_instruction& instruction, PyObject** sp) {
    at_ = static_cast<int>(&instruction - code_);
    pc_ = instruction.next;
    sp_ = sp;
    *view_.executing = view_.first_code_unit + at_;
  }
  Next step();
  Next step_listed(Listing& listing);
  Next step_with_nodes(uint8_t operation, uint32_t arg);
  Next jump(uint32_t target);
  Next look_up();
  Next serve_break();
  // Past a place where an earlier watch gave up.
  Next go_around(const Detour& detour, uint8_t operation, uint32_t arg);
  Next run_unknown(uint8_t operation, uint32_t arg);
  Next fetch_method(PyObject* name);
  void settle_holders(PyObject** slots, size_t count);
  bool appends(PyObject* list, PyObject* callable) const;
  Next step_variables(uint8_t operation, uint32_t arg);
  Next step_build(uint8_t operation, uint32_t arg);
  Next step_flow(uint8_t operation, uint32_t arg);
  Next step_rare(uint8_t operation, uint32_t arg);
  Next step_match(uint8_t operation, uint32_t arg);
  Next step_scopes(uint8_t operation, uint32_t arg);
  bool handle_error(bool add_traceback);
  void add_traceback();

  void push(PyObject* owned) { *sp_++ = owned; }
  PyObject* pop() { return *--sp_; }
  py::Ref pop_ref() { return py::Ref::steal(*--sp_); }
  Next push_result(PyObject* owned) {
    if (!owned) return Next::Error;
    push(owned);
    return Next::Go;
  }
  // Replaces the top `count` entries by an owned result; on null they are left for the error path to drop.
  Next replace(int count, PyObject* owned) {
    if (!owned) return Next::Error;
    while (count--) Py_XDECREF(*--sp_);
    push(owned);
    return Next::Go;
  }
  Next leave(const char* why) {
    watch_.give_up(std::string("the interpreter does not run ") + why);
    return Next::Leave;
  }

  // ---- nodes: values on the stack and in local variables that are only carried along

  NodeId& node_at(PyObject** slot) { return nodes_[slot - locals_]; }
  void set_node(PyObject** slot, NodeId node) {
    NodeId& at = node_at(slot);
    if (slot >= stack_) stack_nodes_ += (node != kKnown) - (at != kKnown);
    at = node;
  }
  void push(PyObject* owned, NodeId node) {
    *sp_ = owned;
    if (node != kKnown) set_node(sp_, watch_.provenance.is_known(node) ? kKnown : node);
    ++sp_;
  }
  // What is called without a `self`.
  void push_callable(PyObject* owned, NodeId node) {
    if (!MG_HOLE) push(nullptr);
    push(owned, node);
    if (MG_HOLE) push(nullptr);
  }
  void settle_top(int count);  // negative: all
  void settle_frame();
  void suspend_nodes();
  bool goes_on();  // although the watch has given up
  NodeId computed(Node::Kind kind, uint32_t number, Value left, Value right, PyObject* result);
  Next compute(Node::Kind kind, uint32_t number, int operands, uint8_t operation, uint32_t arg);
  Next build_holder(uint8_t operation, uint32_t arg, int count, int step, int above);
  const Node* holder_at(PyObject** slot);
  bool is_sequence_of_nodes(PyObject** slot);
  bool copies_holder(PyObject* callable, PyObject** args);
  NodeId foreign_tuple_at(PyObject** slot);
  void rely_on_type(PyObject** slot);
  Next unpack_holder(uint32_t count);
  Next take_from_holder();
  void look_for(PyObject* item, PyObject* container);
  bool has_only_unlike_keys(PyObject* container);
  bool hand_to_operator(uint32_t number);
  bool are_followed(int operands, bool joins) const;
  Next keep_parts(PyObject** slot, std::vector<NodeId> nodes);
  std::vector<NodeId> parts_at(PyObject** slot);
  Next build_slice(uint32_t count);
  Next extend_holder(uint32_t arg);
  Next append_to_holder(uint32_t arg);
  Next load_method_of_followed(uint32_t arg);
  void carry_grown(PyObject* list, std::vector<NodeId> nodes);
  Next extend_in_place(uint32_t arg);
  bool append_followed(PyObject* callable, PyObject** args, size_t count);
  Next merge_holder(uint32_t arg);
  Next ask_tensor_truth();
  Next run_instead(PyObject* function, int operands, int below = 0);  // `below` them, slots that go, too
  Next branch_on_node(bool jump_if, uint32_t target);
  bool hand_to_choice(PyObject* callable, PyObject* const* args, const std::vector<NodeId>& nodes);
  void hand_over(PyObject* callable, PyObject* const* args, const std::vector<NodeId>& nodes, PyObject* keyword_names);
  // An effect that was noted after `before` others was made, or failed.
  Next made(bool success, size_t before);
  Next store_attribute(PyObject* name);
  Next store_by_unknown(PyObject* name);
  Next store_item();

  // A key of a new set or dict: its __hash__ and __eq__ matter, and what it holds.
  void read_key(PyObject* key) {
    if (!PyUnicode_CheckExact(key) && !PyLong_CheckExact(key)) watch_.read_operand(key);
  }
  Next load_attribute(PyObject* name);
  Next load_method(PyObject* name);
  // Of a call with so many arguments on the stack, and `above` them so much else.
  PyObject** callable_at(uint32_t arguments, int above);
  Next call(uint32_t arg, PyObject* names, int above);
  Next call_with_tuple(uint32_t arg);
  Next load_super_attribute(uint32_t arg);
  // One instruction that stands for two, each with half of the argument.
  Next two_steps(uint8_t first, uint8_t second, uint32_t arg);
  Next take_item();
  void check_is_tensor(PyObject* result);
  // `replace`, where the entries may have nodes and the result has this one.
  Next replace_followed(int count, PyObject* owned, NodeId node);
  Next compare(uint32_t arg);
  Next take_truth(bool wanted);
  Next branch(bool jump_if, uint32_t target);
  PyObject* new_iterator(PyObject* iterable);
  py::Ref unpacked(PyObject* sequence);
  bool take_items(PyObject* iterator, Py_ssize_t count, const char* at_least, Py_ssize_t expected,
                  std::vector<py::Ref>* items);
  Next unpack(uint32_t count);
  Next unpack_with_star(uint32_t arg);
  Next make_function(uint32_t flags);
  Next raise(uint32_t arg);
  Next import(PyObject* name);
  py::Ref module_name(PyObject* name, long level);
  Next import_from(PyObject* name);
  Next import_missing(PyObject* name);
  Next undefined(PyObject* name);
  Next unbound(uint32_t variable);
  bool has_plain_globals() const { return PyDict_CheckExact(view_.globals) && PyDict_CheckExact(view_.builtins); }
  PyObject* find_global(PyObject* name, NodeId* node);
  bool find_name(PyObject* names, PyObject* name, py::Ref* found);
  Next load_name(PyObject* names, PyObject* name);
  Next load_from_names_or_cell(PyObject* names, uint32_t cell);
  Next store_name(PyObject* name);
  Next delete_name(PyObject* name);
  Next delete_global(PyObject* name);
  Next set_up_annotations();
  Next load_build_class();
  // CPython runs the current instruction on the operands, which stay. The result, or a tuple of several; null: error
  // set.
  py::Ref run_alone(int operands, int results, PyObject* name = nullptr);
  Next split_group();
  Next join_groups();
  void mark_groups(PyObject* exception);
  Next before_with();
  // What the sub-patterns of a pattern are matched with.
  using Parts = std::vector<std::pair<py::Ref, NodeId>>;
  Next push_parts(Parts parts);
  Next match_flag(unsigned long flag);
  Next get_length();
  Next match_keys();
  bool get_values(PyObject* subject, PyObject* keys, Parts* parts);
  Next match_class(uint32_t positional);
  bool match_attributes(PyTypeObject* type, PyObject* names, uint32_t positional, Parts* parts);
  bool match_attribute(PyTypeObject* type, PyObject* name, PyObject* seen, Parts* parts);
  Next binary(uint32_t arg);
  Next dict_update(uint32_t arg);
  Next dict_merge(uint32_t arg);
  Next send(uint32_t arg);
  Next cleanup_throw();
  Next forbid_stop_iteration();
  Next return_value(PyObject* owned, NodeId node);
  Next yield(bool delegates);
  Next list_extend(uint32_t arg);
  Next format_value(uint32_t arg);

  Watch& watch_;
  PyThreadState* thread_;
  mg_frame* frame_;
  mg_frame* previous_ = nullptr;
  const mg_instruction* code_;
  const mg_frame_view& view_;
  PyObject **locals_, **stack_, **sp_;
  PyObject **constants_, **names_;
  PyObject* keyword_names_ = nullptr;
  SlotNodes nodes_;      // of locals and stack; kKnown above the top
  int stack_nodes_ = 0;  // how many of the stack have one
  bool is_direct_ = false;
  PyObject* made_ = nullptr;
  int pc_;      // the next instruction
  int at_ = 0;  // the one being executed
  PyObject* result_ = nullptr;
};

}  // namespace magneto::trace
