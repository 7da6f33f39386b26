// The phases, and the graph that comes out.
#include "compile/fuse.h"

#include <algorithm>
#include <unordered_map>

#include "codegen/formulas.h"
#include "compile/batch_norms.h"
#include "compile/builder.h"
#include "compile/clusters.h"
#include "compile/edge.h"
#include "compile/functional.h"
#include "compile/layouts.h"
#include "compile/order.h"
#include "compile/padding.h"
#include "compile/row_sums.h"

namespace magneto::compile {
namespace {

using graph::Graph;
using graph::Op;
using graph::TensorRef;
using graph::ValueId;

constexpr size_t kMostCompilers = 8;  // side by side: more are not faster

// ---- equal operators

// What it does, as text, if doing it once is as good as doing it twice; empty otherwise.
std::string deed(const Graph& graph, const Op& op) {
  const graph::SchemaInfo& info = *op.info;
  if (op.derives || info.kept || info.random || info.writes || info.hidden_writes || info.allocates ||
      !op.sizes.empty())
    return "";
  Op plain = op;
  plain.grad_mode = plain.below_inplace = false;
  std::string text = to_text(graph, plain);
  size_t call = text.find(" = ");
  return call == std::string::npos ? "" : text.substr(call, text.find("  # ") - call);
}

// Who takes a result of the later one takes that of the earlier. Results that leave the graph have memory of their own.
void merge_equal(Graph& graph, size_t end) {
  std::vector<ValueId> stands_for(graph.values.size());
  std::vector<bool> leaves(graph.values.size(), false);
  for (ValueId id = 0; id < stands_for.size(); ++id) stands_for[id] = id;
  for (ValueId output : graph.outputs) leaves[graph.values[output].memory] = true;
  auto rename = [&](Op& op) {
    for (TensorRef& tensor : op.tensors) tensor.value = stands_for[tensor.value];
  };
  std::unordered_map<std::string, size_t> known;
  for (size_t i = 0; i < graph.ops.size(); ++i) {
    Op& op = graph.ops[i];
    rename(op);
    if (i >= end) continue;
    bool stays = std::any_of(op.results.begin(), op.results.end(),
                             [&](const TensorRef& result) { return leaves[graph.values[result.value].memory]; });
    std::string what = stays ? "" : deed(graph, op);
    if (what.empty()) continue;
    auto [found, is_new] = known.try_emplace(std::move(what), i);
    if (is_new) continue;
    const auto& earlier = graph.ops[found->second].results;
    if (earlier.size() != op.results.size()) continue;
    for (size_t k = 0; k < earlier.size(); ++k) stands_for[op.results[k].value] = earlier[k].value;
  }
  for (graph::Value& value : graph.values) {
    if (graph.values[stands_for[value.memory]].role == graph::Role::Result)
      value.memory = graph.values[stands_for[value.memory]].memory;
  }
}

// ---- results

// Operators that return more than is used may still be plain loops.
void drop_unused_results(Graph& graph) {
  std::vector<bool> used(graph.values.size(), false);
  for (ValueId output : graph.outputs) used[output] = true;
  for (const Op& op : graph.ops) {
    for (const TensorRef& tensor : op.tensors) used[tensor.value] = true;
  }
  for (Op& op : graph.ops) {
    auto is_unused = [&](const TensorRef& result) { return !used[result.value]; };
    if (!std::all_of(op.results.begin(), op.results.end(), is_unused)) {
      op.results.erase(std::remove_if(op.results.begin(), op.results.end(), is_unused), op.results.end());
    }
  }
}

// ---- casts of outputs

// Who hands results out copies them, and casts them by the way: what is cast last leaves the graph as it was before.
void drop_last_casts(Graph& graph, size_t end) {
  std::vector<uint32_t> uses(graph.values.size(), 0), outputs_in(graph.values.size(), 0);
  for (const Op& op : graph.ops) {
    for (const TensorRef& tensor : op.tensors) ++uses[tensor.value];
  }
  for (ValueId output : graph.outputs) ++outputs_in[graph.values[output].memory];
  std::vector<uint32_t> producers = codegen::producers(graph);
  for (ValueId& output : graph.outputs) {
    uint32_t producer = producers[output];
    if (producer >= end || uses[output] || outputs_in[output] != 1) continue;
    const Op& cast = graph.ops[producer];
    if (cast.info->name != "aten::_to_copy" || !codegen::find_formula(graph, cast)) continue;
    ValueId source = cast.tensors[0].value;
    const graph::Value &from = graph.values[source], &to = graph.values[output];
    bool is_own = graph.values[from.memory].role == graph::Role::Result && !outputs_in[from.memory];
    bool both_real = c10::isFloatingType(from.dtype) && c10::isFloatingType(to.dtype);
    if (!is_own || !both_real || from.strides != to.strides) continue;
    outputs_in[from.memory] = 1;
    output = source;
  }
}

// ---- the new graph

Op call_of(const Graph& graph, const Cluster& cluster, c10::IValue kernel) {
  Op call = op_like(graph.ops[cluster.loop.ops.back()], codegen::kernel_op());
  call.grad_mode = false;
  call.args = {std::move(kernel), c10::IValue()};
  call.lists.push_back({1, static_cast<uint32_t>(cluster.kernel.inputs.size()), false});
  for (size_t i = 0; i < cluster.kernel.inputs.size(); ++i)
    call.tensors.push_back({1, static_cast<int32_t>(i), cluster.kernel.inputs[i]});
  for (size_t i = 0; i < cluster.kernel.outputs.size(); ++i)
    call.results.push_back({0, static_cast<int32_t>(i), cluster.kernel.outputs[i]});
  return call;
}

}  // namespace

std::optional<Graph> fuse(const Graph& original, const Compile& compile, bool casts_outputs) {
  Graph graph = make_functional(original);
  graph = with_row_sums(with_channels_last(with_padded_products(std::move(graph))));
  drop_unused_results(graph);
  merge_equal(graph, edge_of(graph));
  graph = with_split_batch_norms(std::move(graph));  // whose gradients compute again what the forward pass has computed
  if (casts_outputs) drop_last_casts(graph, edge_of(graph));
  graph::remove_dead_ops(graph);
  size_t end = edge_of(graph);
  Order order(graph, end);
  std::vector<Cluster> clusters = find_clusters(graph, order, end);
  if (clusters.empty()) return std::nullopt;

  codegen::Library library;
  std::vector<const Cluster*> cluster_at(end, nullptr);
  std::vector<bool> is_done(end, false);
  std::vector<Op> ops;
  for (const Cluster& cluster : clusters) {
    cluster_at[cluster.loop.ops.front()] = &cluster;
    if (!cluster.comes_first) continue;
    ops.push_back(call_of(graph, cluster, library.add(graph, cluster.kernel)));
    for (uint32_t op : cluster.loop.ops) is_done[op] = true;
  }
  for (uint32_t first : order.schedule()) {
    if (is_done[first]) continue;
    if (const Cluster* cluster = cluster_at[first])
      ops.push_back(call_of(graph, *cluster, library.add(graph, cluster->kernel)));
    else
      ops.push_back(graph.ops[first]);
  }
  size_t new_end = ops.size();
  for (size_t i = end; i < graph.ops.size(); ++i) ops.push_back(graph.ops[i]);
  graph.ops = std::move(ops);
  std::shared_ptr<runtime::KernelModule> module = compile(library);
  if (!module) return std::nullopt;
  library.provide(std::move(module));
  graph = with_short_edge(std::move(graph), new_end);
  graph::remove_dead_ops(graph);
  return graph;
}

std::unique_ptr<Graph> make_kernels(const Graph& graph, int gpu, std::string& reason) {
  c10::Device device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(gpu));
  auto compile = [&](const codegen::Library& library) {
    return runtime::compile_cuda(library.sources(kMostCompilers), device, reason);
  };
  try {
    std::optional<Graph> fused = fuse(graph, compile, /*casts_outputs=*/true);
    return fused ? std::make_unique<Graph>(std::move(*fused)) : nullptr;
  } catch (const std::exception& error) {
    reason = error.what();
    reason.resize(std::min(reason.find('\n'), reason.size()));
    return nullptr;
  }
}

}  // namespace magneto::compile
