// The binding of magneto.Graph; only the module with torch has it.
#pragma once
#include <nanobind/nanobind.h>

#include <vector>

#include "cpython/ref.h"
#include "graph/graph.h"

namespace magneto::python {

void bind_graph(nanobind::module_& module);

// A new magneto.Graph that keeps its state alive; null with a Python error set. `states`: the tensors of graph.states,
// in the same order.
PyObject* wrap_graph(graph::Graph graph, std::vector<py::Ref> states);

}  // namespace magneto::python
