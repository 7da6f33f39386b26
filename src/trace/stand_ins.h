// Tensor work done again on stand-ins, so that it is recorded for sizes and numbers that later calls may change.
//
// A symbolic capture happens when sizes or numbers among the arguments were found to differ between calls. The call
// really runs; beside it, every operation on tensors is made a second time on what stands for its operands, and what
// comes out stands for the real result. Numbers that come out, like x.shape[0], get a node: as long as a program only
// computes with them, or hands them to other operations, they stay open.
#pragma once
#include <functional>
#include <optional>
#include <vector>

#include "runtime/tensor_plug.h"
#include "trace/provenance.h"

namespace magneto::trace {

class Watch;

class StandIns {
 public:
  StandIns(Watch& watch, runtime::SymbolicRecording& recording) : watch_(watch), recording_(recording) {}

  // Each after the real operation has given `result`, of which it returns the node.
  NodeId call(PyObject* callable, const std::vector<Value>& args, size_t positional, PyObject* keyword_names,
              PyObject* result);
  // `right` may have no object.
  NodeId apply(const std::function<PyObject*(PyObject*, PyObject*)>& function, Value left, Value right,
               PyObject* result);
  NodeId compare(Value left, Value right, int how, PyObject* result);
  NodeId get_attribute(PyObject* tensor, PyObject* name, PyObject* result);
  NodeId length(PyObject* tensor, PyObject* result);
  void ask_truth(PyObject* tensor);
  void set_item(PyObject* tensor, Value key, Value value);

  // Whether it is a tensor, or contains one or a number that is followed.
  bool concerns(Value value) const;

  // Before two tuples or lists are compared for equality: the numbers in them stay open, but for what the answer says.
  // False: they hold something else.
  bool decide_equality(Value left, Value right);

  // Of numbers one of which has a node that stands for a symbol; `right` may have no object.
  NodeId compute(Node::Kind kind, uint32_t number, Value left, Value right, PyObject* result);

 private:
  bool is_open(Value value) const;
  void admit(Value value);
  py::Ref of(Value value);
  py::Ref of_container(PyObject* container, const std::vector<NodeId>* nodes);
  py::Ref of_callable(PyObject* callable);
  NodeId again(const std::function<PyObject*()>& operation, PyObject* result);
  NodeId pair(PyObject* real, PyObject* stand_in);
  runtime::SymbolicRecording::Operand operand(Value value);

  Watch& watch_;
  runtime::SymbolicRecording& recording_;
};

}  // namespace magneto::trace
