// How fixed contents are told from others, and how they are computed.
#include "record/fixed_contents.h"

#include <Python.h>

#include <algorithm>
#include <string_view>
#include <unordered_set>

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
    part.ops.back().sizes.clear();  // what is fixed depends on no symbol
  }
  std::ranges::reverse(part.ops);
  part.values = graph.values;
  for (graph::Value& value : part.values) value.shape.clear();
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

bool FixedContents::makes_uniform(const Graph& graph, const Op& op) const {
  static const std::unordered_set<std::string_view> names = {
      "aten::ones",       "aten::zeros",       "aten::full",        "aten::scalar_tensor",
      "aten::_to_copy",   "aten::clone",       "aten::all",         "aten::any",
      "aten::amax",       "aten::amin",        "aten::logical_not", "aten::logical_or",
      "aten::bitwise_or", "aten::bitwise_not", "aten::logical_and", "aten::bitwise_and",
      "aten::eq",         "aten::ne",          "aten::lt",          "aten::le",
      "aten::gt",         "aten::ge",          "aten::neg",         "aten::add",
      "aten::sub",        "aten::rsub",        "aten::mul"};
  return names.contains(op.handle.schema().name()) &&
         std::ranges::all_of(op.tensors, [&](const TensorRef& t) { return is_uniform(graph.values[t.value].memory); });
}

void FixedContents::note(const Graph& graph, const Op& op) {
  const graph::SchemaInfo& info = *op.info;
  auto is_open = [&](const TensorRef& tensor) { return !graph.values[tensor.value].shape.empty(); };
  bool fixed = !info.random && !info.allocates && info.initialises &&
               std::ranges::all_of(op.tensors, [&](const TensorRef& t) { return contain(graph, t.value); });
  bool uniform = fixed && graph.symbols && makes_uniform(graph, op);
  bool open = !op.sizes.empty() || std::ranges::any_of(op.tensors, is_open) || std::ranges::any_of(op.results, is_open);
  fixed = fixed && (uniform || !open);
  for (const TensorRef& tensor : op.tensors) {
    ValueId memory = graph.values[tensor.value].memory;
    if (!may_write(op, tensor) || memory >= fixed_.size()) continue;
    uniform_[memory] = false;
    fixed_[memory] = fixed_[memory] && fixed && !open;
  }
  if (!fixed) return;
  for (const TensorRef& result : op.results) {
    const graph::Value& value = graph.values[result.value];
    if (value.role != Role::Result || value.memory != result.value) continue;
    if (fixed_.size() <= result.value) fixed_.resize(result.value + 1), uniform_.resize(result.value + 1);
    fixed_[result.value] = true;
    uniform_[result.value] = uniform;
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
