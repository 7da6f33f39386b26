// What both ways of recording a watched call do with the tensors at its edges.
#include "record/call_edges.h"

#include "runtime/replay.h"
#include "runtime/torch_python.h"

namespace magneto::record {

using graph::Role;

Role state_role(PyObject* tensor) {
  return Py_TYPE(tensor) == runtime::parameter_class() ? Role::Parameter : Role::Buffer;
}

// A replay makes tensors of torch's own class.
std::string why_not_given_out(PyObject* tensor, const graph::Graph& graph) {
  bool is_made = graph.values[graph.outputs.back()].role == Role::Result;
  if (!is_made || Py_TYPE(tensor) == runtime::tensor_class()) return "";
  return std::string("an output of type ") + Py_TYPE(tensor)->tp_name + " made during the call";
}

std::unique_ptr<runtime::Segment> make_segment(graph::Graph graph, const std::vector<py::Ref>& states) {
  std::vector<PyObject*> objects;
  for (const py::Ref& state : states) objects.push_back(state.get());
  return runtime::make_replay(std::move(graph), std::move(objects));
}

}  // namespace magneto::record
