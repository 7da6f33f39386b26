// Building and pruning graphs.
#include "graph/graph.h"

#include <bit>
#include <string_view>

#include "graph/effects.h"

namespace magneto::graph {

ValueId Graph::add_value(Role role, const at::Tensor& tensor) {
  auto id = static_cast<ValueId>(values.size());
  Value& value = values.emplace_back(Value{role, tensor.scalar_type(), tensor.device(), {}, {}, id});
  value.sizes.append(tensor.sizes().begin(), tensor.sizes().end());
  value.strides.append(tensor.strides().begin(), tensor.strides().end());
  return id;
}

ValueId Graph::add_size(ExprId number, std::string name) {
  static constexpr c10::ScalarType kTypes[] = {c10::kLong, c10::kBool, c10::kDouble};  // by Symbols::Type
  auto id = static_cast<ValueId>(values.size());
  c10::ScalarType type = kTypes[static_cast<size_t>(symbols->type(number))];
  values.push_back({Role::Size, type, c10::Device(c10::kCPU), {}, {}, id, {number}, std::move(name)});
  return id;
}

namespace {

const c10::IValue* find_argument(const Op& op, std::string_view name) {
  const auto& arguments = op.handle.schema().arguments();
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].name() == name) return &op.args[i];
  }
  return nullptr;
}

}  // namespace

bool draws(const Op& op) {
  if (!op.info->random) return false;
  const c10::IValue* chance = find_argument(op, "dropout_p");  // of fused attention
  return !(chance && chance->isDouble() && chance->toDouble() == 0.0);
}

bool writes_unmarked(const Op& op) {
  if (!op.info->hidden_writes) return false;
  // Batch norm keeps statistics while it trains.
  const std::string& name = op.handle.schema().name();
  if (name != "aten::native_batch_norm" && name != "aten::cudnn_batch_norm") return true;
  const c10::IValue* training = find_argument(op, "training");
  return !(training && training->isBool() && !training->toBool());
}

bool same_number(const c10::IValue& a, const c10::IValue& b) {
  auto bits = [](double number) { return std::bit_cast<uint64_t>(number); };
  if (a.isBool()) return b.isBool() && a.toBool() == b.toBool();
  if (a.isInt()) return b.isInt() && a.toInt() == b.toInt();
  if (a.isDouble()) return b.isDouble() && bits(a.toDouble()) == bits(b.toDouble());
  if (!a.isComplexDouble() || !b.isComplexDouble()) return false;
  auto x = a.toComplexDouble(), y = b.toComplexDouble();
  return bits(x.real()) == bits(y.real()) && bits(x.imag()) == bits(y.imag());
}

bool has_effect(const Graph& graph, const Op& op) {
  if (draws(op)) return true;
  const SchemaInfo& info = *op.info;
  bool unmarked = writes_unmarked(op);
  if (!info.writes && !unmarked) return false;
  for (const TensorRef& tensor : op.tensors) {
    if (!unmarked && !info.written[tensor.position]) continue;
    if (graph.values[graph.values[tensor.value].memory].role != Role::Result) return true;
  }
  return false;
}

void fold_constant_copies(Graph& graph) {
  if (graph.constants.empty()) return;
  std::vector<bool> visible(graph.values.size(), false);  // may be written, or seen under two names
  for (ValueId output : graph.outputs) visible[output] = true;
  for (ValueId id = 0; id < graph.values.size(); ++id) {
    ValueId memory = graph.values[id].memory;
    if (memory != id) visible[id] = visible[memory] = true;
  }
  for (const Op& op : graph.ops) {
    const SchemaInfo& info = *op.info;
    for (const TensorRef& tensor : op.tensors) {
      if (info.written[tensor.position] || info.returns_view || info.hidden_writes) visible[tensor.value] = true;
    }
  }
  std::vector<ValueId> stands_for(graph.values.size());
  for (ValueId id = 0; id < stands_for.size(); ++id) stands_for[id] = id;
  for (Op& op : graph.ops) {
    for (TensorRef& tensor : op.tensors) tensor.value = stands_for[tensor.value];
    bool is_copy = op.info->copies && op.args[1].isNone();
    if (!is_copy || op.results.size() != 1 || visible[op.results[0].value]) continue;
    if (graph.values[op.tensors[0].value].role != Role::Constant) continue;
    stands_for[op.results[0].value] = op.tensors[0].value;  // the copy is dead now
  }
}

namespace {

// Integers have no infinity to answer a division by zero with.
bool divides_integers(const Graph& graph, const Op& op) {
  if (!op.info->divides) return false;
  for (const TensorRef& result : op.results) {
    if (c10::isIntegralType(graph.values[result.value].dtype, /*includeBool=*/true)) return true;
  }
  return false;
}

bool must_run(const Graph& graph, const Op& op) {
  const SchemaInfo& info = *op.info;
  return info.kept || info.may_raise || !op.expected.isNone() || divides_integers(graph, op);
}

}  // namespace

void remove_dead_ops(Graph& graph) {
  std::vector<bool> needed(graph.values.size(), false);
  for (ValueId output : graph.outputs) needed[output] = true;
  std::vector<bool> live(graph.ops.size());
  for (size_t i = graph.ops.size(); i-- > 0;) {
    const Op& op = graph.ops[i];
    bool keep = must_run(graph, op);
    for (const TensorRef& result : op.results) keep |= needed[result.value];
    live[i] = keep;
    if (!keep) continue;
    for (const TensorRef& tensor : op.tensors) needed[tensor.value] = true;
  }
  size_t kept = 0;
  for (size_t i = 0; i < graph.ops.size(); ++i) {
    if (!live[i]) continue;
    if (kept != i) graph.ops[kept] = std::move(graph.ops[i]);
    ++kept;
  }
  graph.ops.erase(graph.ops.begin() + static_cast<ptrdiff_t>(kept), graph.ops.end());
}

}  // namespace magneto::graph
