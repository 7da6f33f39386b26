// Building, pruning and checking graphs.
#include "graph/graph.h"

#include <bit>
#include <string_view>

#include "runtime/errors.h"

namespace magneto::graph {

ValueId Graph::add_value(Role role, const at::Tensor& tensor) {
  auto id = static_cast<ValueId>(values.size());
  Value& value = values.emplace_back(Value{role, tensor.scalar_type(), tensor.device(), {}, {}, id});
  value.sizes.append(tensor.sizes().begin(), tensor.sizes().end());
  value.strides.append(tensor.strides().begin(), tensor.strides().end());
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

}  // namespace

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

namespace {

class Verifier {
 public:
  explicit Verifier(const Graph& graph) : graph_(graph), made_(graph.values.size(), false) {}

  void run() {
    define_all(graph_.inputs, [](Role role) { return role == Role::Argument; });
    define_all(graph_.states, is_state);
    define_all(graph_.constants, [](Role role) { return role == Role::Constant; });
    if (graph_.constants.size() != graph_.constant_tensors.size()) MAGNETO_BUG("graph: constants without contents");
    for (size_t i = 0; i < graph_.ops.size(); ++i) check_op(i);
    for (ValueId output : graph_.outputs) check_use(output, kOutputs);
  }

 private:
  void define_all(const std::vector<ValueId>& ids, bool (*fits)(Role)) {
    for (ValueId id : ids) {
      if (id >= made_.size()) MAGNETO_BUG("graph: value %" + std::to_string(id) + " does not exist");
      if (made_[id]) MAGNETO_BUG("graph: value %" + std::to_string(id) + " is made twice");
      if (!fits(graph_.values[id].role)) MAGNETO_BUG("graph: value %" + std::to_string(id) + " has the wrong role");
      made_[id] = true;
    }
  }

  static constexpr size_t kOutputs = SIZE_MAX;

  std::string name(size_t index) const {
    if (index == kOutputs) return "an output";
    return "op " + std::to_string(index) + " (" + graph_.ops[index].info->name + ")";
  }

  void check_use(ValueId id, size_t by) const {
    if (id >= made_.size() || !made_[id]) {
      MAGNETO_BUG("graph: value %" + std::to_string(id) + " is used by " + name(by) + " before it is made");
    }
  }

  void check_op(size_t index) {
    const Op& op = graph_.ops[index];
    const auto& schema = op.handle.schema();
    if (op.args.size() != schema.arguments().size()) MAGNETO_BUG("graph: wrong number of arguments in " + name(index));
    for (const TensorRef& tensor : op.tensors) {
      check_use(tensor.value, index);
      if (tensor.position >= op.args.size()) MAGNETO_BUG("graph: no such argument in " + name(index));
      if (tensor.item != TensorRef::kWhole) check_item(index, tensor);
    }
    for (const TensorRef& result : op.results) {
      if (result.position >= schema.returns().size()) MAGNETO_BUG("graph: no such result in " + name(index));
      if (result.value >= made_.size()) MAGNETO_BUG("graph: a result of " + name(index) + " does not exist");
      if (made_[result.value] && !is_argument(op, result.value)) {
        MAGNETO_BUG("graph: value %" + std::to_string(result.value) + " is made again by " + name(index));
      }
      if (!made_[result.value] && graph_.values[result.value].role != Role::Result) {
        MAGNETO_BUG("graph: " + name(index) + " makes a value that is not a result");
      }
      made_[result.value] = true;
    }
  }

  void check_item(size_t index, const TensorRef& tensor) const {
    for (const TensorList& list : graph_.ops[index].lists) {
      if (list.position == tensor.position && tensor.item >= 0 && tensor.item < static_cast<int64_t>(list.size)) return;
    }
    MAGNETO_BUG("graph: no such list item in " + name(index));
  }

  static bool is_argument(const Op& op, ValueId id) {
    for (const TensorRef& tensor : op.tensors) {
      if (tensor.value == id) return true;
    }
    return false;
  }

  const Graph& graph_;
  std::vector<bool> made_;
};

}  // namespace

void verify(const Graph& graph) { Verifier(graph).run(); }

}  // namespace magneto::graph
