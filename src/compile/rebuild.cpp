// What changes in a graph when some of its operators do.
#include "compile/rebuild.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "codegen/kernel.h"
#include "compile/functional.h"
#include "record/trace_values.h"

namespace magneto::compile {

using graph::Graph;
using graph::Op;
using graph::TensorRef;
using graph::Value;
using graph::ValueId;

namespace {

Graph without_ops(Graph graph) {
  graph.ops.clear();
  return graph;
}

// Whether an operator works as well on tensors of other strides.
bool takes_any_strides(const Graph& graph, const Op& op) {
  const std::string& name = op.info->name;
  if (name == "aten::_reshape_alias") return false;  // it was given those of its result
  static constexpr std::array<std::string_view, 8> kAny = {"aten::mm",
                                                           "aten::addmm",
                                                           "aten::convolution",
                                                           "aten::native_batch_norm",
                                                           "aten::_native_batch_norm_legit_functional",
                                                           "aten::native_batch_norm_backward",
                                                           "aten::max_pool2d_with_indices",
                                                           "aten::max_pool2d_with_indices_backward"};
  return codegen::kind_of(graph, op) != codegen::Kind::None || std::ranges::find(kAny, name) != kAny.end();
}

}  // namespace

Rebuild::Rebuild(const Graph& from) : from(from), builder(without_ops(from)), stands_for_(from.values.size()) {
  for (ValueId id = 0; id < stands_for_.size(); ++id) stands_for_[id] = id;
}

bool Rebuild::has_same_look(ValueId original) const {
  const Value &before = from.values[original], &after = builder.graph.values[now(original)];
  return before.sizes == after.sizes && before.strides == after.strides;
}

bool Rebuild::is_whole_memory(const Graph& graph, ValueId id) const {
  const Value& owner = graph.values[graph.values[id].memory];
  return owner.role == graph::Role::Result && codegen::product(owner.sizes) == codegen::product(graph.values[id].sizes);
}

// c10::Error: its strides were of no common kind.
ValueId Rebuild::copied(const Op& like, ValueId original) {
  at::Tensor wanted = record::trace_of(from, original);
  bool channels_last = !wanted.is_contiguous() && wanted.is_contiguous(c10::MemoryFormat::ChannelsLast);
  Op copy = op_like(like, "aten::clone");
  put(copy, 0, now(original));
  copy.args[1] = static_cast<int64_t>(channels_last ? c10::MemoryFormat::ChannelsLast : c10::MemoryFormat::Contiguous);
  ValueId made = builder.add(std::move(copy));
  TORCH_CHECK(builder.graph.values[made].strides == from.values[original].strides, "no common strides");
  return made;
}

Op Rebuild::translated(const Op& op) const {
  Op copy = op;
  for (TensorRef& tensor : copy.tensors) tensor.value = now(tensor.value);
  copy.results.clear();
  return copy;
}

void Rebuild::keep(const Op& op) {
  if (std::ranges::all_of(op.tensors, [&](const TensorRef& tensor) { return is_same(tensor.value); })) {
    builder.graph.ops.push_back(op);
    return;
  }
  auto append = [&](bool as_before) {
    Op again = translated(op);
    for (size_t i = 0; as_before && i < op.tensors.size(); ++i) {
      if (!has_same_look(op.tensors[i].value)) again.tensors[i].value = copied(op, op.tensors[i].value);
    }
    return builder.append(std::move(again));
  };
  Builder::Results results;
  try {
    results = append(!takes_any_strides(from, op));
  } catch (const c10::Error&) {  // a view that these strides do not allow
    results = append(true);
  }
  replace(op, results);
}

void Rebuild::replace(const Op& op, const Builder::Results& by) {
  for (const TensorRef& result : op.results) {
    auto same_place = [&](const TensorRef& made) {
      return made.position == result.position && made.item == result.item;
    };
    replace(result.value, with_known_strides(op, std::ranges::find_if(by, same_place)->value, result.value));
  }
}

// Dimensions of one element may have any stride: they keep the one that they had.
ValueId Rebuild::with_known_strides(const Op& like, ValueId made, ValueId original) {
  const Value &before = from.values[original], &after = builder.graph.values[made];
  if (from.symbols || before.sizes != after.sizes || before.strides == after.strides) return made;
  for (size_t i = 0; i < before.sizes.size(); ++i) {
    if (before.sizes[i] != 1 && before.strides[i] != after.strides[i]) return made;
  }
  Op view = op_like(like, "aten::as_strided");
  put(view, 0, made);
  view.args[1] = c10::IntArrayRef(before.sizes);
  view.args[2] = c10::IntArrayRef(before.strides);
  return builder.add(std::move(view));
}

bool Rebuild::finish_outputs() {
  for (ValueId& output : builder.graph.outputs) {
    if (is_same(output)) continue;
    ValueId original = output;
    auto shares = [&](ValueId other) { return from.values[other].memory == from.values[original].memory; };
    if (!is_whole_memory(from, original) || std::ranges::count_if(from.outputs, shares) > 1) return false;
    bool fits = has_same_look(original) && is_whole_memory(builder.graph, now(original));
    output = fits ? now(original) : copied(from.ops.back(), original);
  }
  return true;
}

Graph rebuilt(Graph graph, const Visit& visit) {
  size_t end = edge_of(graph);
  Rebuild rebuild(graph);
  try {
    for (size_t i = 0; i < end; ++i) {
      if (!visit(rebuild, graph.ops[i])) rebuild.keep(graph.ops[i]);
    }
    if (!rebuild.finish_outputs()) return graph;
    for (size_t i = end; i < graph.ops.size(); ++i) rebuild.keep(graph.ops[i]);
  } catch (const c10::Error&) {
    return graph;
  }
  graph::remove_dead_ops(rebuild.builder.graph);
  return std::move(rebuild.builder.graph);
}

}  // namespace magneto::compile
