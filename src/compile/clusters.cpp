// Operators join the clusters of those whose results they take, in the order of the graph, where that makes one loop.
#include "compile/clusters.h"

#include <algorithm>
#include <iterator>

#include "codegen/views.h"

namespace magneto::compile {
namespace {

using codegen::Kind;
using codegen::kNoOp;
using graph::Graph;
using graph::ValueId;
using Ops = std::vector<uint32_t>;

constexpr size_t kMostOps = 80;          // in a cluster
constexpr uint32_t kFurthest = 5000;     // operators between the first and the last of a cluster
constexpr size_t kMostSmall = 100;       // small ones in a kernel
constexpr int64_t kLargeCopy = 1 << 16;  // elements

Ops merged(const Ops& a, const Ops& b) {
  Ops ops;
  std::merge(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(ops));
  return ops;
}

class Finder {
 public:
  Finder(const Graph& graph, Order& order, size_t end)
      : graph_(graph),
        end_(static_cast<uint32_t>(end)),
        producers_(codegen::producers(graph)),
        order_(order),
        users_(graph.values.size()),
        is_output_(graph.values.size(), false),
        loop_of_(graph.ops.size(), kNoOp) {
    for (uint32_t i = 0; i < graph.ops.size(); ++i) {
      kinds_.push_back(i < end ? codegen::kind_of(graph, graph.ops[i]) : Kind::None);
      for (const graph::TensorRef& tensor : graph.ops[i].tensors) users_[tensor.value].push_back(i);
    }
    for (ValueId output : graph.outputs) is_output_[output] = true;
  }

  std::vector<Cluster> run() {
    for (uint32_t i = 0; i < end_; ++i) {
      if (kinds_[i] != Kind::None && kinds_[i] != Kind::View) add(i);
    }
    std::vector<Cluster> clusters;
    for (uint32_t i = 0; i < loops_.size(); ++i) {
      if (loop_of_[loops_[i].ops[0]] != i || (loops_[i].ops.size() == 1 && !moves(loops_[i].ops[0]))) continue;
      codegen::Cluster loop = with_outputs(loops_[i]);
      std::optional<codegen::Kernel> kernel = codegen::write_kernel(graph_, producers_, loop);
      if (kernel) clusters.push_back({std::move(loop), std::move(*kernel)});
    }
    for (uint32_t i = 0; i < end_; ++i) {
      if (kinds_[i] != Kind::None) continue;
      std::optional<codegen::Kernel> kernel = codegen::write_column_sum(graph_, graph_.ops[i]);
      if (!kernel) kernel = codegen::write_batch_sums(graph_, graph_.ops[i]);
      if (kernel) clusters.push_back({{.ops = {i}, .outputs = kernel->outputs}, std::move(*kernel)});
    }
    add_small_work(clusters);
    return clusters;
  }

 private:
  // What nobody has joined.
  void add_small_work(std::vector<Cluster>& clusters) const {
    Ops small;
    for (uint32_t i = 0; i < end_; ++i) {
      bool alone = loop_of_[i] != kNoOp && loops_[loop_of_[i]].ops.size() == 1;
      if (alone && codegen::is_small_work(graph_, graph_.ops[i])) small.push_back(i);
    }
    for (size_t i = 0; i + 1 < small.size(); i += kMostSmall) {
      Ops some(small.begin() + static_cast<long>(i),
               small.begin() + static_cast<long>(std::min(i + kMostSmall, small.size())));
      codegen::Kernel kernel = codegen::write_small_work(graph_, some);
      clusters.push_back({{.ops = std::move(some), .outputs = kernel.outputs}, std::move(kernel), true});
    }
  }

  // A large copy to another layout, for which torch computes the place of each element by itself.
  bool moves(uint32_t index) const {
    const graph::Op& op = graph_.ops[index];
    if (op.info->name != "aten::clone" && op.info->name != "aten::_to_copy") return false;
    const graph::Value &from = graph_.values[op.tensors[0].value], &to = graph_.values[op.results[0].value];
    return from.strides != to.strides && codegen::product(to.sizes) >= kLargeCopy;
  }

  bool is_needed_outside(ValueId value, const Ops& ops) const {
    if (is_output_[value]) return true;
    return std::any_of(users_[value].begin(), users_[value].end(), [&](uint32_t user) {
      if (std::binary_search(ops.begin(), ops.end(), user)) return false;
      if (kinds_[user] != Kind::View) return true;
      const auto& views = graph_.ops[user].results;
      return std::any_of(views.begin(), views.end(),
                         [&](const graph::TensorRef& view) { return is_needed_outside(view.value, ops); });
    });
  }

  codegen::Cluster with_outputs(codegen::Cluster loop) const {
    loop.outputs.clear();
    for (uint32_t op : loop.ops) {
      for (const graph::TensorRef& result : graph_.ops[op].results) {
        if (is_needed_outside(result.value, loop.ops)) loop.outputs.push_back(result.value);
      }
    }
    return loop;
  }

  // The operator that has computed what a value shows, and whether it shows all of that in the same order, but for
  // elements that it shows again and again.
  struct Source {
    uint32_t op;
    bool in_order, repeats;
  };
  Source source_of(ValueId value) const {
    Source source{producers_[value], true, false};
    while (source.op != kNoOp && kinds_[source.op] == Kind::View) {
      const graph::Op& view = graph_.ops[source.op];
      bool repeats = view.info->name == "aten::expand";
      source.in_order &= repeats || codegen::keeps_order(view);
      source.repeats |= repeats;
      source.op = producers_[view.tensors[0].value];
    }
    return source;
  }

  void add(uint32_t op) {
    bool reduces = kinds_[op] == Kind::Reduction;
    int64_t columns = reduces ? codegen::reduced_size(graph_, graph_.ops[op]) : 0;
    loop_of_[op] = static_cast<uint32_t>(loops_.size());
    loops_.push_back({.ops = {op}, .outputs = {}, .reduces = reduces, .columns = columns});
    for (const graph::TensorRef& tensor : graph_.ops[op].tensors) {
      Source source = source_of(tensor.value);
      uint32_t other = source.op == kNoOp ? kNoOp : loop_of_[source.op];
      if (other == kNoOp || other == loop_of_[op]) continue;
      // What is computed once for each row is at hand at all of its elements.
      join(loop_of_[op], other, source.in_order && (!source.repeats || loops_[other].reduces));
    }
  }

  // What is not in order, or not wanted for each element of the loop, is computed where it is wanted: if by nobody
  // else.
  void join(uint32_t into, uint32_t from, bool in_order) {
    const codegen::Cluster &loop = loops_[into], &other = loops_[from];
    if (loop.columns && other.columns && loop.columns != other.columns) return;
    codegen::Cluster whole{.ops = merged(loop.ops, other.ops),
                           .outputs = {},
                           .reduces = loop.reduces || other.reduces,
                           .columns = std::max(loop.columns, other.columns)};
    if (whole.ops.size() > kMostOps || whole.ops.back() - whole.ops.front() > kFurthest) return;
    if (!in_order && (other.reduces || is_wanted_beside(other, whole.ops))) return;
    if (order_.would_cycle(whole.ops) || !codegen::can_write(graph_, producers_, with_outputs(whole))) return;
    order_.join(whole.ops);
    for (uint32_t op : whole.ops) loop_of_[op] = into;
    loops_[into] = std::move(whole);
  }

  bool is_wanted_beside(const codegen::Cluster& loop, const Ops& ops) const {
    return std::any_of(loop.ops.begin(), loop.ops.end(), [&](uint32_t op) {
      const auto& results = graph_.ops[op].results;
      return std::any_of(results.begin(), results.end(),
                         [&](const graph::TensorRef& result) { return is_needed_outside(result.value, ops); });
    });
  }

  const Graph& graph_;
  const uint32_t end_;
  const std::vector<uint32_t> producers_;
  Order& order_;
  std::vector<Kind> kinds_;
  std::vector<Ops> users_;       // by value
  std::vector<bool> is_output_;  // by value
  std::vector<codegen::Cluster> loops_;
  std::vector<uint32_t> loop_of_;  // by operator
};

}  // namespace

std::vector<Cluster> find_clusters(const Graph& graph, Order& order, size_t end) {
  return Finder(graph, order, end).run();
}

}  // namespace magneto::compile
