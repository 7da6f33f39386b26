// Turns what a watched call has left to do into the instructions of programs.
#pragma once
#include <algorithm>
#include <unordered_map>
#include <utility>
#include <vector>

#include "guard/arguments.h"
#include "program/program.h"
#include "trace/watch.h"

namespace magneto::trace {

// Writes the programs of one capture, one after the other. If something is not understood, the watch gives up.
class Writer {
 public:
  Writer(Watch& watch, const guard::Arguments& arguments);

  // The program that is being written from now on; what is in registers stays there.
  void start(program::Program* program);
  // What is read, computed and checked before anything has an effect; then the effects.
  void write_effects();
  // The register that holds the value; objects that the call made are built.
  uint32_t value(Value value);
  // The same for `exit`: what only CPython needs is built if it takes over. Null: kNoRegister.
  uint32_t value_at_exit(Value value, program::Exit* exit);
  // All exits of a cut are described. What only they need may die now.
  void close_exits();
  // Of a tensor that nobody has recorded.
  uint32_t hold_tensor(NodeId id);
  uint32_t hold_tensor(PyObject* tensor, size_t node);
  // Keeps a part of what the watch knows by content.
  void hold_part(PyObject* part) { parts_.push_back(py::Ref::borrow(part)); }
  // What the watch knows by content will be matched in front of this program.
  void allow_nodes() { has_nodes_ = true; }
  uint32_t constant(PyObject* value);
  // Of what a node stands for, before anything has an effect.
  uint32_t node_register(NodeId id) { return node(id); }
  // All that was passed to the call.
  void hold_arguments();
  // The watch has given up: nothing more is written. What guards on the arguments are made of stays.
  void drop_all();
  // From now on nodes stand for registers.
  void close_nodes();

  // The tensors and numbers that the segment has to produce, in order.
  std::vector<runtime::SegmentOutput> outputs;
  // All tensors that are in registers, and those registers.
  std::vector<std::pair<PyObject*, uint32_t>> tensors;
  // What the call made and the program builds, so that others may change it.
  std::vector<PyObject*> built;
  // Older objects that the program holds, and what was passed to the call.
  std::vector<PyObject*> older_objects, held_arguments;
  uint32_t* find(PyObject* object);
  // Those that keep its address from being used again.
  Py_ssize_t references_to(PyObject* object) const;

 private:
  static constexpr uint32_t kOpen = UINT32_MAX - 1;
  static constexpr int kMaxNesting = 100;

  class For;
  uint32_t refuse(const std::string& what);
  uint32_t emit(program::Op op, uint32_t index, const std::vector<uint32_t>& operands = {});
  uint32_t in_program(PyObject* value, program::Op op, uint32_t index);
  void write_nodes();
  void check_drops();
  uint32_t node(NodeId id);
  uint32_t visit(PyObject* value);
  uint32_t describe(PyObject* value);
  uint32_t older(PyObject* value);
  uint32_t tensor(PyObject* value);
  uint32_t older_object(PyObject* value);
  uint32_t slice(PySliceObject* value);
  uint32_t tuple(PyObject* value);
  uint32_t instance(PyObject* value);
  uint32_t function(PyFunctionObject* value);
  uint32_t iterator(PyObject* value);
  uint32_t generator(PyObject* value);
  uint32_t label(const Watch::Label& label);
  uint32_t item(PyObject* container, Py_ssize_t i, PyObject* object);
  std::vector<uint32_t> list_items(PyObject* list);
  std::vector<uint32_t> dict_items(PyObject* dict);
  void add_slots(PyTypeObject* type, PyObject* value, program::Recipe* recipe, std::vector<uint32_t>* operands);

  Watch& watch_;
  program::Program* program_ = nullptr;
  program::Exit* exit_ = nullptr;  // null: the program itself
  program::Exit* last_exit_ = nullptr;
  std::unordered_map<PyObject*, uint32_t> registers_, at_exit_;  // what is where
  std::vector<uint32_t> node_registers_;
  std::vector<py::Ref> keep_, keep_at_exit_;  // whose addresses are in the maps
  std::vector<py::Ref> parts_;                // of the arguments
  const char* verb_ = "stores ";
  int depth_ = 0;
  bool has_nodes_ = true;  // argument nodes can be loaded in this program
};

}  // namespace magneto::trace
