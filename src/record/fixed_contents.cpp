// How fixed contents are told from others, and how they are computed.
#include "record/fixed_contents.h"

#include <Python.h>

#include <algorithm>

#include "cpython/gil.h"
#include "cpython/ref.h"
#include "record/recorder_keys.h"
#include "runtime/replay.h"
#include "runtime/state.h"
#include "runtime/torch_python.h"

namespace magneto::record {
namespace {

using graph::Graph;
using graph::Op;
using graph::Role;
using graph::TensorRef;
using graph::ValueId;

constexpr size_t kMostOps = 256;
constexpr size_t kMostBytes = 16 << 20;

bool may_write(const Op& op, const TensorRef& tensor) {
  return op.info->hidden_writes || op.info->written[tensor.position];
}

size_t bytes_of(const graph::Value& value) {
  size_t bytes = c10::elementSize(value.dtype);
  for (int64_t size : value.sizes) bytes *= static_cast<size_t>(size);
  return bytes;
}

// The operators that made or wrote the memory of `values`, and those that these need.
Graph slice(const Graph& graph, c10::ArrayRef<ValueId> values) {
  std::vector<bool> needed(graph.values.size());
  for (ValueId value : values) needed[graph.values[value].memory] = true;
  auto needs = [&](const TensorRef& tensor) { return needed[graph.values[tensor.value].memory]; };
  Graph part;
  for (auto op = graph.ops.rbegin(); op != graph.ops.rend(); ++op) {
    bool writes = std::ranges::any_of(op->tensors, [&](const TensorRef& t) { return may_write(*op, t) && needs(t); });
    if (!writes && std::ranges::none_of(op->results, needs)) continue;
    for (const TensorRef& tensor : op->tensors) needed[graph.values[tensor.value].memory] = true;
    part.ops.push_back(*op);
    part.ops.back().line = Op::kNoLine;
  }
  std::ranges::reverse(part.ops);
  part.values = graph.values;
  for (graph::Value& value : part.values) value.shape.clear();  // what is fixed depends on no symbol
  part.constants = graph.constants;
  part.constant_tensors = graph.constant_tensors;
  part.outputs.assign(values.begin(), values.end());
  return part;
}

bool is_cheap(const Graph& part) {
  size_t bytes = 0;
  for (const Op& op : part.ops) {
    for (const TensorRef& result : op.results) bytes += bytes_of(part.values[result.value]);
  }
  return part.ops.size() <= kMostOps && bytes <= kMostBytes;
}

}  // namespace

void FixedContents::note(const Graph& graph, const Op& op) {
  const graph::SchemaInfo& info = *op.info;
  bool fixed = !info.random && !info.allocates && info.initialises && op.sizes.empty() &&
               std::ranges::all_of(op.tensors, [&](const TensorRef& t) { return contain(graph, t.value); });
  if (!fixed) {
    if (!info.writes && !info.hidden_writes) return;
    for (const TensorRef& tensor : op.tensors) {
      ValueId memory = graph.values[tensor.value].memory;
      if (may_write(op, tensor) && memory < fixed_.size()) fixed_[memory] = false;
    }
    return;
  }
  for (const TensorRef& result : op.results) {
    const graph::Value& value = graph.values[result.value];
    if (value.role != Role::Result || value.memory != result.value || !value.shape.empty()) continue;
    if (fixed_.size() <= result.value) fixed_.resize(result.value + 1);
    fixed_[result.value] = true;
  }
}

std::vector<at::Tensor> compute_fixed(const Graph& graph, c10::ArrayRef<ValueId> values) {
  Graph part = slice(graph, values);
  if (!is_cheap(part)) return {};
  py::Gil gil;
  runtime::PauseWatch pause;
  c10::impl::ExcludeDispatchKeyGuard off(kBothKeys);
  std::vector<PyObject*> outputs(values.size());
  if (!runtime::make_replay(std::move(part), {})->run(nullptr, outputs.data()))
    return PyErr_Clear(), std::vector<at::Tensor>();
  std::vector<at::Tensor> contents;
  for (PyObject* output : outputs) {
    py::Ref held = py::Ref::steal(output);
    contents.push_back(runtime::unpack_tensor(output));
  }
  return contents;
}

}  // namespace magneto::record
