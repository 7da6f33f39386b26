// The edges of a recorded call: the Python tensors that go into its segment and come out of it.
#pragma once
#include <Python.h>

#include <memory>
#include <string>
#include <vector>

#include "cpython/ref.h"
#include "graph/graph.h"
#include "runtime/tensor_plug.h"

namespace magneto::record {

// Of a tensor that the call reached through an object: a parameter or a buffer.
graph::Role state_role(PyObject* tensor);

// Why a replay could not give out this tensor, which is the graph's last output so far; empty if it could.
std::string why_not_given_out(PyObject* tensor, const graph::Graph& graph);

std::unique_ptr<runtime::Segment> make_segment(graph::Graph graph, const std::vector<py::Ref>& states);

}  // namespace magneto::record
